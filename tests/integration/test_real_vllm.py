"""`kneewatch check` and `kneewatch run` beside the real vLLM: both APIs, user traffic, and GPU metrics.

The page of dcgm-exporter was recorded elsewhere: there is no GPU here.
"""

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml
from kneewatch_command import kneewatch, measured
from monitor import Monitor
from process import eventually
from real_vllm import MODEL, QUEUE, RealVllm
from stub_server import stub_server

from probe.client.api_request import RequestShape
from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.core import latency
from probe.core.clock import SystemClock
from probe.core.request import Api, Outcome, RequestRecord, RequestSpec, Traffic
from probe.core.snapshot import ServerSnapshot
from probe.observe import server_latencies
from probe.observe.distance import UNKNOWN
from probe.scrape.metrics_parser import samples
from probe.scrape.vllm import ENGINE

pytestmark = pytest.mark.vllm

DCGM = (Path(__file__).parents[1] / "pages/gpu/dcgm-4.1-kubernetes.prom").read_text()
USERS = 5


@pytest.fixture
def monitor(vllm: RealVllm, tmp_path: Path) -> Iterator[Monitor]:
    vllm.settled_metrics()
    with stub_server(200, DCGM) as dcgm:
        one = {
            "name": "joined",
            "base_url": vllm.base_url,
            "scrape": "1s",
            "canary": {"every": "4s", "workload": "short", "timeout": "5s"},
            "gpu": {"dcgm_urls": [f"{dcgm}/metrics"], "every": "1s"},
        }
        other = {"name": "quiet", "base_url": vllm.base_url, "passive": True, "scrape": "1s"}
        config: dict[str, object] = {
            "workloads": {"short": {"prompt_tokens": 32, "output_tokens": 8}},
            "targets": [one, other],
        }
        with Monitor(config, tmp_path) as running:
            yield running


def _value(monitor: Monitor, series: str) -> float | None:
    found = re.search(rf"^{re.escape(series)} (\S+)$", monitor.page("/metrics"), re.MULTILINE)
    return float(found[1]) if found else None


def _ask(vllm: RealVllm, tokens: int, prompt_tokens: int = 3) -> None:
    body = {"model": MODEL, "prompt": [7 + prompt_tokens] * prompt_tokens, "max_tokens": tokens, "ignore_eos": True}
    httpx.post(f"{vllm.base_url}/v1/completions", json=body, timeout=60, trust_env=False).raise_for_status()


def _status(vllm: RealVllm, **body: object) -> int:
    """Send a completion with these differences, and return the answer's status."""
    asked = {"model": MODEL, "prompt": [7, 8, 9], "max_tokens": 4, **body}
    return httpx.post(f"{vllm.base_url}/v1/completions", json=asked, timeout=60, trust_env=False).status_code


def _leave(vllm: RealVllm) -> None:
    """Begin a long answer, and leave after its first token."""
    body = {"model": MODEL, "prompt": [7, 8, 9], "max_tokens": 900, "ignore_eos": True, "stream": True}
    with (
        httpx.Client(trust_env=False, timeout=60) as client,
        client.stream("POST", f"{vllm.base_url}/v1/completions", json=body) as answer,
    ):
        next(answer.iter_lines())


async def _sent(vllm: RealVllm, api: Api, **extra: object) -> RequestRecord:
    """Send a canary of four tokens with these further fields."""
    clock = SystemClock()
    prompt = (7, 8, 9) if api is Api.COMPLETIONS else "hello"
    what = RequestSpec("short", api, prompt, prompt_tokens=3, output_tokens=4)
    async with Client(Endpoint("tiny", vllm.base_url, shape=RequestShape(extra=extra)), clock, 60.0) as client:
        return await client.send(what, MODEL, Traffic.CANARY, clock.monotonic_ns())


def _sent_until(
    vllm: RealVllm, api: Api, shows: Callable[[RequestRecord], object], what: str, **extra: object
) -> Iterator[RequestRecord]:
    """Send canaries until one is as `shows` says; yield each.

    On a busy machine one read may hold the head and the first tokens, and vLLM sends in one event what it could not
    send before. Both are right, but show less of the times.
    """
    for _ in range(30):
        record = asyncio.run(_sent(vllm, api, **extra))
        assert (record.outcome, record.detail) == (Outcome.OK, None)
        yield record
        if shows(record):
            return
    raise AssertionError(f"in none of 30 answers: {what}")


@pytest.mark.parametrize("api", [Api.COMPLETIONS, Api.CHAT])  # the other APIs' answers do not have them
def test_a_record_has_the_times_that_the_server_measured(vllm: RealVllm, api: Api) -> None:
    record = list(_sent_until(vllm, api, latency.ttft_parts_s, "a first token that was not held back"))[-1]
    parts = latency.ttft_parts_s(record)
    assert min(parts["prefill"], parts["outside"]) > 0
    before_sending_s = (record.sent_ns - record.scheduled_ns) * 1e-9
    assert sum(parts.values()) + before_sending_s == pytest.approx(latency.ttft_s(record))


def _tokens_came_apart(record: RequestRecord) -> bool:
    return len(set(record.events.at_ns)) == len(record.events.at_ns) == record.output_tokens


@pytest.mark.parametrize("api", [Api.COMPLETIONS, Api.CHAT])
def test_an_answer_of_special_tokens_is_ok_with_the_times_of_its_tokens(vllm: RealVllm, api: Api) -> None:
    """Token 0 is the end of the text, which vLLM leaves out: with `ignore_eos` the model says it to the end."""
    for record in _sent_until(vllm, api, _tokens_came_apart, "four events in four reads", logit_bias={"0": 100}):
        events = record.events
        assert (record.output_tokens, sum(events.tokens), events.first_visible) == (4, 4, None)
    assert list(events.tokens) == [1, 1, 1, 1]
    ttft_s, e2e_s = latency.ttft_s(record), latency.e2e_s(record)
    assert ttft_s is not None
    assert e2e_s is not None
    assert ttft_s < e2e_s
    assert latency.tpot_s(record) == pytest.approx((e2e_s - ttft_s) / 3)


def test_an_answer_whose_special_tokens_have_no_events_is_ok_by_its_usage(vllm: RealVllm) -> None:
    """The Responses API sends nothing for them until the answer ends."""
    record = asyncio.run(_sent(vllm, Api.RESPONSES, logit_bias={"0": 100}))
    assert (record.outcome, record.detail, list(record.events.tokens)) == (Outcome.OK, None, [4])
    assert latency.tpot_s(record) is None


def _waited_s(vllm: RealVllm) -> float:
    """Return for how long (s) the server's thread that sends answers, and this one, could have run and did not."""
    threads = ("/proc/thread-self", f"/proc/{vllm.pid}")
    return sum(int(Path(thread, "schedstat").read_text().split()[1]) for thread in threads) * 1e-9


def _has_a_head_of_its_own(record: RequestRecord) -> bool:
    return record.wire is not None and record.wire.head_ns is not None


@pytest.mark.parametrize("api", [Api.COMPLETIONS, Api.CHAT])
def test_the_server_measured_what_the_record_says_it_may_have(vllm: RealVllm, api: Api) -> None:
    """By its histograms' sums, while nobody else asks.

    For how long the kernel let the server's thread and this one wait for a core is not the record's to say.
    """
    answers = (
        record
        for _ in range(3)
        for record in _sent_until(vllm, api, _has_a_head_of_its_own, "a head before the first token")
    )
    before, waited_before_s = _settled_page(vllm), _waited_s(vllm)
    for record in answers:
        waited_s = _waited_s(vllm) - waited_before_s
        after = _settled_page(vllm)
        for key, of_client in (("ttft", server_latencies.ttft), ("e2e", server_latencies.e2e)):
            new, old = after.histograms[key], before.histograms[key]
            assert new.count - old.count == 1
            least, most = of_client(record, UNKNOWN)
            assert least - waited_s <= new.sum - old.sum <= most + waited_s, key
            if _has_a_head_of_its_own(record):
                late_s = record.events.late_ns[0 if key == "ttft" else -1] * 1e-9
                assert most - least < 0.03 + late_s, "with a head of its own it is nearly exact"
        before, waited_before_s = after, _waited_s(vllm)


def test_probe_traffic_is_distinguished_from_user_traffic(vllm: RealVllm, monitor: Monitor) -> None:
    users = 'kneewatch_users_requests_total{target="joined",outcome="ok"}'
    eventually(
        lambda: _value(monitor, 'kneewatch_server_counted_tokens_ratio{target="joined",kind="output"}') is not None,
        within_s=180,
        what="an account of both sides",
    )
    eventually(lambda: _value(monitor, users) == 0, within_s=30, what="user traffic that is known")
    for kind in ("prompt", "output"):
        assert _value(monitor, f'kneewatch_server_counted_tokens_ratio{{target="joined",kind="{kind}"}}') == 1.0
    matched = 'kneewatch_ttft_gap_seconds{target="joined",method="matched"}'
    eventually(lambda: _value(monitor, matched) is not None, within_s=60, what="a gap between both sides")
    assert 0 < (_value(monitor, matched) or 0) < 0.5, "on one machine, between one process and the next"
    for _ in range(USERS):
        _ask(vllm, 4)
    eventually(lambda: _value(monitor, users) == USERS, within_s=30, what=f"{USERS} requests of users")
    # Tokens are known later than requests where a canary was in flight.
    tokens = 'kneewatch_users_tokens_total{target="joined",kind="output"}'
    eventually(lambda: _value(monitor, tokens) == 4 * USERS, within_s=30, what="their tokens")
    tpots = 'kneewatch_users_tpot_seconds_count{target="joined"}'
    eventually(lambda: _value(monitor, tpots) == USERS, within_s=30, what="their TPOT")
    same = 'kneewatch_users_requests_total{target="quiet",outcome="ok"}'
    eventually(lambda: _value(monitor, same) == USERS, within_s=10, what="the same by the other target's name")


def test_users_requests_are_counted_by_what_became_of_them(vllm: RealVllm, monitor: Monitor) -> None:
    """The faults of clients are in none. vLLM 0.32 counts a client that leaves nowhere but as an answer of 200."""

    def users() -> tuple[float | None, ...]:
        series = 'kneewatch_users_requests_total{target="quiet",outcome="%s"}'
        return tuple(_value(monitor, series % outcome) for outcome in ("ok", "failed", "aborted"))

    eventually(lambda: users() == (0, 0, 0), within_s=60, what="user traffic that is known")
    assert _status(vllm, n=QUEUE + 1) == 503
    assert _status(vllm, max_tokens=10**6) == 400
    assert _status(vllm, model="another") == 404
    _leave(vllm)
    _ask(vllm, 4)
    eventually(lambda: users()[:2] == (1, 1), within_s=30, what="a request that was answered, and one that was refused")
    assert vllm.settled_metrics()["vllm:num_requests_running"] == 0
    time.sleep(3)  # each target is scraped again
    assert users() == (1, 1, 0)


def test_a_passive_target_gets_no_request_and_shows_its_server(monitor: Monitor) -> None:
    running = 'kneewatch_server_scrape_up{target="quiet"}'
    eventually(lambda: _value(monitor, running) == 1.0, within_s=30, what="a reading of the passive target")
    page = monitor.page("/metrics")
    assert 'kneewatch_requests_total{target="joined"' in page
    assert 'kneewatch_requests_total{target="quiet"' not in page
    assert 'task="canary",target="quiet"' not in page
    assert "no canaries: passive" in monitor.page("/")
    assert "The target is passive, so it gets no canaries." in monitor.page("/targets/quiet")


def test_gpus_stand_beside_the_server_under_their_own_names(monitor: Monitor) -> None:
    name = "kneewatch_gpu_utilization_ratio"
    eventually(lambda: name in monitor.page("/metrics"), within_s=30, what="a reading of the GPUs")
    of_target = [line for line in monitor.page("/metrics").splitlines() if line.startswith(f"{name}{{")]
    assert len(of_target) == DCGM.count("\nDCGM_FI_DEV_GPU_UTIL{")
    assert "\nDCGM_FI_" not in monitor.page("/metrics")
    assert all('target="joined"' in line and 'UUID="GPU-' in line for line in of_target)


@pytest.mark.parametrize("level", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_server_that_sleeps_gets_no_request_and_counts_none_as_failed(
    vllm: RealVllm, monitor: Monitor, level: int
) -> None:
    """On the CPU the memory stays; the scheduler and the metrics are those of any sleep."""
    asleep = 'kneewatch_server_asleep{target="joined"}'
    eventually(lambda: _canaries(monitor, "ok") > 0, within_s=60, what="a good canary")
    eventually(lambda: _value(monitor, asleep) == 0, within_s=30, what="a scrape of the server, which is awake")
    httpx.post(f"{vllm.base_url}/sleep?level={level}", timeout=60, trust_env=False).raise_for_status()
    try:
        eventually(lambda: _value(monitor, asleep) == 1, within_s=30, what="sleep on the page")
        counted, sent = vllm.metrics()["vllm:request_success_total"], _canaries(monitor, "ok")
        time.sleep(10)  # two canaries and a half
        assert vllm.metrics()["vllm:request_success_total"] == counted
        assert vllm.metrics()["vllm:num_requests_waiting"] == 0
        assert _canaries(monitor, "ok") == sent
        assert json.loads(monitor.page("/api/v1/targets/joined"))["state"] == "asleep"
    finally:
        httpx.post(f"{vllm.base_url}/wake_up", timeout=60, trust_env=False).raise_for_status()
    eventually(lambda: _canaries(monitor, "ok") > sent, within_s=60, what="a canary after the sleep")
    eventually(lambda: _value(monitor, asleep) == 0, within_s=30, what="the scrape after it")
    assert json.loads(monitor.page("/api/v1/targets/joined"))["failures"] == []


def _canaries(monitor: Monitor, outcome: str) -> float:
    labels = f'target="joined",model="{MODEL}",workload="short",traffic="canary",outcome="{outcome}"'
    return _value(monitor, f"kneewatch_requests_total{{{labels}}}") or 0.0


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.fault(
    "TR4",
    "An engine that stands still while `/health` says it is well",
    area="Truth",
    users_see="`kneewatch_server_stalled_seconds` grows, and is 0 again afterwards",
    stays="-",
)
def test_an_engine_that_stands_still_is_seen_though_health_says_it_is_well(vllm: RealVllm, monitor: Monitor) -> None:
    stalled = 'kneewatch_server_stalled_seconds{target="joined"}'
    eventually(lambda: _value(monitor, stalled) == 0, within_s=30, what="an engine that does not stall")
    with _stopped(vllm):
        eventually(lambda: (_value(monitor, stalled) or 0) > 10, within_s=60, what="a stall of ten seconds")
        assert httpx.get(f"{vllm.base_url}/health", timeout=5, trust_env=False).status_code == 200
    eventually(lambda: _value(monitor, stalled) == 0, within_s=60, what="an engine that goes on")


@contextmanager
def _stopped(vllm: RealVllm) -> Iterator[None]:
    """Stop the engine in the middle of a request; the API server goes on."""
    engine = _engine(vllm.pid)
    with httpx.Client(trust_env=False, timeout=90) as client:
        body = {"model": MODEL, "prompt": [7, 8, 9], "max_tokens": 900, "ignore_eos": True, "stream": True}
        with client.stream("POST", f"{vllm.base_url}/v1/completions", json=body) as answer:
            events = answer.iter_lines()
            next(events)
            os.kill(engine, signal.SIGSTOP)
            try:
                yield
            finally:
                os.kill(engine, signal.SIGCONT)
            for _ in events:
                pass


def _engine(server: int) -> int:
    """Return the process of vLLM's engine, by its title."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            title = (process / "cmdline").read_bytes()
            group = os.getpgid(int(process.name))
        except OSError:  # it has ended meanwhile
            continue
        if b"EngineCore" in title and group == os.getpgid(server):
            return int(process.name)
    raise AssertionError("vLLM has no process of its own for the engine")


def test_an_address_alone_is_enough_for_a_canary(vllm: RealVllm) -> None:
    done = measured("check", "--base-url", vllm.base_url, "--json")
    assert done.status in (0, 1), done.err  # a busy machine may miss the objectives
    assert MODEL in done.out
    assert '"ok"' in done.out
    json.loads(done.out)


@pytest.mark.parametrize(
    "api",
    ["completions", "chat", *(pytest.param(api, marks=pytest.mark.long) for api in ("responses", "messages"))],
)
def test_a_canary_generates_exactly_the_tokens_it_asked_for(vllm: RealVllm, tmp_path: Path, api: str) -> None:
    config = {
        "workloads": {"probe": {"api": api, "prompt_tokens": 40, "output_tokens": 11}},
        "objectives": {"lenient": {"availability": 0.9}},
        "targets": [{"name": "t", "base_url": vllm.base_url, "objectives": "lenient", "canary": {"workload": "probe"}}],
    }
    file = tmp_path / "kneewatch.yml"
    file.write_text(yaml.safe_dump(config))
    before = vllm.settled_metrics()
    done = kneewatch("check", "-c", file, "--json")
    after = vllm.settled_metrics()
    assert done.status == 0, done.out + done.err
    (answer,) = json.loads(done.out)
    assert answer["output_tokens"] == after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
    # Messages has no ignore_eos. A model of random weights hardly ever ends its text, but may.
    assert answer["output_tokens"] == 11 or (api == "messages" and answer["output_tokens"] < 11)
    assert after["vllm:request_success_total"] - before["vllm:request_success_total"] == 1
    prompt_tokens = after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"]
    if api == "completions":
        assert prompt_tokens == 40
    else:  # the server's own template and tokenizer decide
        assert 20 <= prompt_tokens <= 120


def test_a_question_shows_that_a_model_of_random_weights_makes_no_sense_and_other_canaries_are_not_judged_by_text(
    vllm: RealVllm, tmp_path: Path
) -> None:
    canary = {"every": "1s", "workload": "short"}
    asked = {**canary, "known_answer": {"max_tokens": 32}}
    targets = [
        {"name": name, "base_url": vllm.base_url, "canary": of}
        for name, of in (("asked", asked), ("not-asked", canary))
    ]
    short = {"prompt_tokens": 32, "output_tokens": 8}
    config: dict[str, object] = {"workloads": {"short": short}, "targets": targets}
    with Monitor(config, tmp_path) as monitor:
        series = (
            f'kneewatch_requests_total{{target="%s",model="{MODEL}",workload="short",traffic="canary",outcome="%s"}}'
        )
        corrupt = series % ("asked", "corrupt")
        eventually(lambda: (_value(monitor, corrupt) or 0) >= 3, within_s=60, what="three corrupt answers")
        ok = series % ("not-asked", "ok")
        eventually(lambda: (_value(monitor, ok) or 0) >= 3, within_s=60, what="three canaries")
        # Those that ended while the first question was in flight.
        before, more = _value(monitor, series % ("asked", "ok")), (_value(monitor, corrupt) or 0) + 3
        eventually(lambda: (_value(monitor, corrupt) or 0) >= more, within_s=60, what="three more")
        assert _value(monitor, series % ("asked", "ok")) == before
        assert _value(monitor, series % ("not-asked", "corrupt")) == 0
        assert "the answer to the question" in monitor.output
        assert "capital" not in monitor.output


def _steps_page(vllm: RealVllm) -> ServerSnapshot:
    page = httpx.get(f"{vllm.base_url}/metrics", trust_env=False).text
    return ENGINE.snapshot(samples(page, ENGINE.wanted))


def _settled_page(vllm: RealVllm) -> ServerSnapshot:
    vllm.settled_metrics()
    return _steps_page(vllm)


def test_the_plugin_exports_the_steps_of_the_engine(vllm: RealVllm) -> None:
    vllm.settled_metrics()
    before = _steps_page(vllm)
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda number: _ask(vllm, 40, 60 + 20 * number), range(16))
        eventually(lambda: (_steps_page(vllm).value("oldest_request") or 0) > 0, within_s=20, what="requests in flight")
        list(answers)
    vllm.settled_metrics()
    after = _steps_page(vllm)
    assert (after.value("oldest_request"), after.value("oldest_unanswered")) == (0, 0)
    limits = {"max_num_seqs": 16, "max_num_batched_tokens": 512, "max_model_len": 1024}
    assert limits.items() <= after.scheduler_limits.items()

    def grown(field: str) -> float:
        new, old = (sum(getattr(one, field) for one in each.step_sums.values()) for each in (after, before))
        return new - old

    assert after.generation_tokens is not None
    assert before.generation_tokens is not None
    # All tokens but the first one of each answer are decoded. Steps without a decoding request are left out.
    decoded = after.generation_tokens - before.generation_tokens - 16
    assert grown("decode_tokens") == pytest.approx(decoded, rel=0.05)
    assert 0 < grown("prefill_tokens") <= sum(60 + 20 * number for number in range(16))
    assert grown("requests") >= grown("decode_tokens")
    assert 0 < grown("seconds") / grown("steps") < 1
    assert 0 < grown("kv_tokens") / grown("requests") < 1024

    def by_prompt(key: str) -> dict[str, float]:
        return {bound: value - before.parts(key).get(bound, 0.0) for bound, value in after.parts(key).items()}

    of_length = [60 + 20 * number for number in range(16)]
    short = sum(tokens <= 256 for tokens in of_length)
    assert by_prompt("prompt_requests") == {"256": short, "1024": 16 - short}
    # vLLM's own histograms of the same requests.
    for key, name in (("prompt_queue_seconds", "queue"), ("prompt_prefill_seconds", "prefill")):
        whole = after.histograms[name].sum - before.histograms[name].sum
        assert sum(by_prompt(key).values()) == pytest.approx(whole, rel=1e-6)
