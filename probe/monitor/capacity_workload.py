"""The workload of one target's capacity: a configured one, or the lengths that its users send (`users`)."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from pydantic import ValidationError

from probe.config.config import Config
from probe.config.targets import TargetConfig
from probe.core.errors import TargetError
from probe.core.request import Outcome
from probe.core.result import CapacityResult
from probe.core.snapshot import ServerSnapshot
from probe.core.workload import Workload
from probe.monitor.startup_flags import StartupFlags
from probe.monitor.wiring import workload
from probe.observe.length_history import LengthHistory, UserLengths, lengths_since_start
from probe.observe.user_mix import MIN_REQUESTS, USERS, are_alike, users_workload
from probe.report.result_json import workload_of

_CONTEXT = "max_model_len"


class CapacityWorkload:
    """The workload of forecasts and capacity runs.

    What users send changes a little all the time. The workload stays the same until it has changed much, so that
    its capacities can be compared.
    """

    def __init__(self, config: Config, target: TargetConfig, lengths: LengthHistory, flags: StartupFlags) -> None:
        name = target.capacity.workload or target.canary.workload
        self.configured = named_workload(config, target, name)
        self._is_learnt = config.is_learnt(name)
        self._has_second = not self._is_learnt and config.is_learnt(USERS) and self.configured.api.generates
        self._lengths, self._flags = lengths, flags
        self._users: Workload | None = None

    def restore(self, result: CapacityResult) -> None:
        """Take the users' workload of an earlier result, such as one from before a restart."""
        values = result.context.workload
        if not self._is_learnt or values.get("name") != USERS:
            return
        with suppress(ValidationError):  # a workload of the configuration that had this name
            self._users = workload_of(values)

    def current(self) -> Workload | None:
        """Return the workload; None while too little is known of what users send."""
        return self._learnt() if self._is_learnt else self.configured

    def of_users(self) -> Workload | None:
        """Return the users' workload if the capacity's is another one; None while too little is known."""
        return self._learnt() if self._has_second else None

    def _learnt(self) -> Workload | None:
        recent, flags = self._lengths.recent(), self._flags.target.capacity.server.startup_flags
        new = users_workload_of(recent, self.configured, flags) if recent is not None else None
        if new is not None and (self._users is None or not are_alike(self._users, new)):
            self._users = new
        return self._users

    def lacking(self) -> str | None:
        """Return why there is no workload yet, or None."""
        if not self._is_learnt or self.current() is not None:
            return None
        return lacking_lengths(self._lengths.recent())


def named_workload(config: Config, target: TargetConfig, name: str) -> Workload:
    """Return the workload with this name; for `users`, the canary's under that name while it is unknown."""
    if not config.is_learnt(name):
        return workload(name, config.workload(name))
    return replace(workload(target.canary.workload, config.workload(target.canary.workload)), name=name)


def workload_since_start(
    config: Config, target: TargetConfig, name: str, server: ServerSnapshot | None, flags: Mapping[str, str]
) -> Workload:
    """Return the workload with this name; `users` has the lengths of all requests since the server's start.

    Raise TargetError if the server's metrics show too few.
    """
    configured = named_workload(config, target, name)
    if not config.is_learnt(name):
        return configured
    counted = lengths_since_start(server) if server is not None else None
    found = users_workload_of(counted, configured, flags) if counted is not None else None
    if found is None:
        raise TargetError(f"{target.name}: no workload {name}: {lacking_lengths(counted)}", Outcome.NOT_FOUND)
    return found


def users_workload_of(recent: UserLengths, configured: Workload, flags: Mapping[str, str]) -> Workload | None:
    """Return the workload of these lengths, with the API of the configured one; None with too few requests."""
    context = flags.get(_CONTEXT, "")
    return users_workload(
        recent.prompts,
        recent.outputs,
        api=configured.api,
        context_tokens=int(context) if context.isdecimal() and int(context) > 1 else None,
        hit_ratio=recent.hit_ratio,
    )


def lacking_lengths(recent: UserLengths | None) -> str:
    """Return why no workload of users is known, and what would help."""
    if recent is None:
        return "the server's metrics have shown no lengths of requests; use another workload if they never do"
    known = min(recent.prompts.count, recent.outputs.count)
    return (
        f"the server's metrics show the lengths of {known:.0f} requests, {MIN_REQUESTS} needed; wait, or use another"
        " workload"
    )
