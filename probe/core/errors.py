"""Errors a person reads: one line that says what, where, what was expected and the mend.

    KneewatchError
    |-- ConfigError      the configuration file, a flag or an environment variable
    |-- TargetError      a server that cannot be measured as asked
    |-- LockError        a server that somebody else loads already
    `-- LoadError        load that cannot be generated here

Each ends a command with exit status 2. A failing request is not an error but an Outcome
(records.py): a monitor reports broken servers, it does not break with them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probe.core.request import Outcome


class KneewatchError(Exception):
    """Base of what the command line prints as one line."""


class ConfigError(KneewatchError):
    """The configuration cannot be used; the message names file and key path."""


class LoadError(KneewatchError):
    """No load can be generated; the message says what has to be mended on this machine."""


class LockError(KneewatchError):
    """The lock of a server is held by another prober, or cannot be had; `reason` is a word, the message says who."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class TargetError(KneewatchError):
    """A target cannot be measured; the message names its URL, `outcome` the kind of failure.

    `reason`: a word for a label, where the metrics page could not be read (server/scrape.py has them all).
    """

    def __init__(self, message: str, outcome: "Outcome", reason: str | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.reason = reason
