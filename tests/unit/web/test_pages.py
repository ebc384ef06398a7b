"""The pages: what they say, that nothing from outside becomes markup, and that odd values break none of them."""

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from html.parser import HTMLParser

import httpx
import pytest
from example_records import WALL_S, no_knee, record, result, snapshot, status, step, whole_snapshot
from prometheus_client import CollectorRegistry, Gauge

from exporters.page import Page
from probe.config import config_from, show
from probe.records import Capacity, CapacityResult, Outcome, Stopped, TargetStatus, Users
from probe.report.words import iso
from probe.server import engines
from probe.web.pages import build_pages

EVIL = "<script>alert(1)</script>\"'>&{{7*7}}"
PATHS = ["/", "/kneewatch.css", "/config", "/metrics", "/api/v1/targets", "/api/v1/runs", "/-/healthy", "/-/ready"]


@dataclass
class FakeMonitor:
    shown: Sequence[TargetStatus] = (status(),)
    known: Sequence[CapacityResult] = ()
    ready: bool = True
    text: str = "targets: []\n"
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    @property
    def page(self) -> Page:
        return Page(self.registry)

    def statuses(self) -> Sequence[TargetStatus]:
        return self.shown

    def results(self, target: str | None = None) -> Sequence[CapacityResult]:
        return [r for r in self.known if target in (None, r.target)]

    def result_of(self, result_id: str) -> CapacityResult | None:
        return next((r for r in self.known if r.id == result_id), None)

    def config_text(self) -> str:
        return self.text


def _get(monitor: FakeMonitor, path: str, *, method: str = "GET", accept: str = "*/*") -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(build_pages(monitor))
        async with httpx.AsyncClient(transport=transport, base_url="http://monitor") as client:
            return await client.request(method, path, headers={"accept": accept})

    return asyncio.run(ask())


class _Tags(HTMLParser):
    """Every tag of a page with its attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def _page(*shown: TargetStatus, runs: Sequence[CapacityResult] = ()) -> _Tags:
    answer = _get(FakeMonitor(shown, runs), "/")
    assert answer.status_code == 200
    return _Tags(answer.text)


def at_a_rate() -> CapacityResult:
    capacity = Capacity(mode="verified", requests_per_second=12.5, lower=12.0, upper=13.0)
    return replace(result(capacity=capacity), users=Users(2.5, 160.0))


# What it says.


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (status(), ["starting", "No canary has ended yet", "have not been read yet", "Not measured"]),
        (status(up=True, recent=[record()]), ["up", "last canary", "100 ms", "10.0 ms", "100 % met every objective"]),
        (status(up=False, recent=[record(outcome=Outcome.TIMEOUT)]), ["failing", "timeout", "it failed"]),
        (status(server=whole_snapshot()), ["running", "25 %", "vllm 0.32.0"]),
        (
            status(server_error="http://a/metrics: no metrics of a server (HTTP 404)"),
            ["no metrics of a server (HTTP 404)"],
        ),
        (status(capacity=result()), ["10 req/s", "10 to 12.5", "4 requests in flight", "ttft", "empirical"]),
        (status(capacity=at_a_rate()), ["12.5 requests/s", "headroom then80 %", "verified"]),
        (status(capacity=result(capacity=no_knee("no step was valid"))), ["no step was valid"]),
        (status(capacity_state="busy: 3 requests are already waiting"), ["run: busy: 3 requests are already waiting"]),
    ],
)
def test_the_status_page_answers_what_is_asked_first(shown: TargetStatus, words: list[str]) -> None:
    text = " ".join(_page(shown).text.split())
    for word in words:
        assert word in text


def test_an_old_capacity_shows_its_age() -> None:
    """One of before a restart: its run took half a minute, and ended two hours ago."""
    old = result(started_s=time.time() - 7200 - 31.5)
    assert "2 h ago, empirical" in " ".join(_page(status(capacity=old)).text.split())


def test_every_target_and_every_run_is_on_the_page() -> None:
    page = _page(status(name="one"), status(name="two"), runs=[result(result_id="r1"), result(result_id="r2")])
    assert "one" in page.text
    assert "two" in page.text
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert {"api/v1/runs/r1", "api/v1/runs/r2"} <= set(links)


def test_the_strip_has_a_bar_for_each_canary() -> None:
    recent = [record(), record(ttft_s=0.9), record(outcome=Outcome.TIMEOUT)]
    bars = [attributes["class"] for tag, attributes in _page(status(up=True, recent=recent)).tags if tag == "rect"]
    assert bars == ["failed", "slow", "good"]


def test_the_page_is_well_formed_for_assistive_tools() -> None:
    tags = _page(status(up=True, recent=[record()], failures=[record(outcome=Outcome.TIMEOUT)])).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert any(tag == "html" and attributes.get("lang") for tag, attributes in tags)
    assert all(attributes.get("aria-label") for tag, attributes in tags if tag == "svg")


def test_a_forecast_shows_how_far_it_is_from_what_was_measured() -> None:
    said = Capacity("forecast", 41.0, 37.0, 45.0, reason="experimental until a verification has confirmed it")
    measured = at_a_rate()
    forecast = replace(measured, started=datetime.now(UTC), capacity=said)
    alone = " ".join(_page(status(forecast=forecast)).text.split())
    assert "forecast 0 s ago: 41 req/s (37 to 45); experimental until" in alone
    beside = " ".join(_page(status(forecast=forecast, measured=measured)).text.split())
    assert "41 req/s (37 to 45), 228 % above the last verified 12.5 (" in beside
    silent = replace(forecast, capacity=Capacity("forecast", reason="not enough evidence"))
    assert "not enough evidence" in _page(status(forecast=silent, measured=measured)).text


# What comes from outside.


def _hostile() -> TargetStatus:
    bad = record(outcome=Outcome.SERVER_ERROR, detail=EVIL, model=EVIL)
    return status(
        name=EVIL,
        model=EVIL,
        base_url=f"http://{EVIL}",
        up=False,
        recent=[bad],
        failures=[bad],
        server=replace(snapshot(), version=EVIL, engine=EVIL),
        server_error=EVIL,
        capacity=result(target=EVIL, model=EVIL, capacity=no_knee(EVIL)),
        capacity_state=EVIL,
    )


def test_nothing_from_outside_becomes_markup() -> None:
    runs = [result(result_id=EVIL, target=EVIL, stopped=Stopped("guard", EVIL))]
    page = _page(_hostile(), runs=runs)
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.text.count("<script>alert(1)</script>") >= 6, "it is shown, as text"
    assert "{{7*7}}" in page.text
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]


def test_the_page_has_no_script_no_inline_style_and_nothing_from_elsewhere() -> None:
    page = _page(_hostile(), status(up=True, recent=[record()], server=whole_snapshot(), capacity=result()))
    assert not {"script", "style", "iframe", "object"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert "style" not in attributes
        for name in ("src", "href"):
            target = attributes.get(name) or ""
            assert not re.match(r"[a-z]+:|//", target), f"{tag} {name}={target}"


@pytest.mark.parametrize("path", [*PATHS, "/api/v1/runs/nope", "/nope"])
def test_every_answer_forbids_content_from_elsewhere_and_guesses_about_its_type(path: str) -> None:
    headers = _get(FakeMonitor(), path).headers
    assert "default-src 'none'" in headers.get("content-security-policy", "")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers.get("x-content-type-options") == "nosniff"


@pytest.mark.parametrize("path", ["/nope", "/targets/a/b", "/api/v1/nope", "/../etc/passwd", "/templates/status.html"])
def test_what_is_not_there_is_404(path: str) -> None:
    assert _get(FakeMonitor(), path).status_code == 404


@pytest.mark.parametrize("path", PATHS)
def test_pages_only_answer_to_reading(path: str) -> None:
    assert _get(FakeMonitor(), path, method="HEAD").status_code == 200
    for method in ("POST", "PUT", "DELETE"):
        assert _get(FakeMonitor(), path, method=method).status_code == 405


def test_secrets_are_never_shown() -> None:
    config = config_from(
        {
            "targets": [
                {"name": "a", "base_url": "http://a", "api_key": "${KEY}"},
                {"name": "b", "base_url": "http://b", "api_key": "sk-plain"},
            ]
        },
        "test",
        {"KEY": "sk-from-environment"},
    )
    answer = _get(FakeMonitor(text=show(config)), "/config")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "sk-" not in answer.text
    assert "name: a" in answer.text


@pytest.mark.parametrize("number", ["NaN", "+Inf", "-Inf", "1e308", "-1"])
def test_a_number_that_makes_no_sense_breaks_no_page(number: str) -> None:
    """A broken server must not take away the page on which one would see that it is broken."""
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total")
    text = (
        "".join(f'vllm:{name}{{engine="0"}} {number}\n' for name in names) + 'vllm:prompt_tokens_total{engine="0"} 1\n'
    )
    monitor = FakeMonitor([status(server=engines.parse(text, 0, WALL_S))])
    for path in ("/", "/api/v1/targets"):
        assert _get(monitor, path).status_code == 200


@pytest.mark.parametrize("text", ["\ud800", "\x00", "\x1b[2J", "x" * 100_000])
def test_a_text_that_is_no_text_breaks_no_page(text: str) -> None:
    monitor = FakeMonitor([status(model=text, up=True, recent=[record(model=text, detail=text)])])
    for path in ("/", "/api/v1/targets"):
        assert _get(monitor, path).status_code == 200


# The API and the rest.


def test_targets_as_json() -> None:
    shown = status(up=True, recent=[record()], server=whole_snapshot(), capacity=result(), forecast=result())
    (target,) = _get(FakeMonitor([shown]), "/api/v1/targets").json()
    assert target["name"] == "a"
    assert target["up"] is True
    assert target["good_share"] == 1.0
    assert target["server"]["waiting"] == 2.0
    assert target["capacity"]["knee_concurrency"] == 4
    assert target["capacity"]["ended"] == iso(WALL_S + 31.5)
    assert target["forecast"]["requests_per_second"] == 10.0
    assert target["canaries"][0]["ttft_s"] == pytest.approx(0.1)
    assert "prompt" not in target["canaries"][0]


def test_runs_as_a_list_without_their_steps_and_one_of_them_whole() -> None:
    monitor = FakeMonitor(known=[result(result_id="r1"), result(result_id="r2", target="b")])
    runs = _get(monitor, "/api/v1/runs").json()
    assert [(run["id"], run["steps"]) for run in runs] == [("r1", 2), ("r2", 2)]
    assert [run["id"] for run in _get(monitor, "/api/v1/runs?target=b").json()] == ["r2"]
    whole = _get(monitor, "/api/v1/runs/r1")
    assert whole.headers["content-type"] == "application/json"
    assert len(whole.json()["steps"]) == 2
    assert whole.json()["schema"] == "kneewatch.result/1"


def test_a_run_that_is_not_known_says_where_to_look() -> None:
    answer = _get(FakeMonitor(), "/api/v1/runs/nope")
    assert answer.status_code == 404
    assert "/api/v1/runs" in answer.json()["error"]


def test_healthy_always_ready_only_when_it_measures() -> None:
    assert _get(FakeMonitor(ready=False), "/-/healthy").status_code == 200
    assert _get(FakeMonitor(ready=False), "/-/ready").status_code == 503
    assert _get(FakeMonitor(ready=True), "/-/ready").status_code == 200


@pytest.mark.parametrize(
    ("accept", "kind", "end"),
    [
        ("*/*", "text/plain", "\n"),
        ("application/openmetrics-text;version=1.0.0", "application/openmetrics-text", "# EOF\n"),
    ],
)
def test_metrics_come_in_the_format_that_was_asked_for(accept: str, kind: str, end: str) -> None:
    monitor = FakeMonitor()
    Gauge("kneewatch_x", "x", registry=monitor.registry).set(1)
    answer = _get(monitor, "/metrics", accept=accept)
    assert answer.headers["content-type"].startswith(kind)
    assert "kneewatch_x 1.0" in answer.text
    assert answer.text.endswith(end)


def test_an_invalid_step_and_all_its_gaps_survive_the_api() -> None:
    odd = result(steps=[step(4, reason="client_bound")], capacity=no_knee())
    answer = _get(FakeMonitor(known=[odd]), f"/api/v1/runs/{odd.id}")
    assert json.loads(answer.text)["steps"][0]["reason"] == "client_bound"
