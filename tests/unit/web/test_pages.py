"""The pages: what they say, that nothing from outside becomes markup, and that odd values break none of them."""

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from example_fleet import run
from example_records import CHAT, WALL_S, failing, no_knee, record, result, snapshot, status, step, whole_snapshot
from fake_monitor import FakeMonitor
from prometheus_client import Gauge

from probe.config.config_file import config_from, show
from probe.core.canary_history import CanaryHistory
from probe.core.failure_log import Since
from probe.core.request import Outcome, ServerTimes
from probe.core.result import Capacity, CapacityResult, Correction, PriorForecast, Stopped
from probe.core.snapshot import CrossChecks, EngineMinutes, UserLoad, UserMinutes
from probe.core.target_status import CanaryStatus, FiringAlert, FiringAlerts, TargetStatus
from probe.report.figures import iso, moment
from probe.scrape import engines
from probe.web.pages import build_pages

EVIL = "<script>alert(1)</script>\"'>&{{7*7}}"
PATHS = ["/", "/targets/a", "/config", "/metrics", "/api/v1/targets", "/api/v1/runs", "/-/healthy", "/-/ready"]


def _get(
    monitor: FakeMonitor, path: str, *, method: str = "GET", accept: str = "*/*", encoding: str = "gzip, deflate"
) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(build_pages(monitor))
        async with httpx.AsyncClient(transport=transport, base_url="http://monitor") as client:
            headers = {"accept": accept, "accept-encoding": encoding}
            return await client.request(method, path, headers=headers)

    return asyncio.run(ask())


class _Tags(HTMLParser):
    """Every tag of a page with its attributes, its text, and its data."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._raw = ""
        self._script = False
        self.feed(page)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def data(self) -> Any:
        return json.loads(self._raw)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._script = self._script and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._script:
            self._raw += data
        else:
            self.texts.append(data)


def _page(*shown: TargetStatus, runs: Sequence[CapacityResult] = ()) -> _Tags:
    answer = _get(FakeMonitor(shown, runs), "/")
    assert answer.status_code == 200
    return _Tags(answer.text)


def _target(shown: TargetStatus) -> _Tags:
    answer = _get(FakeMonitor([shown]), f"/targets/{shown.name}")
    assert answer.status_code == 200
    return _Tags(answer.text)


def _words(page: _Tags) -> str:
    return " ".join(page.text.split())


def at_a_rate() -> CapacityResult:
    capacity = Capacity(mode="verified", requests_per_second=12.5, lower=12.0, upper=13.0)
    return replace(result(capacity=capacity), users=UserLoad(2.5, 160.0))


def at_its_edge() -> TargetStatus:
    return status(up=True, recent=[record()], measured=result(), users=UserLoad(9.6, 100.0))


# What they say.


def test_pages_and_api_say_how_large_the_kv_cache_is() -> None:
    shown = status(server=snapshot(kv_cache_tokens=1_640_750.0, others={"kv_cache_bytes": float(3 << 30)}))
    assert "of 1,640,750 tokens, 3 GiB on each GPU" in _words(_page(shown))
    assert "10 % of 1,640,750 tokens, 3 GiB on each GPU" in _words(_target(shown))
    server = _get(FakeMonitor([shown]), "/api/v1/targets/a").json()["server"]
    assert (server["kv_cache_tokens"], server["kv_cache_bytes"]) == (1_640_750, 3 << 30)
    assert "size unknown" in _words(_target(status(server=snapshot())))


def test_pages_and_api_say_since_when_a_server_sleeps_and_offer_no_canary() -> None:
    failed = record(outcome=Outcome.TIMEOUT)
    before = status(up=False, recent=[failed], **failing(failed), server=whole_snapshot())
    shown = replace(before, asleep_since_s=WALL_S)
    words = f"asleep since {moment(WALL_S, time.time())}"
    assert words in _words(_page(shown))
    assert "1 asleep" in _words(_page(shown))
    assert "Needs attention" not in _words(_page(shown))
    assert words in _words(_target(shown))
    buttons = [attrs.get("id") for tag, attrs in _target(shown).tags if tag == "button"]
    assert "probe" not in buttons
    assert "probe" in [attrs.get("id") for tag, attrs in _target(before).tags if tag == "button"]
    answer = _get(FakeMonitor([shown]), "/api/v1/targets/a").json()
    assert (answer["state"], answer["asleep_since"], answer["up"]) == ("asleep", iso(WALL_S), None)
    assert answer["since"] is None
    assert "failing since" not in _words(_target(shown))
    assert "failing since" in _words(_target(before))
    answer = _get(FakeMonitor([before]), "/api/v1/targets/a").json()
    assert (answer["state"], answer["asleep_since"], answer["up"]) == ("failing", None, False)


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (status(), ["1 starting", "no canary yet", "not known: the server's metrics are not read"]),
        (status(up=True, recent=[record()] * 2), ["1 starting", "starting, 2 of 5 canaries", "100 ms / 10 ms"]),
        (status(up=True, recent=[record()] * 5), ["1 good", "100 % within objectives"]),
        (status(up=False, recent=[record(outcome=Outcome.TIMEOUT)]), ["1 failing", "timeout: it failed"]),
        (status(up=True, recent=[record(ttft_s=0.9)] * 6), ["TTFT over 500 ms in 6 of the last 6 canaries"]),
        (status(server=whole_snapshot()), ["3 / 2", "25 %"]),
        (status(server_error="http://a/metrics: no metrics (HTTP 404)"), ["no metrics (HTTP 404)"]),
        (status(passive=True), ["1 passive", "no canaries: passive"]),
        (at_its_edge(), ["4 %", "of 10 req/s", "users leave only 4 %"]),
        (status(capacity=result(capacity=no_knee("no step was valid"))), ["no knee: no step was valid"]),
        (status(capacity_state="busy: 3 are waiting"), ["last run refused: busy: 3 are waiting"]),
        (status(capacity_state="running"), ["a run is in progress"]),
    ],
)
def test_the_first_page_answers_what_is_asked_first(shown: TargetStatus, words: list[str]) -> None:
    text = _words(_page(shown))
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (
            status(),
            [
                "starting",
                "No canary has finished yet",
                "have not been scraped yet",
                "not known: the server's metrics are not read",
            ],
        ),
        (status(up=True, recent=[record()]), ["last canary", "100 ms", "10 ms", "100 % met every objective"]),
        (status(up=False, recent=[record(outcome=Outcome.TIMEOUT)]), ["failing", "timeout", "it failed"]),
        (status(server=whole_snapshot()), ["waiting2 (2 capacity)", "25 %", "vllm 0.32.0"]),
        (status(server_error="no metrics (HTTP 404)"), ["no metrics (HTTP 404)"]),
        (status(capacity=result()), ["10 requests/s (10 to 12.5)", "4 requests in flight", "ttft", "empirical"]),
        (status(capacity=at_a_rate()), ["12.5 requests/s", "verified"]),
        (at_its_edge(), ["4 % headroom now"]),
        (status(capacity=result(capacity=no_knee("no step was valid"))), ["no step was valid"]),
        (status(capacity_state="busy: 3 are waiting"), ["Last run refused: busy: 3 are waiting"]),
    ],
)
def test_a_targets_page_answers_the_four_questions(shown: TargetStatus, words: list[str]) -> None:
    text = _words(_target(shown))
    for word in (*words, "Is it slow or broken?", "Why?", "How much more can it take?"):
        assert word in text


@pytest.mark.parametrize(
    ("users", "words"),
    [
        (UserLoad(5.0, 320.0), "users5 req/s, 320 output tok/s"),
        (UserLoad(0.0, 0.0), "users0 req/s"),
        (UserLoad(), "usersunknown"),
        (None, "usersunknown"),  # as while a capacity run loads the server
    ],
)
def test_a_targets_page_shows_unknown_users_as_unknown(users: UserLoad | None, words: str) -> None:
    assert words in _words(_target(status(server=whole_snapshot(), users=users)))


def test_discovery_problems_are_near_the_top_one_line_each() -> None:
    monitor = FakeMonitor([status(up=False, recent=[record(outcome=Outcome.TIMEOUT)])])
    assert "Discovery" not in _Tags(_get(monitor, "/").text).text
    monitor.problems = {"pods": "HTTP 403:\nno Role", "dns": EVIL}
    page = _Tags(_get(monitor, "/").text)
    text = _words(page)
    assert "Discovery has problems" in text
    assert "podsHTTP 403: no Role" in page.text
    assert f"dns{EVIL}" in page.text, "as text"
    assert text.index("{{7*7}}") < text.index("Needs attention") < text.index("last canaries, TTFT")
    monitor.problems = {f"d{n}": "gone" for n in range(23)}
    text = _words(_Tags(_get(monitor, "/").text))
    assert len(re.findall(r"d\d+gone", text)) == 20
    assert "and 3 more, see the log" in text


def test_the_labels_of_a_target_that_was_found_are_on_its_page() -> None:
    labels = {"app.kubernetes.io/name": "qwen", "evil": EVIL, **{f"x{n:02}": "y" * 300 for n in range(40)}}
    shown = status(name="pods/qwen-0", discovery="pods", labels=labels)
    page = _target(shown)
    assert "discovered by pods, with 32 labels" in _words(page)
    assert "app.kubernetes.io/nameqwen" in _words(page)
    assert EVIL in page.text
    assert "x29" + "y" * 256 in page.text
    assert "y" * 257 not in page.text
    reported = _get(FakeMonitor([shown]), "/api/v1/targets/pods/qwen-0").json()
    assert (reported["discovery"], len(reported["labels"]), reported["labels"]["evil"]) == ("pods", 32, EVIL)
    assert "found by" not in _words(_target(status()))
    assert _get(FakeMonitor(), "/api/v1/targets/a").json()["labels"] == {}


def test_targets_in_trouble_come_first() -> None:
    shown = [
        status(name="passive", passive=True),
        status(name="good", up=True, recent=[record()] * 5),
        status(name="slow", up=True, recent=[record(ttft_s=0.9)] * 6),
        status(name="down", up=False, recent=[record(outcome=Outcome.TIMEOUT)]),
        status(name="new"),
    ]
    links = [
        (a.get("class"), a["href"]) for t, a in _page(*shown).tags if t == "a" and str(a["href"])[:8] == "targets/"
    ]
    assert [href for kind, href in links if kind is None] == ["targets/down", "targets/slow"], "what needs attention"
    ordered = [str(href).removeprefix("targets/") for kind, href in links if kind == "name"]
    assert ordered == ["down", "slow", "new", "good", "passive"]


@pytest.mark.parametrize(
    ("shown", "code", "words"),
    [
        (status(up=True, recent=[record()] * 20), 200, "good"),
        (status(up=False, recent=[record(outcome=Outcome.TIMEOUT)] * 2), 503, "failing"),
        (status(), 503, "starting"),
        (status(passive=True), 200, "passive"),
        (status(up=None, recent=[record()] * 20), 503, "no canary lately"),
    ],
)
def test_a_load_balancer_learns_whether_a_target_answers(shown: TargetStatus, code: int, words: str) -> None:
    answer = _get(FakeMonitor([shown]), f"/-/healthy/{shown.name}")
    assert (answer.status_code, answer.text) == (code, f"{words}\n")


def test_a_target_that_comes_back_is_good_again_and_its_failure_is_kept() -> None:
    failed = record(outcome=Outcome.TIMEOUT, detail="no token within 30 s")
    shown = status(up=True, recent=[record()] * 60, **failing(record(), failed))
    assert "1 good" in _words(_page(shown))
    assert "no token within 30 s" in _words(_page(shown))
    assert "no token within 30 s" in _words(_target(shown))


def test_pages_say_how_much_of_the_time_a_target_was_up_and_what_is_left_of_its_budgets() -> None:
    spent, whole = CanaryHistory(), CanaryHistory()
    for half_hours in (2, 1, 0):
        at_s = time.time() - 1800 * half_hours
        for outcome in [*[Outcome.OK] * 9, Outcome.TIMEOUT] * 4:
            spent.add(record(outcome=outcome, done_wall_s=at_s), CHAT)
            whole.add(record(done_wall_s=at_s), CHAT)
    words = _words(_page(status(name="spent", history=spent), status(name="whole", history=whole)))
    assert re.search(r"90 % up, 30 d 90 % \(1.5 h known\) ?availability budget overspent", words)
    assert re.search(r"100 % up, 30 d 100 % \(1.5 h known\) ?availability budget 100 % left", words)
    words = _words(_target(status(history=spent)))
    for period in ("24 h", "7 d", "30 d"):
        assert f"last {period} 90 % up in the 1.5 h with canaries" in words
    assert re.search(r"availability budget ?overspent, over 10x used for 30d, of canaries since ", words)
    assert re.search(r"TTFT budget ?100 % left", words)
    (day, week, month) = (
        attrs["aria-label"]
        for tag, attrs in _target(status(history=spent)).tags
        if "history" in (attrs.get("class") or "")
    )
    assert all(
        str(label).startswith(f"last {name}: 90 % up")
        for label, name in ((day, "24 h"), (week, "7 d"), (month, "30 d"))
    )


@pytest.mark.parametrize(("up", "words"), [(True, "answering since"), (False, "failing since")])
def test_a_targets_page_says_since_when_it_answers_or_fails(up: bool, words: str) -> None:  # noqa: FBT001
    bad = record(outcome=Outcome.TIMEOUT)
    known = failing(*[bad] * 5, record()) | ({"since": Since(WALL_S, is_exact=True)} if up else {})
    shown = status(up=up, recent=[record() if up else bad] * 5, **known)
    facts = _words(_target(shown)).partition("Is it slow or broken?")[2]
    assert re.search(rf"{words} ?{moment(WALL_S, time.time())}", facts)


@pytest.mark.fault(
    "NM42",
    "A busy server does not answer on its metrics page",
    area="Truth",
    users_see="the last values, greyed, with their age, and the cause as of then",
    stays="the state, which is not judged by old values",
)
def test_last_values_stay_with_their_age_while_the_servers_page_cannot_be_read() -> None:
    last = replace(whole_snapshot(), wall_s=time.time() - 40)
    full = CrossChecks(engine_minutes=EngineMinutes(300.0, 0.95, 5.0, 9.0))
    slow = [record(ttft_s=0.9)] * 6
    shown = status(up=True, recent=slow, last_server=last, last_checks=full, server_error="not read within 3 s")
    page, one = _words(_page(shown)), _words(_target(shown))
    assert "3 / 240 s ago" in page
    assert "These are of 40 s ago." in one
    assert "waiting2 (2 capacity)" in one
    for text in (page, one):
        assert "because: the KV cache is full (95 %, 5 waiting, 9 preempted in 5 min)" in text
        assert "not read within 3 s" in text


def test_the_head_of_a_targets_page_says_what_canaries_users_and_alerts_say() -> None:
    failed = record(outcome=Outcome.SERVER_ERROR, detail="HTTP 500")
    checks = CrossChecks(user_minutes=UserMinutes(300.0, 60.0, 0.0))
    shown = status(up=False, recent=[failed] * 20, server=whole_snapshot(), checks=checks, **failing(*[failed] * 20))
    alerts = FiringAlerts([FiringAlert("KneewatchTargetDown", "page", "a", WALL_S)] * 2, WALL_S)
    page = _words(_Tags(_get(FakeMonitor([shown], alerts=alerts), "/targets/a").text))
    assert "20 of 20 canaries failed (server error: HTTP 500) since" in page
    assert "· users: 0 of 60 requests failed in 5 min · 2 alerts firing" in page


def test_an_old_capacity_shows_its_age() -> None:
    """One of before a restart: its run took half a minute, and ended two hours ago."""
    old = result(started_s=time.time() - 7200 - 31.5)
    assert "of 10 req/s, measured 2 h ago" in _words(_page(status(capacity=old)))
    assert "2 h ago, empirical" in _words(_target(status(capacity=old)))


def test_every_target_and_every_run_is_on_the_page_and_leads_further() -> None:
    page = _page(status(name="one"), status(name="qwen/pod 1"), runs=[result(result_id="r1"), result(result_id="r2")])
    links = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    assert {"targets/one", "targets/qwen/pod%201", "runs/r1", "runs/r2"} <= links


@pytest.mark.parametrize("name", ["one", "qwen/pod 1", "a?b#c", "10.0.0.1:8000", "%2e%2e", "caf\u00e9", EVIL])
def test_a_targets_page_is_where_the_first_page_says(name: str) -> None:
    monitor = FakeMonitor([status(name=name)])
    page = _Tags(_get(monitor, "/").text)
    (link,) = [a["href"] for t, a in page.tags if t == "a" and a.get("class") == "name"]
    answer = _get(monitor, f"/{link}")
    assert answer.status_code == 200
    found = _Tags(answer.text)
    (style,) = [a["href"] for t, a in found.tags if t == "link" and a["rel"] == "stylesheet"]
    assert style is not None
    assert httpx.URL(f"http://monitor/{link}").join(style).path.startswith("/assets/"), "at any depth"


def test_the_strip_has_a_bar_for_each_canary() -> None:
    recent = [record(), record(ttft_s=0.9), record(outcome=Outcome.TIMEOUT)]
    paths = {a["class"]: a["d"] for t, a in _page(status(up=True, recent=recent)).tags if t == "path"}
    assert {kind: str(path).count("M") for kind, path in paths.items()} == {"good": 1, "slow": 1, "failed": 1}


@pytest.mark.parametrize("path", ["/", "/targets/a", "/runs/r1", "/nope"])
def test_the_pages_are_well_formed_for_assistive_tools(path: str) -> None:
    shown = status(up=True, recent=[record()], **failing(record(outcome=Outcome.TIMEOUT)), capacity=result())
    tags = _Tags(_get(FakeMonitor([shown], [result(result_id="r1")]), path).text).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert any(tag == "html" and attributes.get("lang") for tag, attributes in tags)
    assert all(
        attributes.get("aria-label") or attributes.get("aria-hidden") for tag, attributes in tags if tag == "svg"
    )
    assert {attributes["aria-labelledby"] for _, attributes in tags if "aria-labelledby" in attributes} <= set(ids)
    assert [tag for tag, _ in tags].count("h1") == 1
    assert all(attributes.get("scope") for tag, attributes in tags if tag == "th")


def test_a_forecast_shows_how_far_it_is_from_what_was_measured() -> None:
    said = Capacity("forecast", 41.0, 37.0, 45.0, reason="experimental until a verification has confirmed it")
    measured = at_a_rate()
    forecast = replace(measured, started=datetime.now(UTC), capacity=said)
    alone = _words(_target(status(forecast=forecast)))
    assert re.search(r"forecast \d+ s ago: 41 req/s \(37 to 45\) for workload short; experimental until", alone)
    assert "forecast 41 req/s" in _words(_page(status(forecast=forecast)))
    beside = _words(_target(status(forecast=forecast, measured=measured)))
    assert "41 req/s (37 to 45) for workload short, 228 % above the last verified 12.5 (" in beside
    correction = Correction(6, -0.113, PriorForecast(46.2, 0.1))
    corrected = replace(forecast, capacity=replace(said, correction=correction))
    learnt = "learned from 6 earlier forecasts that were too high (lowered by 11 % from 46.2 requests/s)"
    assert f"41 req/s (37 to 45) for workload short, {learnt}; experimental until" in _words(
        _target(status(forecast=corrected))
    )
    silent = replace(forecast, capacity=Capacity("forecast", reason="not enough evidence"))
    assert "not enough evidence" in _target(status(forecast=silent, measured=measured)).text


def test_a_run_is_a_page_with_its_steps_and_its_charts() -> None:
    monitor = FakeMonitor(known=[run(result_id="r1")])
    page = _Tags(_get(monitor, "/runs/r1").text)
    text = _words(page)
    for word in ("29 requests/s (29 to 33)", "broke ttft, tpot", "32 in flight", "availability 99.9 %", "max_num_seqs"):
        assert word in text
    assert [chart["title"] for chart in page.data["charts"]][:3] == ["Requests/s", "TTFT", "TPOT"]
    whole = _get(monitor, "/runs/r1?download")
    assert whole.headers["content-disposition"] == "attachment"
    assert "script-src &#39;sha256-" in whole.text
    assert "script-src" not in whole.headers["content-security-policy"], "its own policy is in it"


def test_the_waterfall_has_a_row_for_each_canary() -> None:
    shown = status(up=True, recent=[record(), record(outcome=Outcome.TIMEOUT, detail="nothing came")])
    good, failed = _target(shown).data["waterfall"]["rows"]
    assert good["pieces"] == [["wait", 0.0, 0.1], ["tokens", 0.1, 0.12]]
    assert good["tokens"] == [0.1, 0.11, 0.12]
    assert [kind for kind, *_ in failed["pieces"]] == ["failed"]
    assert failed["said"] == "nothing came"


def test_the_waterfall_shows_where_the_first_token_s_time_went_if_the_server_reports_it() -> None:
    timed = replace(record(ttft_s=0.1), server_times=ServerTimes(queue_s=0.02, prefill_s=0.05))
    split, plain = _target(status(up=True, recent=[timed, record()])).data["waterfall"]["rows"]
    assert [fact for fact in split["facts"] if fact[0].startswith("TTFT ")] == [
        ["TTFT in the queue", "20 ms"],
        ["TTFT in prefill", "50 ms"],
        ["TTFT outside the engine", "30 ms"],
    ]
    assert not any(name.startswith("TTFT ") for name, _ in plain["facts"])


def test_the_waterfall_shows_which_objective_was_missed() -> None:
    slow = [record(ttft_s=0.9), record(gap_s=0.2), record(ttft_s=0.9, gap_s=0.2)]
    drawn = _target(status(up=True, recent=slow)).data["waterfall"]
    kinds = [[kind for kind, *_ in each["pieces"]] for each in drawn["rows"]]
    assert kinds == [["slow_wait", "tokens"], ["wait", "slow_tokens"], ["slow_wait", "slow_tokens"]]
    assert [each["said"] for each in drawn["rows"]] == ["missed TTFT", "missed TPOT", "missed TTFT and TPOT"]
    assert "0 failed, 3 missed an objective" in drawn["words"]


def test_each_verdict_of_the_waterfall_has_a_colour_and_words_of_its_own() -> None:
    late = replace(record(), sent_ns=record().scheduled_ns + 50_000_000)
    each = [late, record(ttft_s=0.9), record(gap_s=0.2), record(outcome=Outcome.TIMEOUT)]
    drawn = _target(status(up=True, recent=each)).data["waterfall"]["rows"]
    kinds = {kind for one in drawn for kind, *_ in one["pieces"]}
    script = (Path(__file__).parents[3] / "probe/report/page/waterfall.js").read_text()
    paints = dict(re.findall(r"(\w+): ([\w.\[\]]+)", script.split("  return {")[1].partition("}")[0]))
    words = set(re.findall(r"(\w+): \"", script.split("KINDS = {")[1].partition("}")[0]))
    assert paints.keys() == words == kinds == {"late", "wait", "tokens", "slow_wait", "slow_tokens", "failed"}
    assert len(set(paints.values())) == len(paints)


# What comes from outside.


def _hostile() -> TargetStatus:
    bad = record(outcome=Outcome.SERVER_ERROR, detail=EVIL, model=EVIL)
    return status(
        name=EVIL,
        model=EVIL,
        base_url=f"http://{EVIL}",
        discovery=EVIL,
        labels={EVIL: EVIL},
        up=False,
        recent=[bad],
        **failing(bad),
        server=replace(snapshot(), version=EVIL, engine=EVIL),
        server_error=EVIL,
        capacity=result(target=EVIL, model=EVIL, capacity=no_knee(EVIL)),
        capacity_state=EVIL,
    )


@pytest.mark.parametrize("path", ["/", "/targets/evil", "/runs/r1"])
@pytest.mark.fault(
    "SE8",
    "Markup in every text from outside",
    area="Security",
    users_see="shown as text",
    stays="pages run no foreign script",
)
def test_nothing_from_outside_becomes_markup(path: str) -> None:
    """A name cannot begin a tag, and cannot end the data that it is in."""
    shown = [_hostile(), replace(_hostile(), name="evil")]
    runs = [replace(run(EVIL, "r1"), model=EVIL, stopped=Stopped("guard", EVIL)), run("evil", EVIL)]
    page = _Tags(_get(FakeMonitor(shown, runs), path).text)
    assert page.text.count("<script>alert(1)</script>") >= 2, "it is shown, as text"
    assert "{{7*7}}" in page.text
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert all(one.get("src") or one.get("type") == "application/json" for one in scripts)
    for tag, attributes in page.tags:
        assert tag not in ("iframe", "object", "style", "base", "form", "img")
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        for name in ("src", "href", "data-probe"):
            assert not re.match(r"[a-z]+:|//", attributes.get(name) or ""), f"{tag} {name}"


@pytest.mark.parametrize("path", [*PATHS, "/api/v1/runs/nope", "/nope"])
def test_every_answer_forbids_content_from_elsewhere_and_guesses_about_its_type(path: str) -> None:
    headers = _get(FakeMonitor(), path).headers
    assert "default-src 'none'" in headers.get("content-security-policy", "")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers.get("x-content-type-options") == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/nope",
        "/targets/a/b",
        "/targets/",
        "/api/v1/nope",
        "/../etc/passwd",
        "/templates/status.html",
        "/assets/../page.css",
    ],
)
def test_unknown_paths_are_404(path: str) -> None:
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
    for path in ("/", "/targets/a", "/api/v1/targets"):
        answer = _get(monitor, path)
        assert answer.status_code == 200
        if path.startswith("/api"):
            json.loads(answer.text, parse_constant=pytest.fail)


@pytest.mark.parametrize("text", ["\ud800", "\x00", "\x1b[2J", "x" * 100_000])
def test_a_text_that_is_no_text_breaks_no_page(text: str) -> None:
    monitor = FakeMonitor([status(model=text, up=True, recent=[record(model=text, detail=text)])])
    for path in ("/", "/targets/a", "/api/v1/targets"):
        answer = _get(monitor, path)
        assert answer.status_code == 200
        if path.startswith("/api"):
            json.loads(answer.text, parse_constant=pytest.fail)


def test_a_forecast_for_what_users_send_stands_beside_the_measured_capacity() -> None:
    mix = {**result().context.workload, "name": "users", "prompt_tokens": 900, "output_tokens": 20}
    said = Capacity("forecast", 5.0, 4.5, 5.5, reason="experimental")
    found = replace(result(capacity=said), started=datetime.now(UTC), context=replace(result().context, workload=mix))
    shown = status(for_users=found, measured=result(), users=UserLoad(4.0, None))
    words = _words(_page(shown))
    assert re.search(r"60 % of 10 req/s, measured [^;]+; for users: forecast 5 req/s, 20 % left", words)
    words = _words(_target(shown))
    assert "60 % headroom now, by the measured capacity" in words
    assert re.search(r"for users, forecast \d+ s ago: 5 req/s \(4.5 to 5.5\) for workload users", words)
    assert ", 20 % left; experimental" in words
    (target,) = _get(FakeMonitor([shown]), "/api/v1/targets").json()
    assert target["forecast_for_users"]["workload"] == "users"
    least = replace(found, capacity=replace(said, upper=None))
    assert "; for users: forecast at least 5 req/s" in _words(_page(status(for_users=least)))
    silent = replace(found, capacity=Capacity("forecast", reason="not enough evidence"))
    assert re.search(r"for users, forecast \d+ s ago: not enough evidence", _words(_target(status(for_users=silent))))
    assert "for users" not in _words(_page(status(for_users=silent)))


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
    assert (target["forecast"]["workload"], target["forecast_for_users"]) == ("short", None)
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


def test_one_target_as_json() -> None:
    monitor = FakeMonitor([status(name="a"), status(name="qwen/pod-1")])
    assert _get(monitor, "/api/v1/targets/qwen/pod-1").json()["name"] == "qwen/pod-1"
    answer = _get(monitor, "/api/v1/targets/nope")
    assert answer.status_code == 404
    assert "/api/v1/targets" in answer.json()["error"]


def test_a_reload_says_what_came_of_it() -> None:
    monitor = FakeMonitor()
    assert _get(monitor, "/-/reload").status_code == 405
    assert _get(monitor, "/-/reload", method="POST").status_code == 200
    monitor.refusal = "kneewatch.yml: targets: missing"
    refused = _get(monitor, "/-/reload", method="POST")
    assert (refused.status_code, refused.text) == (500, "kneewatch.yml: targets: missing\n")
    assert monitor.reloads == 2


@pytest.mark.slow
def test_files_of_the_pages_are_kept_by_browsers_and_come_small() -> None:
    monitor = FakeMonitor([status(recent=[record()], up=True)])
    tags = _Tags(_get(monitor, "/targets/a").text).tags
    files = [
        a.get("src") or a.get("href") for t, a in tags if t in ("script", "link") and (a.get("src") or a.get("href"))
    ]
    assert len(files) == 5
    for file in files:
        answer = _get(monitor, f"/{str(file).removeprefix('../')}")
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert "content-encoding" not in answer.headers or answer.headers["content-encoding"] == "gzip"


def test_healthy_always_ready_only_when_it_measures() -> None:
    assert _get(FakeMonitor(is_ready=False), "/-/healthy").status_code == 200
    assert _get(FakeMonitor(is_ready=False), "/-/ready").status_code == 503
    assert _get(FakeMonitor(is_ready=True), "/-/ready").status_code == 200


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


@pytest.mark.parametrize(
    ("encoding", "is_packed"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("identity", False),
        ("", False),
        ("gzip;q=0, identity", False),
        ("deflate;q=1, gzip; q=0.000", False),
        ("x-gzip-not", False),
    ],
)
def test_metrics_are_packed_for_those_who_take_it(encoding: str, is_packed: bool) -> None:  # noqa: FBT001
    monitor = FakeMonitor()
    Gauge("kneewatch_x", "x", registry=monitor.registry).set(1)
    answer = _get(monitor, "/metrics", encoding=encoding)
    assert (answer.headers.get("content-encoding") == "gzip") is is_packed
    assert answer.headers["vary"] == "Accept, Accept-Encoding"
    assert "kneewatch_x 1.0" in answer.text  # unpacked by the client


def test_an_invalid_step_and_all_its_gaps_survive_the_api() -> None:
    odd = result(steps=[step(4, reason="client_bound")], capacity=no_knee())
    answer = _get(FakeMonitor(known=[odd]), f"/api/v1/runs/{odd.id}")
    assert json.loads(answer.text)["steps"][0]["reason"] == "client_bound"


def test_a_target_with_several_kinds_of_canaries_has_a_row_for_each() -> None:
    kinds = [
        CanaryStatus("short", "m", 15.0, up=True, recent=[record()], since=Since(WALL_S, is_exact=True)),
        CanaryStatus("short", "<b>sql</b>", 60.0, up=False, recent=[record(outcome=Outcome.NOT_FOUND)]),
        CanaryStatus("long", "m", 600.0, up=None),
    ]
    shown = status(up=False, recent=[record()], canaries=kinds)
    words = _words(_target(shown))
    assert "Kinds of canaries" in words
    assert "shortm15 sanswering" in words
    assert "short<b>sql</b>60 sfailingnot_found" in words
    assert "longm600 sunknown----" in words
    assert "Kinds of canaries" not in _words(_target(replace(shown, canaries=kinds[:1])))
