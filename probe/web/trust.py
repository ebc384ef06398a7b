"""What speaks against the measurements: Kneewatch's own clock, and troubles that most targets have at once. Pure."""

from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from probe.core.request import Outcome, RequestRecord
from probe.core.target_status import OwnClock, TargetStatus
from probe.report.figures import short
from probe.web.state import NEWEST

# As KneewatchClientBound has it: a tenth of the TTFT objective.
_OF_TTFT = 0.1
_USUAL_TTFT_S = 0.5
_TOGETHER_S = 180.0
_FEW = 2
_UNJUDGED = 3


def warnings(
    statuses: Sequence[TargetStatus], began_s: Sequence[float], failing: int, clock: OwnClock | None
) -> Sequence[str]:
    """Return what to look at before any target.

    `began_s`: since when the failing and the slow targets are so, if that is known; `failing`: how many fail.
    """
    return [*_late(statuses, clock), *_together(statuses, began_s, failing), *_unread(statuses)]


def _late(statuses: Sequence[TargetStatus], clock: OwnClock | None) -> Iterator[str]:
    limits = [one.objectives.ttft.within_s for one in statuses if one.objectives.ttft is not None]
    if clock is not None and clock.late_s > _OF_TTFT * min(limits, default=_USUAL_TTFT_S):
        yield (
            f"Kneewatch on {clock.host} is short of CPU: its clock was up to {short(clock.most_s)} late in the last"
            " 5 min. Latencies on these pages are too high by as much."
        )


def _together(statuses: Sequence[TargetStatus], began_s: Sequence[float], failing: int) -> Iterator[str]:
    watched = [one for one in statuses if not one.passive and one.asleep_since_s is None]
    starts = sorted(began_s)
    most = max((sum(first <= each <= first + _TOGETHER_S for each in starts) for first in starts), default=0)
    if most >= _FEW and 2 * most > len(watched):
        said = f"{most} of {len(watched)} targets began to fail or to be slow within {_TOGETHER_S / 60:.0f} min"
    elif _FEW <= failing == len(watched):  # such as since before Kneewatch was started
        said = f"All {failing} targets fail"
    else:
        return
    # Targets behind one address may just share a server.
    servers = {urlsplit(one.base_url).netloc for one in watched}
    yield f"{said}: suspect {'their common address' if len(servers) == 1 else 'network, DNS or this host'} first."


def _unread(statuses: Sequence[TargetStatus]) -> Iterator[str]:
    asked = [one for one in statuses if one.server is not None or one.server_error is not None]
    unread = sum(one.server_error is not None for one in asked)
    if unread >= _FEW and 2 * unread > len(asked):
        yield (
            f"The metrics of {unread} of {len(asked)} servers cannot be read: what these pages say of users, queues and"
            " KV caches is old or missing."
        )


def doubts(status: TargetStatus) -> Sequence[str]:
    """Return why the values of one target may be wrong."""
    found = []
    newest: Sequence[RequestRecord] = status.recent[:NEWEST]
    unjudged = sum(one.outcome is Outcome.CLIENT_BOUND for one in newest)
    if unjudged >= _UNJUDGED:
        found.append(f"{unjudged} of the last {len(newest)} canaries are not judged: Kneewatch itself was late")
    if status.server is None and status.last_server is not None:
        found.append("the server's values are old: its metrics page cannot be read")
    return found
