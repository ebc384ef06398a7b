"""`kneewatch forecast --history` and a real Prometheus: one that scraped, and one with a past made in virtual time."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kneewatch_command import Finished, kneewatch
from monitor import Sim
from prometheus_history import make_blocks
from real_prometheus import RealPrometheus

from benchmarks.capacity.cases import CASES
from benchmarks.capacity.truth_file import read
from probe.core.snapshot import ServerSnapshot

pytestmark = pytest.mark.prometheus

# What is asked of the mock server, and what it takes of it: known from long runs in virtual time.
CASE = CASES["llama-8b"]
TRUTH_RPS = read()[CASE.name].truth.rps
LOAD_RPS = 3.0
EVERY_S = (15, 20, 30)


@dataclass(frozen=True)
class Past:
    """A server, and a Prometheus that knows it."""

    server: Sim
    prometheus: RealPrometheus
    folder: Path

    def config(self, **capacity: Any) -> Path:
        """Return a configuration that names the Prometheus with the server's history."""
        file = self.folder / "kneewatch.yml"
        prompt, output = {"median": 256, "sigma": 0.5, "max": 1536}, {"median": 64, "sigma": 0.5, "max": 384}
        target = {
            "name": "a",
            "base_url": self.server.base_url,
            "canary": {"workload": "chat"},
            "capacity": {"server": {"max_num_seqs": CASE.profile.max_num_seqs}, **capacity},
        }
        promised = {"ttft": {"ratio": 0.95, "within": "500ms"}, "tpot": {"ratio": 0.95, "within": "50ms"}}
        config = {
            "prometheus": {"url": self.prometheus.base_url},
            "objectives": {"default": promised},
            "workloads": {"chat": {"prompt_tokens": {"lognormal": prompt}, "output_tokens": {"lognormal": output}}},
            "targets": [target],
        }
        file.write_text(yaml.safe_dump(config))
        return file

    def forecast(self, seconds: str, **capacity: Any) -> Finished:
        return kneewatch("forecast", "-c", self.config(**capacity), "--history", seconds, "--json")


def _capacity(done: Finished) -> dict[str, Any]:
    assert done.status == 0, done.out + done.err
    assert done.err == ""
    found: dict[str, Any] = json.loads(done.out)["capacity"]
    assert found["mode"] == "forecast"
    return found


# A Prometheus that scraped.


@pytest.fixture(scope="module")
def scraped(prometheus_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    """Scrape two servers every second: one with load that was restarted, and an idle one."""
    folder = tmp_path_factory.mktemp("scraped")
    busy, idle = Sim(folder / "busy", "llama-8b"), Sim(folder / "idle", "llama-8b")
    addresses = [f"127.0.0.1:{sim.port}" for sim in (busy, idle)]
    with ExitStack() as held:
        held.enter_context(idle)
        prometheus = held.enter_context(RealPrometheus(prometheus_binary, folder / "prometheus", addresses=addresses))
        past = Past(busy, prometheus, folder)
        with busy:
            _load(past, seconds=4)
        with busy:
            _load(past, seconds=36)
            yield past


def _load(past: Past, seconds: int) -> None:
    """Send requests in an open loop. The exit status of ramp is 1 if it found no knee, which is fine here."""
    options = ("--rates", str(LOAD_RPS), "--step-seconds", str(seconds), "--confirm-seconds", "0", "--no-guard")
    done = kneewatch("ramp", "-c", past.config(), *options)
    assert done.status in (0, 1), done.err


@pytest.mark.long
def test_a_forecast_from_what_was_scraped_is_near_what_the_server_takes(scraped: Past) -> None:
    """Also after a restart, which is in that time."""
    instance = f"127.0.0.1:{scraped.server.port}"
    assert scraped.prometheus.value(f'resets(vllm:generation_tokens_total{{instance="{instance}"}}[5m])') == 1
    done = scraped.forecast("5m")
    found = json.loads(done.out)["capacity"]
    if done.status == 1:  # half a minute of a busy machine may say too little; then the guess stands in the reason
        guess = re.search(r"not enough evidence: ([\d.]+) requests/s, give or take", found["reason"])
        assert guess, found["reason"]
        assert float(guess[1]) == pytest.approx(TRUTH_RPS, rel=0.35)
        return
    assert done.status == 0, done.err
    assert found["requests_per_second"] == pytest.approx(TRUTH_RPS, rel=0.35)
    assert found["learnt_from"][1] == pytest.approx(LOAD_RPS, rel=0.4)


@pytest.mark.long
def test_matchers_of_two_servers_are_refused(scraped: Past) -> None:
    done = scraped.forecast("5m", history='job="kneewatch"')
    assert done.status == 2
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert "several servers have vLLM series" in done.err
    assert f"127.0.0.1:{scraped.server.port}" in done.err


@pytest.mark.long
def test_matchers_of_one_of_them_are_taken(scraped: Past) -> None:
    history = f'job="kneewatch",instance="127.0.0.1:{scraped.server.port}"'
    assert _capacity(scraped.forecast("5m", history=history))["requests_per_second"]


@pytest.mark.long
def test_matchers_of_nothing_are_one_line(scraped: Past) -> None:
    done = scraped.forecast("5m", history='job="nobody"')
    assert (done.status, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert 'no vLLM series match job="nobody"' in done.err


# A Prometheus that scraped as often as is usual.


@pytest.fixture(scope="module")
def remembered(promtool: str, prometheus_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    """Store forty minutes of one server, scraped at several intervals, with load that rises and falls."""
    folder = tmp_path_factory.mktemp("remembered")
    readings = _forty_minutes()
    make_blocks(
        promtool, folder / "prometheus" / "tsdb", [(f"every-{every_s}s", readings[7::every_s]) for every_s in EVERY_S]
    )
    with (
        Sim(folder / "sim", "llama-8b") as server,
        RealPrometheus(prometheus_binary, folder / "prometheus", addresses=[]) as prometheus,
    ):
        yield Past(server, prometheus, folder)


def _forty_minutes() -> list[ServerSnapshot]:
    """Return one snapshot per second for forty minutes, the last one just now."""
    server = CASE.server(5, TRUTH_RPS * 0.5, CASE.workload)
    began_s = time.time() - 2400.0
    readings = []
    for second in range(2400):
        if second % 300 == 0:
            server.set_users(TRUTH_RPS * (0.3, 0.6, 0.45)[second // 300 % 3])
        server.advance(float(second))
        readings.append(replace(server.snapshot(), wall_s=began_s + second))
    return readings


@pytest.mark.long
@pytest.mark.parametrize("every_s", EVERY_S)
def test_scrapes_at_usual_intervals_are_enough(remembered: Past, every_s: int) -> None:
    found = _capacity(remembered.forecast("40m", history=f'instance="every-{every_s}s"'))
    assert found["requests_per_second"] == pytest.approx(TRUTH_RPS, rel=0.15)
    low, high = found["learnt_from"]
    assert 0.15 * TRUTH_RPS < low < high < 0.85 * TRUTH_RPS, "the rates that there were, and no others"


@pytest.mark.long
def test_a_history_of_a_day_is_asked_for_in_coarser_steps(remembered: Past) -> None:
    found = _capacity(remembered.forecast("24h", history='instance="every-15s"'))
    assert found["requests_per_second"] == pytest.approx(TRUTH_RPS, rel=0.15)


def test_longer_than_a_day_is_one_line(remembered: Past) -> None:
    done = remembered.forecast("25h")
    assert (done.status, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert "--history: expected at most 24h" in done.err
