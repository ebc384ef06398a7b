"""What a figure holds for: the same server, workload and promises have the same fingerprint, and others another."""

from dataclasses import asdict, replace

import pytest
from example_records import CHAT, no_knee, result
from hypothesis import given
from hypothesis import strategies as st

from probe.capacity.trend.fingerprint import as_number, capacity_sample, fingerprint, from_number, parts
from probe.core.request import Api
from probe.core.result import RunContext, Stopped
from probe.core.workload import LognormalLength, Workload
from probe.report.result_json import dumps, loads

CONTEXT = RunContext(
    workload=asdict(Workload("short", Api.COMPLETIONS, LognormalLength(3000, 0.4, 8000), 128)),
    objectives=asdict(CHAT),
    engine="vllm",
    version="0.32.0",
    gpu="NVIDIA H100",
    flags={"block_size": "16", "cache_dtype": "auto"},
)


def test_the_parts_are_named_and_whole() -> None:
    assert parts("m", CONTEXT) == {
        "model": "m",
        "engine": "vllm",
        "version": "0.32.0",
        "gpu": "NVIDIA H100",
        "flags.block_size": "16",
        "flags.cache_dtype": "auto",
        "workload.api": "completions",
        "workload.prompt_tokens.median": "3000",
        "workload.prompt_tokens.sigma": "0.4",
        "workload.prompt_tokens.maximum": "8000",
        "workload.output_tokens": "128",
        "workload.shared_tokens": "0",
        "objectives.availability": "0.999",
        "objectives.ttft.ratio": "0.95",
        "objectives.ttft.within_s": "0.5",
        "objectives.tpot.ratio": "0.95",
        "objectives.tpot.within_s": "0.05",
    }


def test_it_is_short_and_the_same_in_every_process() -> None:
    assert fingerprint("m", CONTEXT) == "20575dbf7cfe"


@pytest.mark.parametrize(
    "changed",
    [
        {"engine": "sglang"},
        {"version": "0.33.0"},
        {"gpu": None},
        {"flags": {"block_size": "32", "cache_dtype": "auto"}},
        {"flags": {}},
        {"workload": {**CONTEXT.workload, "output_tokens": 129}},
        {"objectives": {**CONTEXT.objectives, "ttft": {"ratio": 0.95, "within_s": 0.4}}},
    ],
    ids=["engine", "version", "gpu", "flag", "no flags", "workload", "objective"],
)
def test_what_matters_changes_it(changed: dict[str, object]) -> None:
    assert fingerprint("m", replace(CONTEXT, **changed)) != fingerprint("m", CONTEXT)  # type: ignore[arg-type]
    assert fingerprint("n", CONTEXT) != fingerprint("m", CONTEXT)


@pytest.mark.parametrize(
    "changed",
    [
        {"workload": {**CONTEXT.workload, "name": "renamed"}},
        {"workload": dict(reversed(CONTEXT.workload.items()))},
        {"objectives": {**CONTEXT.objectives, "name": "renamed", "window_s": 86400.0}},
        {"flags": {"cache_dtype": "auto", "block_size": "16"}},
    ],
    ids=["workload's name", "order", "objectives' name and window", "order of flags"],
)
def test_names_windows_and_order_do_not(changed: dict[str, object]) -> None:
    assert fingerprint("m", replace(CONTEXT, **changed)) == fingerprint("m", CONTEXT)  # type: ignore[arg-type]


def test_it_survives_the_store() -> None:
    """A result of this run and one read from a file have to be alike: enumerations, tuples and numbers become JSON."""
    one = replace(result(), context=CONTEXT)
    assert capacity_sample(loads(dumps(one))) == capacity_sample(one)


def test_a_result_is_a_sample_if_it_found_a_knee() -> None:
    found = capacity_sample(result(started_s=1000.0))
    assert found is not None
    assert (found.at_s, found.requests_per_second, found.lower, found.upper) == (1000.0, 10.0, 10.0, 12.5)
    assert (found.mode, found.confirms) == ("empirical", False)
    assert capacity_sample(result(capacity=no_knee())) is None
    assert capacity_sample(result(stopped=Stopped("interrupt"))) is None
    again = capacity_sample(replace(result(), confirms="the one before"))
    assert again is not None
    assert again.confirms


@given(st.text("0123456789abcdef", min_size=12, max_size=12))
def test_as_a_number_it_is_exact(digest: str) -> None:
    """Samples of Prometheus are doubles, and its text has 17 digits."""
    assert from_number(float(repr(as_number(digest)))) == digest


@pytest.mark.parametrize("value", [-1.0, 0.5, float("nan"), float("inf"), 2.0**60])
def test_a_number_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="fingerprint"):
        from_number(value)
