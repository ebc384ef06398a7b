"""The monitor's pages, as a browser shows them and as a keyboard goes through them."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import httpx
import pytest
from browser import FLAGS, Browser
from example_fleet import fleet, run
from example_records import failing, record, status
from fake_monitor import FakeMonitor
from kneewatch_command import kneewatch
from monitor import Monitor, Sim
from process import eventually
from served import Served

from probe.core.request import Outcome
from probe.core.result import CapacityResult, Stopped
from probe.core.target_status import TargetStatus

pytestmark = pytest.mark.chromium

TARGET = "mock-server-a"
EVIL = "<script>document.title='broken in'</script><img src=x onerror=\"document.title='broken in'\">\"'>&{{7*7}}"
# Deque's accessibility rules, and what they find.
AXE = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
_FOUND = """axe.run().then((found) => found.violations.map((one) => `${one.id}: ${one.nodes[0].html.slice(0, 200)}`))"""
# A narrow screen shows the headings only.
_UNFOLD = "document.querySelectorAll('details.fold').forEach((one) => { one.open = true; })"
# How many of each canvas' pixels are painted.
_INK = """[...document.querySelectorAll('canvas')].map((one) =>
    one.getContext('2d').getImageData(0, 0, one.width, one.height).data.filter(
        (value, i) => i % 4 === 3 && value > 0).length)"""


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with Browser(chromium) as one:
        yield one


@pytest.fixture(scope="module")
def monitor(sim: Sim, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitor]:
    target = {
        "name": TARGET,
        "base_url": sim.base_url,
        "scrape": "1s",
        "canary": {"every": "1s", "workload": "short"},
    }
    config: dict[str, object] = {
        "objectives": {"default": {"availability": 0.999}},  # a busy machine must not fail a latency
        "workloads": {"short": {"prompt_tokens": 32, "output_tokens": 8}},
        "targets": [target],
    }
    with Monitor(config, tmp_path_factory.mktemp("status")) as running:
        for series in ("kneewatch_target_up", "kneewatch_server_scrape_up"):
            sample = f'{series}{{target="{TARGET}"}} 1.0'
            eventually(lambda sample=sample: sample in running.page("/metrics"), within_s=60, what=sample)  # type: ignore[misc]
        yield running


@pytest.fixture(scope="module")
def made() -> Iterator[Served]:
    """Create a page of twelve targets on a bad day, and one with hostile names."""
    shown = [*fleet(12), _hostile()]
    labels = {"app": "llama", "leaderworkerset.sigs.k8s.io/group-unique-hash": "0f" * 20, "pod-template-hash": "5d8f"}
    shown[1] = replace(shown[1], discovery="pods", labels=labels)
    problems = {"pods": "https://10.0.0.1/api: HTTP 403; it needs a Role with the verbs list and watch", EVIL: EVIL}
    runs = [run(shown[1].name, "good"), _hostile_run()]
    with Served(FakeMonitor(shown, runs, problems=problems)) as pages:
        yield pages


def _hostile() -> TargetStatus:
    bad = record(outcome=Outcome.SERVER_ERROR, detail=EVIL, model=EVIL, done_wall_s=time.time())
    return status(
        name=EVIL,
        model=EVIL,
        discovery=EVIL,
        labels={EVIL: EVIL, "z" * 100: "z" * 300},
        base_url=f"http://{EVIL}",
        up=False,
        recent=[bad] * 3,
        **failing(bad),
        server_error=EVIL,
        gpu_error=EVIL,
        capacity_state=EVIL,
        capacity=_hostile_run(),
        measured=_hostile_run(),
    )


def _hostile_run() -> CapacityResult:
    evil = run(EVIL, "evil")
    return replace(evil, model=EVIL, stopped=Stopped("guard", EVIL), context=replace(evil.context, engine=EVIL))


def _text(browser: Browser, selector: str = "main") -> str:
    return " ".join(str(browser.evaluate(f"document.querySelector('{selector}').innerText")).split())


# A real monitor.


def test_a_browser_shows_target_and_outcome(browser: Browser, monitor: Monitor) -> None:
    browser.screen(1280, 900)
    browser.open(monitor.base_url)
    assert browser.complaints == []
    browser.until(f"document.querySelector('.targets').innerText.replace(/\\s+/g, ' ').includes('{TARGET} good')")
    assert "within objectives" in _text(browser, ".targets")
    browser.evaluate("document.querySelector('.targets a').click()")
    browser.until("document.querySelector('#waterfall canvas') !== null")
    assert browser.complaints == []
    text = _text(browser)
    assert "http://127.0.0.1" in text  # the server's address
    assert "vllm 0.32" in text
    day = _text(browser, "#fold-day")
    assert re.search(r"canaries p95 [\d.]+ m?s [\d.]+ m?s at \d\d:\d\d UTC", day), day
    assert all(ink > 1000 for ink in browser.evaluate(_INK))


def test_a_canary_is_sent_from_the_page_by_keyboard(browser: Browser, monitor: Monitor) -> None:
    browser.screen(1280, 900)
    browser.open(f"{monitor.base_url}/targets/{TARGET}")
    browser.evaluate("document.querySelector('#probe').focus()")
    browser.press("Enter")
    browser.until("document.querySelector('#answer').innerText.startsWith('ok: TTFT')")
    assert re.search(r"TTFT [\d.]+ ms, TPOT [\d.]+ ms, E2E [\d.]+ ms", _text(browser, "#answer"))
    assert browser.complaints == []
    series = f'kneewatch_requests_total{{target="{TARGET}",model="mock-model",workload="short",traffic="ondemand",'
    eventually(lambda: f'{series}outcome="ok"}} 1.0' in monitor.page("/metrics"), within_s=10, what="its series")


def test_the_page_keeps_itself_new_and_its_reader_where_he_is(browser: Browser, monitor: Monitor) -> None:
    browser.screen(1280, 900)
    browser.open(f"{monitor.base_url}/targets/{TARGET}")
    browser.evaluate("document.querySelector('#each').open = true")
    browser.evaluate("document.querySelector('#probe').focus()")
    browser.evaluate("document.querySelector('#each table').id = 'first'")
    browser.until("document.querySelector('#first') === null")
    assert browser.evaluate("document.querySelector('#each').open")
    assert browser.evaluate("document.activeElement.id") == "probe"
    browser.until("document.querySelector('#waterfall canvas') !== null")
    assert browser.complaints == []
    browser.evaluate("document.querySelector('#pause').click()")
    browser.evaluate("document.querySelector('#each table').id = 'kept'")
    time.sleep(6)
    assert browser.evaluate("document.querySelector('#kept') !== null")


@pytest.mark.fault(
    "SE9",
    "Content of other origins",
    area="Security",
    users_see="forbidden by the CSP of every page",
    stays="-",
)
def test_the_content_security_policy_allows_nothing_from_other_origins(monitor: Monitor) -> None:
    for path in ("/", f"/targets/{TARGET}", "/nope"):
        answer = httpx.get(f"{monitor.base_url}{path}", timeout=10, trust_env=False)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert not re.search(r"https?:|unsafe|\*", policy)
        assert re.findall(r'(?:src|href|action)="(?:[a-z]+:)?//[^"]*"', answer.text) == []


@pytest.mark.long
def test_a_ramps_report_is_one_file(browser: Browser, sim: Sim, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    options = (
        "--concurrency",
        "1,2,4",
        "--step-seconds",
        "2",
        "--confirm-seconds",
        "0",
        "--prompt-tokens",
        "32",
        "--output-tokens",
        "8",
    )
    done = kneewatch("ramp", "--base-url", sim.base_url, *options, "--html", file)
    assert done.status in (0, 1), done.err
    browser.screen(1280, 900)
    browser.open(file.as_uri())
    browser.until("document.querySelectorAll('#charts canvas').length >= 4")
    assert browser.complaints == []
    assert all(ink > 1000 for ink in browser.evaluate(_INK))
    assert browser.evaluate("document.querySelectorAll('table tbody tr').length") == 3
    refused = kneewatch("ramp", "--base-url", sim.base_url, "--html", tmp_path / "no" / "report.html")
    assert refused.status == 2
    assert "--html" in refused.err


# Made-up knowledge, with all that there can be.


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
@pytest.mark.parametrize("path", ["/", "good", "hostile", "/runs/good", "/runs/evil", "/nope"])
def test_every_page_fits_its_screen_and_nothing_is_complained_of(
    browser: Browser,
    made: Served,
    path: str,
    width: int,
    dark: bool,  # noqa: FBT001
) -> None:
    browser.screen(width, 900, dark=dark)
    place = {"good": 1, "hostile": 12}.get(path)
    if place is not None:
        browser.open(made.base_url)
        name = made.monitor.shown[place].name
        browser.evaluate(
            f"[...document.querySelectorAll('a.name')].find((one) => one.innerText === {name!r}).click()"
            if place == 1
            else "[...document.querySelectorAll('a.name')].find((one) => one.innerText.includes('7*7')).click()"
        )
        browser.until("document.querySelector('#waterfall') !== null")
        browser.evaluate(_UNFOLD)
        browser.until("document.querySelector('#waterfall canvas') !== null")
    else:
        browser.open(f"{made.base_url}{path}")
        browser.evaluate(_UNFOLD)
    if browser.evaluate("document.querySelector('#labels') !== null"):
        browser.evaluate("document.querySelector('#labels').open = true")
    if path.startswith("/runs"):
        browser.until("document.querySelectorAll('#charts canvas').length === 6")
    # Chromium itself says that /nope is 404.
    assert [one for one in browser.complaints if "404 (Not Found)" not in one or path != "/nope"] == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.evaluate(f"{AXE}; 0")
    assert browser.evaluate(_FOUND) == []
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(18, 22, 29)" if dark else "rgb(246, 247, 249)")
    assert "broken in" not in str(browser.evaluate("document.title")).partition("<")[0]
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    if path in ("/", "hostile", "/runs/evil"):
        assert "<script>document.title=" in _text(browser, "body")


def test_a_phone_shows_the_headings_of_what_it_cannot_show_at_once(browser: Browser) -> None:
    """Twelve targets on four screens where they were on fifteen, and what is opened stays open."""
    height = "document.documentElement.scrollHeight"
    browser.screen(390, 900)
    with Served(FakeMonitor(shown := fleet(12), [run(shown[1].name, "good")])) as pages:
        browser.open(pages.base_url)
        assert browser.evaluate(height) < 1600
        for place in (1, 3):
            browser.open(f"{pages.base_url}/targets/{shown[place].name}")
            assert browser.evaluate(height) < 1200
        browser.evaluate("document.querySelector('#fold-canaries summary').click()")
        browser.evaluate("document.querySelector('#each table').id = 'first'")
        browser.until("document.querySelector('#first') === null")
        folds = "[...document.querySelectorAll('details.fold')].filter((one) => one.open).map((one) => one.id)"
        assert browser.evaluate(folds) == ["fold-canaries"]
        browser.until("document.querySelector('#waterfall canvas') !== null")


@pytest.mark.parametrize("width", [1280, 1400])
def test_no_column_of_a_runs_load_levels_is_cut(browser: Browser, made: Served, width: int) -> None:
    browser.screen(width, 900)
    browser.open(f"{made.base_url}/runs/good")
    table = "document.querySelector('table.steps')"
    assert "preempted" in _text(browser, "table.steps")
    assert browser.evaluate(f"{table}.offsetWidth <= {table}.parentElement.clientWidth")


def test_discovery_problems_come_first_and_labels_open_by_keyboard(browser: Browser, made: Served) -> None:
    browser.screen(1280, 900)
    browser.open(made.base_url)
    text = _text(browser)
    assert text.index("Discovery has problems") < text.index("Needs attention")
    assert "pods https://10.0.0.1/api: HTTP 403; it needs a Role" in text
    assert EVIL in text
    heading = "document.querySelector(`#${document.querySelector('section').getAttribute('aria-labelledby')}`)"
    assert browser.evaluate(f"{heading}.innerText") == "Discovery has problems"
    browser.open(f"{made.base_url}/targets/{made.monitor.shown[1].name}")
    assert "group-unique-hash" not in _text(browser)
    browser.evaluate("document.querySelector('#labels summary').focus()")
    browser.press("Enter")
    browser.until("document.querySelector('#labels').open")
    assert "leaderworkerset.sigs.k8s.io/group-unique-hash 0f0f" in _text(browser, "#labels")
    browser.evaluate("document.querySelector('#labels dl').id = 'first'")
    browser.until("document.querySelector('#first') === null")
    assert browser.evaluate("document.querySelector('#labels').open"), "it stays open"
    assert browser.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert browser.complaints == []


@pytest.mark.fault(
    "NA4",
    "A name that a stranger lets point here (DNS rebinding)",
    area="Names",
    users_see="421: one line that names `web_allowed_hosts`",
    stays="pages answer allowed names",
)
def test_a_name_that_a_stranger_lets_point_here_shows_a_browser_nothing(
    chromium: str, made: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebound = "--host-resolver-rules=MAP *.example.org 127.0.0.1, MAP *.svc 127.0.0.1, EXCLUDE 127.0.0.1"
    monkeypatch.setattr("browser.FLAGS", (*FLAGS, rebound))
    port = made.base_url.rsplit(":", 1)[1]
    read = "fetch('/api/v1/targets').then((answer) => answer.text())"
    with Browser(chromium) as one:
        one.open(f"http://evil.example.org:{port}/metrics")
        assert "web_allowed_hosts" in one.evaluate(read)
        one.open(f"http://evil.example.org:{port}/")
        assert "web_allowed_hosts" in _text(one, "body")
        one.open(f"http://kneewatch.monitoring.svc:{port}/")
        assert '"name":"llama-1"' in one.evaluate(read)
        assert "Needs attention" in _text(one)


def test_a_chart_is_walked_through_by_keyboard_and_says_what_it_shows(browser: Browser, made: Served) -> None:
    browser.screen(1280, 900)
    browser.open(f"{made.base_url}/runs/good")
    browser.until("document.querySelectorAll('#charts canvas').length === 6")
    words = browser.evaluate("document.querySelectorAll('.chart')[1].ariaLabel")
    assert words.startswith("TTFT over requests in flight: p50 54 ms at the lowest load, 1.26 s at the highest")
    assert words.endswith("; knee at 32 requests in flight")
    browser.evaluate("document.querySelectorAll('.chart')[1].focus()")
    browser.press("ArrowRight")
    browser.until("document.querySelector('.tip') !== null")
    assert "4 requests in flight" in _text(browser, ".tip")
    browser.press("ArrowRight")
    browser.until("document.querySelector('.tip').innerText.includes('8 requests in flight')")


@pytest.mark.fault("SE8")
def test_hostile_words_in_a_tooltip_are_text(browser: Browser, made: Served) -> None:
    browser.screen(1280, 900)
    browser.open(made.base_url)
    browser.evaluate("[...document.querySelectorAll('a.name')].find((one) => one.innerText.includes('7*7')).click()")
    browser.until("document.querySelector('#waterfall canvas') !== null")
    browser.evaluate("document.querySelector('.waterfall').focus()")
    browser.press("ArrowRight")
    browser.until("document.querySelector('.tip') !== null")
    assert "{{7*7}}" in _text(browser, ".tip")
    assert browser.complaints == []


def test_targets_are_found_by_name_and_stay_found(browser: Browser, made: Served) -> None:
    browser.screen(1280, 900)
    browser.open(made.base_url)
    browser.evaluate(
        "(() => { const find = document.querySelector('#find'); find.value = 'LLAMA-11 ';"
        " find.dispatchEvent(new Event('input')); })()"
    )
    shown = "[...document.querySelectorAll('.targets tbody tr')].filter((row) => !row.hidden).length"
    assert browser.evaluate(shown) == 1
    browser.evaluate("document.querySelector('.targets').id = 'before'")
    browser.until("document.querySelector('#before') === null")
    assert browser.evaluate(shown) == 1
    assert browser.evaluate("document.querySelector('#find').value") == "LLAMA-11 "


def test_without_an_answer_the_page_says_how_old_it_is(browser: Browser) -> None:
    browser.screen(1280, 900)
    with Served(FakeMonitor([status()])) as pages:
        browser.open(pages.base_url)
    browser.until("document.querySelector('#fresh').innerText.startsWith('cannot refresh')")


@pytest.mark.alone
@pytest.mark.long
def test_two_hundred_targets_are_there_within_300_ms() -> None:
    """Each time with new canaries everywhere. The machine has other things to do, so the median counts."""
    times = []
    with Served(FakeMonitor()) as pages, httpx.Client(trust_env=False, timeout=30) as client:
        for _ in range(7):
            pages.monitor.shown = fleet(200)
            begun = time.perf_counter()
            answer = client.get(pages.base_url)
            times.append(time.perf_counter() - begun)
            assert answer.text.count('class="name"') == 200
    assert sorted(times)[3] < 0.3, times
