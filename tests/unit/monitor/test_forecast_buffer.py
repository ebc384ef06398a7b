"""What a forecaster keeps of a server: two hours, in little memory, and nothing of the server before it."""

from dataclasses import replace

from example_records import CHAT, snapshot, whole_snapshot

from probe.capacity.model.hints import NO_HINTS
from probe.core.request import Api
from probe.core.snapshot import ServerSnapshot
from probe.core.workload import Workload
from probe.monitor.forecast_buffer import ForecastBuffer, unpacked

S = 10**9


def _forecaster() -> ForecastBuffer:
    return ForecastBuffer(Workload("short", Api.COMPLETIONS, 8, 3), CHAT, NO_HINTS)


def _read(at_s: float, **values: float) -> ServerSnapshot:
    return replace(whole_snapshot(), at_ns=round(at_s * S), wall_s=at_s, **values)


def test_a_reading_comes_back_as_it_was_but_for_what_no_forecast_needs() -> None:
    forecaster = _forecaster()
    forecaster.read(_read(5.0))
    (kept,) = unpacked(forecaster.kept)
    whole = _read(5.0)
    assert (kept.at_ns, kept.running, kept.by_engine, kept.adapters) == (
        whole.at_ns,
        whole.running,
        whole.by_engine,
        whole.adapters,
    )
    assert kept.histograms["ttft"].count == whole.histograms["ttft"].count
    assert kept.histograms["ttft"].sum == whole.histograms["ttft"].sum
    assert "e2e" not in kept.histograms


def test_what_the_server_does_not_say_stays_unsaid() -> None:
    forecaster = _forecaster()
    forecaster.read(snapshot(preemptions=None))
    assert unpacked(forecaster.kept)[0].preemptions is None


def test_two_hours_are_kept_at_any_pace_of_scrapes() -> None:
    forecaster = _forecaster()
    for second in range(0, 10_000, 50):
        forecaster.read(_read(float(second)))
    assert forecaster.seconds == 7200
    often = _forecaster()
    for second in range(2000):
        often.read(_read(float(second)))
    assert len(often.kept) == 1440


def test_the_server_before_a_restart_is_forgotten() -> None:
    forecaster = _forecaster()
    for at_s, tokens in ((0.0, 100.0), (5.0, 200.0), (10.0, 3.0)):
        forecaster.read(_read(at_s, generation_tokens=tokens))
    assert [reading.generation_tokens for reading in unpacked(forecaster.kept)] == [3.0]
