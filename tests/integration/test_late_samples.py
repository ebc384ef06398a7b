"""Samples that reach Prometheus late, as by remote write: recorded minutes, and the page for a dead server. Live."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from alerts import build
from benchmarks.backfill import Line, Prometheus
from exporters import names
from probe.core.request import Outcome

pytestmark = [pytest.mark.prometheus, pytest.mark.long]

# Every window and interval is a tenth of its length: of canaries every 15 s, up to two minutes late.
SCALE = 0.1
EVERY_S = 15 * SCALE
LATE_S = (0.0, 45 * SCALE, 120 * SCALE)
GOOD = 40  # canaries before the server dies
WITHIN_S = 240 * SCALE
PAGE = 'ALERTS{alertname="KneewatchAvailabilityBurn",severity="page",alertstate="firing"}'
_CANARY = {"job": "kneewatch", "instance": "a", "target": "t", "model": "m", "workload": "w", "traffic": "canary"}


def _page(sent: int, at_s: float) -> Iterator[Line]:
    """Yield what Kneewatch exports after so many canaries."""
    good, failed = min(sent, GOOD), max(0, sent - GOOD)
    of_target = {"job": "kneewatch", "instance": "a", "target": "t"}
    values = {
        (names.REQUESTS.name, ("outcome", Outcome.OK.value)): good,
        (names.REQUESTS.name, ("outcome", Outcome.UNREACHABLE.value)): failed,
        (names.GOOD_REQUESTS.name, ("objective", "availability")): good,
    }
    for (name, (label, word)), value in values.items():
        yield Line({**_CANARY, "__name__": name, label: word}, np.array([at_s]), np.array([float(value)]))
    promised = (
        {"__name__": names.OBJECTIVE_RATIO.name, "objective": "availability"},
        {"__name__": names.OBJECTIVE_WINDOW.name, "slo": "chat"},
    )
    for labels, value in zip(promised, (0.999, 30 * 86_400 * SCALE), strict=True):
        yield Line({**of_target, **labels}, np.array([at_s]), np.array([value]))


@pytest.mark.fault("E150")
def test_a_dead_server_pages_and_every_request_is_recorded_however_late_its_samples_arrive(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(build.render(window_scale=SCALE)[build.FILE])
    record = "sum(sum_over_time(target_workload:kneewatch_canary_availability_{}:increase6s[10m]))"
    paged: dict[float, float] = {}
    with Prometheus(block="2h") as now, Prometheus(block="2h") as late, Prometheus(block="2h") as later:
        receivers = dict(zip(LATE_S, (now, late, later), strict=True))
        for each in receivers.values():
            each.load(rules)
        begun = time.time()
        died = begun + GOOD * EVERY_S
        sent = 0
        waiting: list[tuple[float, int, float]] = []  # when the samples were taken, of how many canaries, and how late
        while time.time() < died + WITHIN_S + EVERY_S:
            taken = time.time()
            waiting += [(taken, sent, late_s) for late_s in LATE_S]
            for entry in [entry for entry in waiting if entry[0] + entry[2] <= taken]:
                receivers[entry[2]].write(_page(entry[1], entry[0]))
                waiting.remove(entry)
            for late_s, each in receivers.items():
                if late_s not in paged and each.ask("query", query=PAGE)["result"]:
                    paged[late_s] = taken - died
            sent += 1
            time.sleep(max(0.0, begun + sent * EVERY_S - time.time()))
        for late_s, each in receivers.items():
            assert 0 < paged[late_s] <= WITHIN_S, paged
            (failed,) = each.ask("query", query=record.format("errors"))["result"]
            expected = sent - GOOD - late_s / EVERY_S
            assert float(failed["value"][1]) == pytest.approx(expected, abs=6), late_s  # since the last record
