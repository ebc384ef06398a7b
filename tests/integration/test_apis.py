"""Every API on the mock server: the same stamps for the same timings, and commands for answers without tokens."""

import asyncio
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kneewatch_command import kneewatch, measured
from monitor import Monitor, Sim
from process import eventually

from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.core import latency
from probe.core.clock import SystemClock
from probe.core.request import Api, Outcome, RequestRecord, Traffic
from probe.core.workload import Workload, requests

STREAMS = [api for api in Api if api.generates]
ROUNDS, TOKENS = 6, 12
APART = 1.8  # a first event that is no token is 5 to 20 times earlier; a busy machine moves medians by less


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    """Run the mock server with an embedding model."""
    with Sim(tmp_path_factory.mktemp("embeddings"), "tiny", "--embeddings") as server:
        yield server


async def interleaved(url: str) -> dict[Api, list[RequestRecord]]:
    """Send requests of each API in turn, one at a time, so that all meet the same moments of the machine."""
    clock, found = SystemClock(), {api: list[RequestRecord]() for api in STREAMS}
    specs = {api: requests(Workload("w", api, 64, TOKENS)) for api in STREAMS}
    async with Client(Endpoint("sim", url), clock, 20.0) as client:
        for _ in range(ROUNDS):
            for api in STREAMS:
                found[api].append(
                    await client.send(next(specs[api]), "mock-model", Traffic.ONDEMAND, clock.monotonic_ns())
                )
    return found


@pytest.mark.alone
def test_the_same_timings_have_the_same_stamps_in_every_stream(tiny: Sim) -> None:
    found = asyncio.run(interleaved(tiny.base_url))
    for api, records in found.items():
        assert {(r.outcome, r.detail) for r in records} == {(Outcome.OK, None)}, api
        assert all(list(r.events.tokens) == [1] * TOKENS for r in records), api
        assert all(r.output_tokens == TOKENS and r.finish_reason == "length" for r in records), api
    for of in (latency.ttft_s, latency.tpot_s, latency.e2e_s):
        medians = {api: statistics.median(of(r) or 0.0 for r in records) for api, records in found.items()}
        for api in STREAMS:
            ratio = medians[api] / medians[Api.COMPLETIONS]
            assert 1 / APART < ratio < APART, (of.__name__, api, medians)


def test_check_of_an_embedding_model(embeddings: Sim) -> None:
    done = measured("check", "--base-url", embeddings.base_url, "--api", "embeddings")
    assert done.status == 0, done.out + done.err
    assert "(mock-model): ok, every objective met; E2E " in done.out
    assert ", 256 tokens (objectives: availability 99.9 %, E2E ≤ 500 ms for 95 %)" in done.out.replace("\n", " ")
    assert "TTFT" not in done.out


def test_check_says_which_api_an_embedding_model_has(embeddings: Sim) -> None:
    done = kneewatch("check", "--base-url", embeddings.base_url)
    assert done.status == 2
    assert done.err.endswith(
        ": has no API for completions, and answers embeddings; use --api embeddings (in a configuration: a workload"
        " with api: embeddings, and objectives with e2e alone)\n"
    )
    assert done.err.count("\n") == 1


def test_a_search_for_vectors_is_refused_in_one_line() -> None:
    done = kneewatch("ramp", "--base-url", "http://127.0.0.1:9", "--api", "embeddings")
    assert done.status == 2
    assert done.err == (
        "kneewatch: a search models generated tokens, and api embeddings has none; add --rates or --concurrency (in a"
        " configuration: capacity.rates or capacity.concurrency)\n"
    )


@pytest.mark.long
def test_fixed_rates_of_embeddings_are_judged_by_e2e(embeddings: Sim, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    done = kneewatch(
        *("ramp", "--base-url", embeddings.base_url, "--api", "embeddings", "--prompt-tokens", "64", "--e2e", "2s"),
        *("--rates", "10,20", "--requests-per-step", "24", "--confirm-seconds", "0", "--json", file),
    )
    assert done.status == 0, done.out + done.err
    assert "output tokens/s" not in done.out
    result = json.loads(file.read_text())
    assert result["capacity"]["requests_per_second"] == pytest.approx(20, rel=0.5)
    for step in result["steps"]:
        assert (step["valid"], step["good_ratio"]["e2e"]) == (True, 1.0)
        assert step["e2e_s"]["count"] >= 20
        assert (step["ttft_s"]["count"], step["tpot_s"]["count"], step["output_tokens_per_second"]) == (0, 0, 0)
        assert step["prompt_tokens_per_second"] == pytest.approx(64 * step["throughput_rps"], rel=0.3)


def test_a_monitor_watches_vectors_and_counts_none_as_users(embeddings: Sim, tmp_path: Path) -> None:
    config: dict[str, object] = {
        "objectives": {"vectors": {"availability": 0.99, "e2e": {"ratio": 0.9, "within": "5s"}}},
        "workloads": {"vector": {"api": "embeddings", "prompt_tokens": 32}},
        "targets": [
            {
                "name": "e",
                "base_url": embeddings.base_url,
                "scrape": "1s",
                "objectives": "vectors",
                "request": {"vector_length": 64},
                "canary": {"every": "1s", "workload": "vector"},
            }
        ],
    }
    labels = '{target="e",model="mock-model",workload="vector",traffic="canary"'
    with Monitor(config, tmp_path) as monitor:
        ok = f'kneewatch_requests_total{labels},outcome="ok"}} '
        eventually(
            lambda: any(
                line.startswith(ok) and float(line.split()[-1]) >= 3 for line in monitor.page("/metrics").split("\n")
            ),
            within_s=60,
            what="three canaries",
        )
        page = monitor.page("/metrics").splitlines()
        status = json.loads(monitor.page("/api/v1/targets/e"))
        assert "E2E of the last" in monitor.page("/targets/e")
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in page if line and line[0] != "#"}
    assert values[f'kneewatch_good_requests_total{labels},objective="e2e"}}'] >= 3
    assert not [name for name in values if name.startswith("kneewatch_good_requests_total") and '"ttft"' in name]
    assert values[f"kneewatch_e2e_seconds_count{labels}}}"] >= 3
    assert values.get(f"kneewatch_ttft_seconds_count{labels}}}", 0.0) == 0.0
    assert not [v for name, v in values.items() if name.startswith("kneewatch_user_requests_total") and v]
    assert all(each["outcome"] == "ok" and each["ttft_s"] is None and each["e2e_s"] for each in status["canaries"])


@pytest.mark.long
def test_doctor_of_an_embedding_model_says_so(embeddings: Sim, tmp_path: Path) -> None:
    file = tmp_path / "kneewatch.yml"
    done = measured("doctor", "--base-url", embeddings.base_url, "--seconds", "15", "--write", file)
    assert done.status == 0, done.out + done.err
    assert "API:        embeddings: it generates no text, so latency is E2E, and nothing is forecast" in done.out
    assert "Healthy:    yes: 3 of 3 canaries met every objective" in done.out
    assert kneewatch("config", "check", "-c", file).status == 0
    assert yaml.safe_load(file.read_text())["workloads"] == {"embeddings": {"api": "embeddings", "prompt_tokens": 256}}
