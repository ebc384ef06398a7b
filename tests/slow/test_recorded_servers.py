"""What is made of recordings of real vLLM servers, whose speed drifts: near the truth, or a wide interval, or nothing.

None of the constants of a fit or a search was fitted to these; the drift that they show is why a fit has speeds.
"""

from pathlib import Path

import pytest

from benchmarks.real.judge import Judged, judged
from benchmarks.real.recording import read, stitched
from benchmarks.real.truth import light, truth
from probe.capacity.model.forecast import forecast
from probe.capacity.model.hints import NO_HINTS, Hints

# Long prompts come out too low by more than their intervals say (docs/evidence/accuracy.md): what decoding costs is
# hardly seen.
TOO_LOW = "prompts"
FILES = sorted((Path(__file__).parents[2] / "benchmarks/recordings").glob("*.json.gz"))


def _found() -> list[Judged]:
    recordings = [read(file) for file in FILES]
    return [each for recording in recordings for each in judged(recording, truth(recording))]


@pytest.fixture(scope="module")
def found() -> list[Judged]:
    """Judge every recording: forecasts from its light loads, and its searches, by the current code."""
    return [each for each in _found() if not each.what.endswith("then")]


@pytest.mark.long
def test_a_forecast_from_light_loads_covers_the_truth_of_a_recorded_server() -> None:
    """One of the forecasts that the tests below have of all five recordings."""
    recording = read(next(file for file in FILES if file.name == "engine.json.gz"))
    steps = light(recording)[0]
    found = forecast(stitched(steps), recording.workload, recording.objectives, NO_HINTS, requests=1000)
    judgement = Judged(recording.name, "forecast 1", found, truth(recording))
    assert judgement.covered
    assert abs(judgement.error or 1.0) < 0.25
    assert found.mode == "forecast"


@pytest.mark.long
def test_nothing_wrong_is_called_verified(found: list[Judged]) -> None:
    assert len(found) >= 4 * len(FILES) > 0
    wrong = [(e.server, e.what, e.error) for e in found if e.capacity.mode == "verified" and abs(e.error or 0.0) > 0.1]
    assert wrong == []


@pytest.mark.long
def test_a_forecast_is_near_the_truth_or_its_interval_contains_it(found: list[Judged]) -> None:
    reported = [each for each in found if each.covered is not None and each.server != TOO_LOW]
    assert len(reported) >= len(found) / 3
    assert sum(bool(each.covered) for each in reported) >= 0.8 * len(reported), [
        (e.server, e.what, e.error) for e in reported
    ]


@pytest.mark.long
def test_the_server_of_long_prompts_is_taken_for_a_slower_one(found: list[Judged]) -> None:
    errors = [each.error for each in found if each.server == TOO_LOW and each.error is not None]
    assert errors
    assert all(-0.35 < error < 0.02 for error in errors), "above it, somebody would be promised too much"


@pytest.mark.long
def test_searches_come_within_a_quarter_of_the_truth(found: list[Judged]) -> None:
    errors = [each.error for each in found if each.what.startswith("search") and each.error is not None]
    assert errors
    assert max(map(abs, errors)) < 0.25


@pytest.mark.long
@pytest.mark.parametrize("load", ["users 14.3", "users 23.4"])
def test_a_forecast_from_the_metrics_of_an_h100_is_near_its_knee(load: str) -> None:
    """Users were `vllm bench serve`, by which 26.0 requests/s held and p95 TPOT was at its objective at 28.6."""
    recording = read(FILES[0].parent / "gpu/h100-7b.json.gz")
    (taken,) = (each for each in recording.taken if each.name == load)
    found = forecast(taken.readings, recording.workload, recording.objectives, Hints(max_num_seqs=256))
    assert (found.mode, found.fitted_server is not None and found.fitted_server.plans_ahead) == ("forecast", True)
    assert found.requests_per_second == pytest.approx(28.6, rel=0.15)
    assert found.upper is not None
    assert found.lower is not None
    assert found.upper > 26.0
    assert found.lower < 28.6
