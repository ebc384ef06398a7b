"""Errors for people: each is one line with what is wrong, where, what was expected, and the fix.

    KneewatchError
    |-- ConfigError      the configuration file, a flag or an environment variable
    |-- TargetError      a server that cannot be measured
    |-- LockError        a server that another prober is loading
    `-- LoadError        load that cannot be generated on this machine

Each ends a command with exit status 2. A failed request is not an error but an Outcome (request.py): the monitor
reports broken servers and keeps running.
"""

from typing import TYPE_CHECKING

from probe.core.redactor import SECRETS

if TYPE_CHECKING:
    from probe.core.request import Outcome


class KneewatchError(Exception):
    """Base class of errors that the command line prints as one line. It hides secrets: a peer may have said it."""

    def __init__(self, message: object = "") -> None:
        super().__init__(SECRETS.hide_text(str(message)))


class ConfigError(KneewatchError):
    """The configuration cannot be used; the message names file and key path."""


class LoadError(KneewatchError):
    """No load can be generated; the message says what to fix on this machine."""


class LockError(KneewatchError):
    """A server's lock is held by another prober, or cannot be acquired; `reason` is a label value."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class TargetError(KneewatchError):
    """A target cannot be measured; the message names its URL, `outcome` the kind of failure.

    `reason`: a label value if the metrics page could not be scraped (all of them are in scrape/page_scraper.py).
    """

    def __init__(self, message: str, outcome: "Outcome", reason: str | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.reason = reason
