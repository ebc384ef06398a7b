"""What the history of all servers says: the verdict first, the worst first, one table, and what is not known."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from probe.core.objectives import Objective, Objectives
from probe.core.result import Capacity
from probe.observe.past_verdict import verdict
from probe.observe.server_past import GpuPast, ServerPast
from probe.report.past_causes import causes
from probe.report.past_diagnosis import PastDiagnosis, ServerDiagnosis, past_json, past_words, worst_first

STEPS = tuple(1.8e9 + 300.0 * i for i in range(12))
CHAT = Objectives("chat", ttft=Objective(0.95, 0.5), tpot=Objective(0.95, 0.05))
KNOWN = Capacity("forecast", 10.0, 9.0, 11.0, 1000.0)
NONE = Capacity("forecast", reason="not enough evidence: few scrapes")


def _all(value: float) -> dict[float, float]:
    return dict.fromkeys(STEPS, value)


def _past(name: str = "a", late: float = 0.0, slow: float = 0.0, **values: float) -> ServerPast:
    """Return a server with 1,500 requests in each step, of which some were late in the first half."""
    counted = {"scrapes": 5.0, "requests": 1500.0, "generation_tokens": 90_000.0, "running": 10.0, "most_running": 16.0}
    buckets = {
        latency: {bound: {at: 1500.0 - (bad if at < STEPS[6] else 0.0) for at in STEPS}, "+Inf": _all(1500.0)}
        for latency, bound, bad in (("ttft", "0.5", late), ("tpot", "0.05", slow))
    }
    known = {key: _all(value) for key, value in {**counted, **values}.items()}
    return ServerPast(name, {"pod": name, "model_name": "llama"}, "vllm:", STEPS, 300.0, (), known, buckets)


def _diagnosed(past: ServerPast, capacity: Capacity = KNOWN) -> ServerDiagnosis:
    found = verdict(past, CHAT)
    return ServerDiagnosis(past, found, causes(past, found), capacity)


def _said(*servers: ServerDiagnosis, gone: Sequence[ServerPast] = ()) -> PastDiagnosis:
    return PastDiagnosis("http://p:9090", 3600.0, STEPS[-1], CHAT, worst_first(servers), gone)


# TTFT's time: in the queue or in prefill, and what the rest shows. 1,500 requests of 2 s each.
QUEUED = {"ttft_s": 3000.0, "queue_s": 2700.0, "prefill_s": 300.0}
CAUSES: dict[str, tuple[ServerPast, Sequence[str], str]] = {
    "nothing missed": (_past(), [], ""),
    "all seats taken": (_past(late=750.0, **QUEUED, kv_cache_usage=0.3), ["queue"], "max_num_seqs may be 16"),
    "a full KV cache": (_past(late=750.0, **QUEUED, kv_cache_usage=0.97), ["kv"], "the KV cache was up to 97 % full"),
    "preemptions": (
        _past(late=750.0, **QUEUED, kv_cache_usage=0.97, preemptions=200.0),
        ["kv", "preemptions"],
        "1,200 preemptions with 9,000 requests",
    ),
    "long prompts": (
        _past(late=750.0, ttft_s=3000.0, queue_s=100.0, prefill_s=2700.0, prompt_tokens=6e6),
        ["prefill"],
        "computing prompts of 4,000 tokens took 1800 ms of a mean TTFT of 2000 ms",
    ),
    "neither series": (_past(late=750.0, ttft_s=3000.0), ["unknown"], "its series do not say"),
    "slow tokens": (
        _past(slow=750.0, gaps=90_000.0, gaps_s=5400.0),
        ["decode"],
        "a mean gap of 60.0 ms between tokens",
    ),
    "a GPU that fell off": (replace(_past(late=750.0), gpus=[GpuPast("0", xid=79.0)]), ["gpu"], "GPU 0 had XID 79"),
    "a program's XID": (replace(_past(late=750.0), gpus=[GpuPast("0", xid=31.0)]), [], ""),
    "a hot GPU": (
        replace(_past(late=750.0), gpus=[GpuPast("0", throttled_for_heat=0.3)]),
        ["gpu"],
        "throttled for heat 30 % of the time",
    ),
    "an engine with all the load": (
        replace(_past(late=750.0), parts={**_past(late=750.0).parts, "engine_running": {"0": _all(20), "1": _all(4)}}),
        ["imbalance"],
        "engine 0 had 20 requests running or waiting, the others 4",
    ),
}


@pytest.mark.parametrize("case", CAUSES)
def test_why_users_waited(case: str) -> None:
    past, keys, words = CAUSES[case]
    found = causes(past, verdict(past, CHAT))
    assert [one.key for one in found] == keys
    assert words in " ".join(one.words for one in found)
    assert all(one.change for one in found)


def test_the_verdict_comes_first_then_the_worst_and_one_table() -> None:
    bad = _past("bad", late=750.0, **QUEUED, kv_cache_usage=0.3)
    lines = past_words(_said(_diagnosed(_past("good")), _diagnosed(bad), _diagnosed(_past("new"), NONE))).splitlines()
    assert lines[0].startswith(
        "3 vLLM servers, healthy for users in the 1h to 2027-01-15 08:55:00 UTC: 1 not, 2 healthy."
    )
    assert lines[2] == (
        "bad (llama): TTFT missed in 30 minutes, last at 2027-01-15 08:25:00 UTC (25 % of requests late)"
    )
    assert lines[3].startswith("  queue: requests waited 1800 ms of a mean TTFT of 2000 ms, while 16 ran")
    table = lines.index(next(line for line in lines if line.startswith("server ")))
    assert lines[table + 1].split() == ["bad", "no", "queue", "5", "10", "(9", "to", "11)", "50", "%"]
    assert [line.split()[0] for line in lines[table + 1 : table + 4]] == ["bad", "good", "new"]
    assert "No capacity for new: not enough evidence: few scrapes." in lines


def test_replicas_that_are_alike_are_explained_once() -> None:
    alike = [_diagnosed(_past(f"r-{i}", late=750.0, **QUEUED, kv_cache_usage=0.3)) for i in range(3)]
    text = past_words(_said(*alike))
    assert text.count("requests waited") == 1
    assert "r-0 (llama), the worst of 3 replicas alike: TTFT missed" in text


def test_a_fleet_says_its_peak_and_who_has_more_than_the_others() -> None:
    servers = [_diagnosed(_past(name, running=load)) for name, load in (("a", 40.0), ("b", 5.0), ("c", 5.0))]
    (fleet,) = _said(*servers).fleets
    assert (fleet.peak_rps, fleet.capacity_rps) == (15.0, 30.0)
    line = next(line for line in past_words(_said(*servers)).splitlines() if line.startswith("Fleet llama: "))
    assert "peak 15 of 30 requests/s, headroom 50 %, unbalanced: a had 40 requests running or waiting" in line


def test_a_drained_replica_is_no_imbalance() -> None:
    """Nor is one that computes prompts only: hardly any of the tokens are its."""
    busy, other = _past("a", running=40.0), _past("b", running=0.0, generation_tokens=10.0)
    (fleet,) = _said(_diagnosed(busy), _diagnosed(other)).fleets
    assert fleet.imbalance is None


def test_the_capacity_of_a_fleet_is_unknown_if_one_is() -> None:
    (fleet,) = _said(_diagnosed(_past("a")), _diagnosed(_past("b"), NONE)).fleets
    assert fleet.capacity_rps is None


def _only(past: ServerPast, key: str, values: Mapping[float, float]) -> ServerPast:
    return replace(past, values={**past.values, key: values})


LACKING: dict[str, tuple[ServerPast, str]] = {
    "its series begin later": (
        _only(_past(), "scrapes", dict.fromkeys(STEPS[6:], 5.0)),
        "known since 2027-01-15 08:25",
    ),
    "a gap": (
        _only(_past(), "scrapes", {at: 5.0 for at in STEPS if at not in STEPS[3:6]}),
        "no scrapes for 15 minutes in between",
    ),
    "failed scrapes": (_only(_past(), "up", _all(0.9)), "10 % of the scrapes failed"),
    "no histogram": (replace(_past(), parts={}), "TTFT: no histogram with a bound at or above 500 ms"),
    "a router": (
        ServerPast("r", {"job": "r"}, "vllm:", STEPS, 300.0, (), {"scrapes": _all(5.0)}),
        "none of vLLM's counters: the page of a router",
    ),
}


@pytest.mark.parametrize("case", LACKING)
def test_what_is_missing_is_said(case: str) -> None:
    past, words = LACKING[case]
    assert words in " ".join(_diagnosed(past).lacking)


def test_a_lower_bound_is_no_headroom_that_is_known() -> None:
    one = _diagnosed(_past(), Capacity("forecast", 10.0, 9.0, None, 1000.0))
    text = past_words(_said(one))
    assert "≥ 10" in text
    assert "≥ 50 %" in text
    said = past_json(_said(one))["servers"][0]
    assert (said["headroom_at_peak"], said["headroom_is_lower_bound"]) == (0.5, True)


def test_the_json_has_all_of_it() -> None:
    bad = _past("bad", late=750.0, **QUEUED, kv_cache_usage=0.3)
    found: dict[str, Any] = json.loads(json.dumps(past_json(_said(_diagnosed(bad), gone=[_past("old")]))))
    (one,) = found["servers"]
    assert found["is_healthy"] is False
    assert (one["health"], one["causes"][0]["cause"]) == ("no", "queue")
    assert one["objectives"]["ttft"]["missed_seconds"] == 1800
    assert one["objectives"]["ttft"]["late"] == 4500
    assert [each["name"] for each in found["gone"]] == ["old"]


def test_no_server_that_reports_is_said() -> None:
    text = past_words(_said(gone=[_past("old")]))
    assert "none reports now" in text
    assert "No longer reporting: old" in text


def test_texts_of_labels_are_one_line_without_control_characters() -> None:
    past = replace(_past(late=750.0, **QUEUED), name="a\x1b[31m\nb")
    assert "\x1b" not in past_words(_said(_diagnosed(past)))
