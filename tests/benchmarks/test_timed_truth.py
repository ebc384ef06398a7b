"""The truth of servers of known timing: the simulated scheduler in virtual time, and the knee found on it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.timed.arrivals import Arrival, Timed, judged, poisson, scores
from benchmarks.timed.cases import CASES
from benchmarks.timed.truth import knee_rps
from benchmarks.timed.virtual_twin import serve

_QUIET = replace(CASES["long-prompts"], law=replace(CASES["long-prompts"].law, noise=0.0))


def test_a_lone_request_takes_as_long_as_the_law_says() -> None:
    (only,) = serve(_QUIET, [Arrival(1.0, 3000, 3)])
    law = _QUIET.law
    prompt_s = law.mean_s(1, 2048, 0) + law.mean_s(1, 952, 2048, pairs=952 * 2048)
    assert only.ttft_s == pytest.approx(prompt_s)
    assert only.last_s - only.first_s == pytest.approx(law.mean_s(1, 1, 3000) + law.mean_s(1, 1, 3001))
    assert only.has_ended


def test_arrivals_at_twice_the_rate_are_the_same_requests_in_half_the_time() -> None:
    slow, fast = (poisson(CASES["mixed"], rate, 50, seed=3) for rate in (1.0, 2.0))
    assert [one.at_s / 2 for one in slow] == pytest.approx([one.at_s for one in fast])
    assert [one.prompt_tokens for one in slow] == [one.prompt_tokens for one in fast]


def test_latencies_are_judged_by_their_95th_percentile_after_the_warm_up() -> None:
    served = [Timed(Arrival(0.0, 10, 11), first_s=6.0 if i >= 95 else 1.5, last_s=2.0) for i in range(100)]
    assert len(judged(served)) == 85
    assert scores(_QUIET, served)["ttft"] == pytest.approx(6.0 / 3.0)
    assert scores(_QUIET, served[:95])["ttft"] == pytest.approx(0.5)


@pytest.mark.parametrize("around_rps", [0.1, 4.9, 7.0, 60.0])
def test_the_knee_is_found_from_either_side(around_rps: float) -> None:
    assert knee_rps(lambda rps: rps / 5.0, around_rps) == pytest.approx(5.0, rel=0.004)


def test_every_recorded_truth_is_of_a_case_and_says_how_sure_it_is() -> None:
    """The synchronous knee and the asynchronous one differ by a few per cent."""
    for name, found in json.loads(Path("benchmarks/timed/truth.json").read_text()).items():
        assert name in CASES
        assert 0 <= found["error"] < 0.05 * found["requests_per_second"]
        assert found["requests_per_second"] == pytest.approx(found["synchronous"]["knee"], rel=0.1)
