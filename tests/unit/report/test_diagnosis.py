"""The diagnosis of one server in words and JSON, and when it counts as healthy."""

import json
from dataclasses import replace

from example_records import result, status
from plain_records import failure, poll, record

from probe.core.request import Outcome
from probe.core.result import Capacity
from probe.core.snapshot import UserLoad, UserTotals
from probe.observe.kv_size import KvSize
from probe.report.diagnosis import Diagnosis, diagnosis_json, diagnosis_markdown, diagnosis_words
from probe.report.setting_findings import RequestLengths

FLAGS = {"max_num_seqs": "64"}


def _diagnosis(**changes: object) -> Diagnosis:
    healthy = replace(status(), recent=(record(),), server=poll(), forecast=None, users=UserLoad(1.5, 30.0))
    return Diagnosis(
        status=replace(healthy, **changes),  # type: ignore[arg-type]
        users=UserTotals(60.0, 6000.0, 1200.0),
        seconds=40.0,
        flags=FLAGS,
        flag_sources=dict.fromkeys(FLAGS, "process"),
        lengths=RequestLengths(60.0, 100.0, 20.0, is_recent=True),
    )


def test_a_healthy_server() -> None:
    words = diagnosis_words(_diagnosis())
    assert "Healthy:    yes: 1 of 1 canaries met every objective" in words
    assert "max_num_seqs=64 (process)" in words
    assert "Unknown:    max_num_batched_tokens and kv_cache_tokens: there is no forecast; set them below" in words
    assert "Users:      1.5 requests/s, 30 output tokens/s; 100 + 20 tokens in an average request" in words
    assert "Capacity" not in words


def test_the_size_of_the_kv_cache_is_shown_in_tokens_and_where_it_is_known_in_gib() -> None:
    server = poll(kv_cache_tokens=1_640_750.0)
    assert "KV cache:   1,640,750 tokens\n" in diagnosis_words(_diagnosis(server=server))
    known = replace(server, others={**server.others, "kv_cache_bytes": float(3 << 30)})
    found = _diagnosis(server=known)
    assert "KV cache:   1,640,750 tokens, 3 GiB on each GPU\n" in diagnosis_words(found)
    assert (diagnosis_json(found)["kv_cache_tokens"], diagnosis_json(found)["kv_cache_bytes"]) == (1_640_750, 3 << 30)
    assert "KV cache" not in diagnosis_words(_diagnosis(server=poll(kv_cache_tokens=None)))
    learnt = replace(found, kv=KvSize(600_000.0, 600_000.0, 1_640_750.0, 9_852_512.0, is_learnt=True))
    assert "3 GiB on each GPU; the KV cache has room for about 600,000 tokens of such requests (" in diagnosis_words(
        learnt
    )


def test_a_forecast_and_the_headroom_that_it_leaves() -> None:
    found = Capacity("forecast", 3.0, 2.5, 3.5, limiting="tpot", bottleneck="weights", reason="experimental")
    words = diagnosis_words(_diagnosis(forecast=result(capacity=found)))
    assert "Capacity:   3 requests/s (2.5 to 3.5) of workload " in words
    assert "Headroom:   50 % of the capacity for workload short: users send 1.5 requests/s; forecast" in words
    assert "Limited by: tpot" in words
    assert "Bottleneck: weights;" in words
    none = Capacity("forecast", reason="not enough evidence")
    quiet = diagnosis_words(_diagnosis(forecast=result(capacity=none)))
    assert "Capacity:   unknown: not enough evidence; `kneewatch ramp` measures it" in quiet


def test_users_have_a_capacity_of_their_own_and_headroom_is_of_that() -> None:
    named = result(capacity=Capacity("forecast", 3.0, 2.5, 3.5, reason="experimental"))
    users = replace(named.context, workload={"name": "users", "prompt_tokens": 900, "output_tokens": 20})
    found = replace(
        _diagnosis(forecast=named),
        for_users=replace(named, context=users, capacity=replace(named.capacity, requests_per_second=2.0)),
    )
    words = diagnosis_words(found)
    assert "Capacity:   3 requests/s (2.5 to 3.5) of workload short" in words
    assert "For users:  2 requests/s (2.5 to 3.5) of workload users (900 + 20 tokens); forecast" in words
    assert "Headroom:   25 % of the capacity for workload users: users send 1.5 requests/s" in words
    told = diagnosis_json(found)
    assert (told["capacity"]["workload"], told["capacity_for_users"]["workload"]) == ("short", "users")
    unknown = replace(named, context=users, capacity=Capacity("forecast", reason="not enough evidence"))
    words = diagnosis_words(replace(found, for_users=unknown))
    assert "For users:  unknown: not enough evidence; `kneewatch ramp --workload users` measures it" in words
    words = diagnosis_words(replace(found, for_users=replace(unknown, context=named.context)))
    assert "For users:  unknown: not enough evidence\n" in words  # nor could a run send what is not known
    assert "Headroom:   50 % of the capacity for workload short" in words
    assert "For users" not in diagnosis_words(replace(found, for_users=None))


def test_without_a_queue_on_its_page_a_server_is_measured_by_the_stream() -> None:
    none = result(capacity=Capacity("forecast", reason="not enough evidence"))
    for server in (None, poll(waiting=None)):
        words = diagnosis_words(_diagnosis(forecast=none, server=server))
        assert "`kneewatch ramp --stream-guard` measures it by load guarded by its own answers" in words


def test_one_failed_canary_is_not_healthy_and_is_the_one_that_is_shown() -> None:
    failed = failure(detail="HTTP 500")
    found = _diagnosis(recent=(record(), failed, record()))
    assert not found.is_healthy
    assert "Healthy:    no: 2 of 3" in diagnosis_words(found)
    assert "HTTP 500" in diagnosis_words(found)


def test_a_server_without_metrics() -> None:
    found = _diagnosis(server=None, server_error="no metrics of a server (404)", users=None)
    words = diagnosis_words(found)
    assert "its metrics cannot be read: no metrics of a server (404)" in words
    assert "Users:      unknown" in words
    assert diagnosis_json(found)["metrics_error"] == "no metrics of a server (404)"


def test_limits_are_known_from_the_plugin_and_below_a_lower_one() -> None:
    server = poll(kv_cache_tokens=1e6)
    assert "Unknown:    max_num_batched_tokens: a forecast may" in diagnosis_words(_diagnosis(server=server))
    shown = replace(server, scheduler_limits={"max_num_seqs": 256, "max_num_batched_tokens": 2048})
    assert "Unknown" not in diagnosis_words(_diagnosis(server=shown))
    small = replace(shown, kv_cache_tokens=1000.0)
    assert "room for 9 requests of the mean length, and max_num_seqs is 256" in diagnosis_words(
        _diagnosis(server=small)
    )
    default = replace(_diagnosis(server=server), flags={"max_num_seqs": "default", "max_num_batched_tokens": "2048"})
    sources = dict.fromkeys(default.flags, "pod")
    assert replace(default, flag_sources=sources).missing_limits == ["max_num_seqs"]
    lowered = {**default.flags, "max_num_active_seqs": "64"}
    assert replace(default, flags=lowered, flag_sources=dict.fromkeys(lowered, "pod")).missing_limits == []


def test_json_has_what_the_words_have() -> None:
    found = json.loads(json.dumps(diagnosis_json(_diagnosis())))
    assert found["is_healthy"] is True
    assert found["flags"] == {"max_num_seqs": {"value": "64", "source": "process"}}
    assert found["missing_flags"] == ["max_num_batched_tokens", "kv_cache_tokens"]
    assert found["users"]["mean_prompt_tokens"] == 100
    assert found["canaries"][0]["met"]["all"] is True
    assert found["capacity"]["requests_per_second"] is None


def test_a_ticket_has_the_same_lines_as_a_table() -> None:
    found = _diagnosis(model="a|b<script>")
    lines = diagnosis_markdown(found).splitlines()
    assert lines[0].startswith("**Kneewatch examined http")
    assert lines[2:4] == ["|  | found |", "| --- | --- |"]
    labels = [line.split(" | ")[0].removeprefix("| ") for line in lines[4:]]
    assert labels == [line.partition(":")[0] for line in diagnosis_words(found).splitlines()]
    assert "serves a\\|b&lt;script>" in lines[4]


def test_canaries_that_this_machine_was_too_late_for_are_no_verdict_on_the_server() -> None:
    late = record(outcome=Outcome.CLIENT_BOUND, detail="up to 178 ms late")
    unknown = _diagnosis(recent=(late, late))
    words = "0 of 2 canaries met every objective, and Kneewatch itself was too late to judge 2; run it on a quieter"
    assert f"Healthy:    unknown: {words} machine" in diagnosis_words(unknown)
    assert "max_num_seqs=64 (process)" in diagnosis_words(unknown)
    assert (unknown.is_judged, diagnosis_json(unknown)["is_healthy"]) == (False, None)
    one = _diagnosis(recent=(late, record()))
    assert "Healthy:    yes: 1 of 2 canaries met every objective, and Kneewatch itself was" in diagnosis_words(one)
    assert not _diagnosis(recent=(late, failure())).is_healthy
