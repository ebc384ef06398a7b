"""From a fault to the engineer's pager: mock servers that fall ill, Kneewatch, Prometheus, Alertmanager, a webhook.

All programs are real, and the rules are those that `kneewatch alerts --window-scale` writes: an hour is 72 s. Seven
targets run side by side, six fall ill at the same moment in six ways, each is healed once its alerts have come, and one
is left alone. `pytest -s` prints how long each alert took; so does the report of a failed test.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from faulty_sim import FaultySim
from kneewatch_command import kneewatch, measured
from monitor import Monitor
from process import eventually
from real_alertmanager import Notice, RealAlertmanager, Receiver
from real_prometheus import RealPrometheus
from users import Users

from probe.monitor.store import Store
from probe.report.result_json import loads

pytestmark = [pytest.mark.prometheus, pytest.mark.alone, pytest.mark.long]

SCALE = 0.02
PAGE, TICKET = "page", "ticket"
Alerts = frozenset[tuple[str, str]]
# Says that this machine is too slow to measure on. Where it is, that is the right alert.
_OF_THE_MACHINE = "ClientBound"


def _both(*alerts: str) -> Alerts:
    """Return each as a page and as a ticket: the ticket may come first, and stays when the page has ended."""
    return frozenset((alert, severity) for alert in alerts for severity in (PAGE, TICKET))


@dataclass(frozen=True, slots=True)
class Case:
    """A target and what becomes of it. `must`: the alerts that have to come; `may`: those that follow from them."""

    harm: Callable[[FaultySim, ExitStack], None]
    must: Alerts
    may: Alerts = frozenset()
    profile: str = "tiny"
    users: int = 8


def _nothing(_server: FaultySim, _until: ExitStack) -> None:
    pass


def _slow_decode(server: FaultySim, until: ExitStack) -> None:
    _faulty(server, until, extra_step_s=0.15)


def _stalls(server: FaultySim, until: ExitStack) -> None:
    _faulty(server, until, stalled=True)


def _loses_its_knee(server: FaultySim, until: ExitStack) -> None:
    """Lower the capacity; canaries stay within their objectives."""
    _faulty(server, until, extra_step_s=0.08)


def _dies(server: FaultySim, until: ExitStack) -> None:
    server.kill()
    until.callback(server.start)


def _crowd(server: FaultySim, until: ExitStack) -> None:
    """Send twice as many requests as the server runs at once, so that half of them wait at any moment."""
    until.enter_context(Users(server.base_url, 16, prompt_tokens=64, output_tokens=32))


def _long_requests(server: FaultySim, until: ExitStack) -> None:
    until.enter_context(Users(server.base_url, 24, prompt_tokens=96, output_tokens=32))


def _faulty(server: FaultySim, until: ExitStack, *, extra_step_s: float = 0.0, stalled: bool = False) -> None:
    server.fault(extra_step_s=extra_step_s, is_stalled=stalled)
    until.callback(server.fault)


# For inhibitions; its receiver tells nobody.
DOWN = frozenset({("TargetDown", "none")})

CASES = {
    "healthy": Case(_nothing, must=frozenset()),
    "slow-decode": Case(
        _slow_decode,
        must=frozenset({("TPOTBurn", PAGE)}),
        may=_both("TPOTBurn"),
    ),
    "queueing": Case(
        _crowd,
        must=frozenset({("QueueGrowth", TICKET), ("TTFTBurn", PAGE)}),
        may=_both("TTFTBurn"),
        users=0,
    ),
    "kv-exhausted": Case(
        _long_requests,
        must=frozenset({("KVCachePressure", TICKET), ("TTFTBurn", PAGE)}),
        # The first two are silenced by it, and may come before it does or stay when it has ended.
        may=_both("PreemptionStorm", "QueueGrowth", "TTFTBurn"),
        profile="small-kv",
        users=0,
    ),
    "stalled": Case(
        _stalls,
        must=frozenset({("EngineStalled", PAGE), ("AvailabilityBurn", PAGE)}),
        may=_both("AvailabilityBurn") | DOWN,
        users=5,  # who all wait for a first token while it lasts: fewer than make an alert of their own
    ),
    "dead": Case(_dies, must=frozenset({("AvailabilityBurn", PAGE)}), may=_both("AvailabilityBurn") | DOWN),
    # Without users above the new capacity it is no page.
    "knee": Case(_loses_its_knee, must=frozenset({("KneeDropped", TICKET)}), users=0),
}


def _config(servers: dict[str, FaultySim]) -> dict[str, object]:
    plain = {"mode": "off"}
    measured = {
        "mode": "verify",
        "workload": "short",
        "concurrency": [4, 8, 12],
        "step": "2s",
        "confirm": "2s",  # as long as a step: the highest level is not repeated, for most of a minute
        "schedule": {"cron": "* * * * *"},
    }
    return {
        "objectives": {
            "chat": {
                "availability": 0.999,
                "ttft": {"ratio": 0.95, "within": "500ms"},
                "tpot": {"ratio": 0.95, "within": "100ms"},
            },
            # A run a minute, and a step in each that is too much: as many bad canaries as in half a month of nights.
            "measured": {"ttft": {"ratio": 0.8, "within": "500ms"}, "tpot": {"ratio": 0.8, "within": "200ms"}},
        },
        "workloads": {
            "canary": {"prompt_tokens": 32, "output_tokens": 4},
            "short": {"prompt_tokens": 32, "output_tokens": 8},
        },
        "targets": [
            {
                "name": name,
                "base_url": server.base_url,
                "scrape": "1s",
                "objectives": "measured" if name == "knee" else "chat",
                "canary": {"every": "2s", "workload": "canary", "timeout": "4s"},
                "capacity": measured if name == "knee" else plain,
            }
            for name, server in servers.items()
        ],
    }


def _remember(config: dict[str, object], folder: Path) -> Path:
    """Fill a store in which each of the last twelve nights found today's knee."""
    file, found = folder / "kneewatch.yml", folder / "found.json"
    file.write_text(yaml.safe_dump(config))
    done = measured("ramp", "-c", file, "--target", "knee", "--json", found, "--workers", "1")
    assert done.status == 0, done.out + done.err
    result, now = loads(found.read_text()), datetime.now(UTC)
    store = Store(folder / "kneewatch.db")
    for night in range(1, 13):
        store.add(replace(result, id=f"night {night}", started=now - timedelta(days=night)))
    store.close()
    return folder / "kneewatch.db"


@dataclass(slots=True)
class Patient:
    """A target on its way through illness. Times are those of time.monotonic."""

    name: str
    server: FaultySim
    healing: ExitStack = field(default_factory=ExitStack)
    fell_ill_s: float = 0.0
    healed_s: float | None = None

    @property
    def case(self) -> Case:
        return CASES[self.name]

    def reported(self, notices: Sequence[Notice]) -> list[Notice]:
        return [notice for notice in notices if notice.about[0] == self.name]

    def heal_once_told(self, notices: Sequence[Notice]) -> bool:
        """Report whether all of its alerts have arrived; remove the fault when the last one has."""
        reported = {_short(notice) for notice in self.reported(notices) if notice.firing}
        if self.healed_s is None and self.case.must <= reported:
            self.healing.close()
            self.healed_s = time.monotonic()
        return self.healed_s is not None

    def is_over(self, notices: Sequence[Notice]) -> bool:
        """Report whether the end of each of its alerts has arrived. Tickets of objectives look back for hours."""
        return all(self.ended_s(alert, notices) is not None for alert in self.case.must)

    def began_s(self, alert: tuple[str, str], notices: Sequence[Notice]) -> float:
        return next(notice.at_s for notice in self.reported(notices) if _short(notice) == alert)

    def ended_s(self, alert: tuple[str, str], notices: Sequence[Notice]) -> float | None:
        """Return when the last alert of this name ended, or None while one fires."""
        mine = [notice for notice in self.reported(notices) if _short(notice) == alert]
        last = {tuple(sorted(notice.labels.items())): notice for notice in mine}.values()
        return None if not last or any(notice.firing for notice in last) else max(notice.at_s for notice in last)


def _short(notice: Notice) -> tuple[str, str]:
    return notice.about[1].removeprefix("Kneewatch"), notice.receiver


@dataclass(frozen=True, slots=True)
class Scene:
    patients: Sequence[Patient]
    prometheus: RealPrometheus
    receiver: Receiver


@pytest.fixture
def scene(prometheus_binary: str, alertmanager: str, tmp_path: Path) -> Iterator[Scene]:
    with _scene(prometheus_binary, alertmanager, tmp_path) as running:
        yield running


@contextmanager
def _scene(prometheus_binary: str, alertmanager: str, folder: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        servers = {name: stack.enter_context(FaultySim(folder, name, case.profile)) for name, case in CASES.items()}
        for server in servers.values():
            server.wait()
        config = _config(servers)
        store = _remember(config, folder)
        for name, case in CASES.items():
            if case.users:
                stack.enter_context(
                    Users(servers[name].base_url, case.users, prompt_tokens=32, output_tokens=16, think_s=3)
                )
        monitor = stack.enter_context(Monitor({"store": {"path": str(store)}, **config}, folder / "monitor"))
        written = kneewatch(
            *("alerts", "-c", monitor.config_file, "-o", folder / "rules", "--window-scale", str(SCALE))
        )
        assert written.status == 0, written.err
        receiver = stack.enter_context(Receiver())
        notifier = stack.enter_context(RealAlertmanager(alertmanager, folder / "alertmanager", receiver))
        prometheus = stack.enter_context(
            RealPrometheus(
                prometheus_binary,
                folder / "prometheus",
                addresses=[monitor.address],
                rule_files=sorted((folder / "rules").glob("*.yml")),
                alertmanagers=[notifier.address],
            )
        )
        patients = [Patient(name, server) for name, server in servers.items()]
        for patient in patients:
            stack.callback(patient.healing.close)
        yield Scene(patients, prometheus, receiver)


def test_each_fault_fires_and_resolves_its_own_alerts_and_no_others(
    scene: Scene, record_property: Callable[[str, object], None]
) -> None:
    receiver, patients = scene.receiver, scene.patients
    eventually(lambda: _canaries(scene.prometheus) >= 10, within_s=90, what="ten good canaries of each target")
    assert not _uninvited(receiver.notices, {}), "before anything was wrong"

    for patient in patients:
        patient.fell_ill_s = time.monotonic()
        patient.case.harm(patient.server, patient.healing)
    try:
        eventually(
            lambda: _healed(patients, receiver.notices) == len(patients), within_s=300, what="the alerts of each fault"
        )
        eventually(
            lambda: all(patient.is_over(receiver.notices) for patient in patients), within_s=210, what="their ends"
        )
        time.sleep(5)  # for what would come late
    finally:
        table = _table(patients, receiver.notices)
        sys.stdout.write(f"\n{table}\n")
        record_property("times to detect", table)
    assert not _uninvited(receiver.notices, CASES)
    assert not [text for text in _texts(receiver.notices) if "error expanding" in text or "<no value>" in text]


def _healed(patients: Sequence[Patient], notices: Sequence[Notice]) -> int:
    return sum([patient.heal_once_told(notices) for patient in patients])


def _canaries(prometheus: RealPrometheus) -> float:
    """Return the number of good canaries of the target that has the fewest."""
    good = 'kneewatch_good_requests_total{traffic="canary",objective="all"}'
    found = prometheus.query(f"sum by (target) ({good})")
    return min(value for _, value in found) if len(found) == len(CASES) else 0


def _uninvited(notices: Sequence[Notice], expected: dict[str, Case]) -> set[tuple[str, str, str]]:
    """Return target, alert and severity of the alerts that had no reason to fire."""
    invited = {(name, *alert) for name, case in expected.items() for alert in case.must | case.may}
    came = {(notice.about[0], *_short(notice)) for notice in notices}
    return {each for each in came if each[1] != _OF_THE_MACHINE} - invited


def _texts(notices: Sequence[Notice]) -> set[str]:
    return {text for notice in notices for text in notice.annotations.values()}


def _table(patients: Sequence[Patient], notices: Sequence[Notice]) -> str:
    lines = [f"{'target':<14}{'alert':<20}{'':<8}{'fires after':>12}  {'its end, after the fault ended':<32}"]
    for patient in patients:
        seen = {_short(notice) for notice in patient.reported(notices)}
        for began_s, alert in sorted((patient.began_s(alert, notices), alert) for alert in seen):
            ended_s = patient.ended_s(alert, notices)
            after = "" if ended_s is None or patient.healed_s is None else f"{ended_s - patient.healed_s:.0f} s"
            reported = f"{began_s - patient.fell_ill_s:.0f} s"
            lines.append(f"{patient.name:<14}{alert[0]:<20}{alert[1]:<8}{reported:>10}  {after}".rstrip())
        if not seen:
            lines.append(f"{patient.name:<14}nothing")
    return "\n".join(lines)
