"""/probe: one request to a target that is watched, as metrics; no more of them than a server can bear."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import httpx
import pytest
from example_records import CHAT, record, status
from fake_monitor import FakeMonitor
from prometheus_client.parser import text_string_to_metric_families

from probe.core.errors import TargetError
from probe.core.request import Outcome, RequestRecord, Traffic
from probe.core.target_status import TargetStatus
from probe.web import on_demand, serve
from probe.web.on_demand import BURST, EVERY_S, RateLimiter, exposition
from probe.web.pages import build_pages


def _ask(monitor: FakeMonitor, *paths: str, headers: Mapping[str, str] | None = None) -> list[httpx.Response]:
    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(build_pages(monitor))
        async with httpx.AsyncClient(transport=transport, base_url="http://monitor", headers=headers) as client:
            return [await client.get(path) for path in paths]

    return asyncio.run(ask())


def _values(page: str) -> dict[str, float]:
    return {
        sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_a_target_is_asked_once_and_its_answer_is_metrics() -> None:
    monitor = FakeMonitor()
    (answer,) = _ask(monitor, "/probe?target=a&workload=short")
    assert monitor.asked == [("a", "short")]
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = _values(answer.text)
    assert found["probe_success"] == 1
    assert found["probe_ttft_seconds"] == pytest.approx(0.1)
    assert found["probe_tpot_seconds"] == pytest.approx(0.01)
    assert found["probe_itl_max_seconds"] == pytest.approx(0.01)
    assert found["probe_tokens{prompt}"] == 8
    assert found["probe_objective_met{all}"] == 1
    assert found["probe_outcome_info{ok}{m}{short}"] == 1
    assert found["probe_duration_seconds"] < 5


def test_a_request_that_failed_is_an_answer_too_with_its_reason() -> None:
    monitor = FakeMonitor(answers=record(outcome=Outcome.SERVER_ERROR, detail="HTTP 503:\nfull", http_status=503))
    plain, modern = (
        _ask(monitor, "/probe?target=a", headers={"accept": accept})[0]
        for accept in ("*/*", "application/openmetrics-text")
    )
    assert plain.status_code == 200
    found = _values(plain.text)
    assert (found["probe_success"], found["probe_http_status_code"]) == (0, 503)
    assert found["probe_objective_met{availability}"] == 0
    assert "probe_ttft_seconds" not in found, "none is no zero"
    assert "# reason: HTTP 503: full\n" in plain.text
    assert modern.text.endswith("# EOF\n")
    assert "# reason" not in modern.text


@pytest.mark.parametrize(
    ("path", "status_code"),
    [
        ("/probe", 400),
        ("/probe?target=", 400),
        ("/probe?target=b", 404),
        ("/probe?target=http://169.254.169.254/", 404),
        ("/probe?target=a&workload=nope", 404),
        ("/probe?target=still", 403),
    ],
)
@pytest.mark.fault(
    "SE11",
    "An address in a probe's query (request forgery)",
    area="Security",
    users_see="refused: only configured targets",
    stays="nothing is sent",
)
def test_only_what_is_configured_is_asked(path: str, status_code: int) -> None:
    monitor = FakeMonitor([status(), status(name="still", passive=True)])
    (answer,) = _ask(monitor, path)
    assert answer.status_code == status_code
    assert len(answer.text.splitlines()) == 1
    assert monitor.asked == []


@pytest.mark.parametrize(("site", "status_code"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200)])
@pytest.mark.fault(
    "SE10",
    "Another site's page asks for a canary",
    area="Security",
    users_see="refused",
    stays="nothing is sent",
)
def test_another_sites_page_triggers_no_canary(site: str, status_code: int) -> None:
    monitor = FakeMonitor()
    (answer,) = _ask(monitor, "/probe?target=a", headers={"sec-fetch-site": site})
    assert answer.status_code == status_code
    assert len(monitor.asked) == (status_code == 200)


@pytest.mark.parametrize(
    ("headers", "status_code"),
    [
        ({"origin": "http://evil.test"}, 403),
        ({"origin": "null"}, 403),
        ({"referer": "http://evil.test/page"}, 403),
        ({"origin": "http://kneewatch.local", "host": "kneewatch.local"}, 200),
        ({"referer": "http://kneewatch.local/targets/a", "host": "kneewatch.local"}, 200),
    ],
)
def test_a_browser_over_plain_http_says_by_other_headers_who_asks(headers: dict[str, str], status_code: int) -> None:
    monitor = FakeMonitor()
    (answer,) = _ask(monitor, "/probe?target=a", headers=headers)
    assert answer.status_code == status_code
    assert len(monitor.asked) == (status_code == 200)


@pytest.mark.fault(
    "SE12",
    "Probes without end",
    area="Security",
    users_see="429 with a time to wait",
    stays="the server gets at most twelve a minute",
)
def test_a_server_is_asked_no_more_often_than_it_can_bear() -> None:
    monitor = FakeMonitor([status(), status(name="b")])
    answers = _ask(monitor, *["/probe?target=a"] * (BURST + 2), "/probe?target=b")
    assert [answer.status_code for answer in answers] == [200] * BURST + [429] * 2 + [200]
    assert 1 <= int(answers[-2].headers["retry-after"]) <= EVERY_S + 1


def test_the_bucket_fills_with_time_and_forgets_who_is_full() -> None:
    now = 100.0
    limiter = RateLimiter(lambda: now)
    assert [limiter.wait_s("a") for _ in range(BURST)] == [0.0] * BURST
    assert limiter.wait_s("a") == pytest.approx(EVERY_S)
    now += EVERY_S
    assert limiter.wait_s("a") == 0.0
    assert limiter.wait_s("a") == pytest.approx(EVERY_S)
    now += EVERY_S * (BURST + 1)
    limiter.wait_s("b")
    assert set(limiter._full_at) == {"b"}


class _Slow(FakeMonitor):
    async def on_demand(self, target: str, workload: str | None) -> RequestRecord:
        await asyncio.sleep(30)
        return await super().on_demand(target, workload)


class _Asleep(FakeMonitor):
    async def on_demand(self, target: str, workload: str | None) -> RequestRecord:  # noqa: ARG002
        raise TargetError("the server sleeps; nothing was sent", Outcome.ABORTED)


def test_a_server_that_sleeps_is_a_conflict_and_no_failed_probe() -> None:
    (answer,) = _ask(_Asleep(), "/probe?target=a")
    assert (answer.status_code, answer.text) == (409, "the server sleeps; nothing was sent\n")


class _Leaving(FakeMonitor):
    """Its targets go while they are asked, before the answer is counted or after."""

    counted = False

    async def on_demand(self, target: str, workload: str | None) -> RequestRecord:
        answer = await super().on_demand(target, workload)
        self.shown = [one for one in self.shown if one.name != target]
        if not self.counted:
            raise KeyError(target)
        return answer


@pytest.mark.fault(
    "PR11",
    "A target goes while Prometheus probes it",
    area="Prometheus",
    users_see="404: the target was removed",
    stays="neither workload nor server is blamed",
)
def test_a_target_that_goes_meanwhile_is_what_is_gone_and_neither_workload_nor_server_is_blamed() -> None:
    uncounted, failed = _Leaving(), _Leaving(answers=record(outcome=Outcome.UNREACHABLE))
    failed.counted = True
    for monitor in (uncounted, failed):
        (answer,) = _ask(monitor, "/probe?target=a&workload=short")
        assert (answer.status_code, answer.text) == (404, "the target was removed during the request\n")
    there = _Leaving()
    there.counted = True
    (answer,) = _ask(there, "/probe?target=a")
    assert _values(answer.text)["probe_success"] == 1, "it had answered"


@pytest.mark.fault(
    "PR12",
    "Prometheus' scrape timeout is shorter than a probe",
    area="Prometheus",
    users_see="the probe answers before, with `timeout`",
    stays="-",
)
def test_it_answers_before_prometheus_stops_waiting() -> None:
    (answer,) = _ask(_Slow(), "/probe?target=a", headers={"x-prometheus-scrape-timeout-seconds": "0.4"})
    found = _values(answer.text)
    assert found["probe_success"] == 0
    assert found["probe_outcome_info{timeout}{}{}"] == 1
    assert 0.1 < found["probe_duration_seconds"] < 10
    assert "# reason: given up after 0." in answer.text
    assert " s, the time limit of this probe; a longer scrape_timeout raises it" in answer.text


def test_a_probe_without_a_scrape_timeout_ends_before_the_web_server_ends_its_connection() -> None:
    assert on_demand._MAX_TIMEOUT_S < serve.RESPONSE_S


@pytest.mark.parametrize("header", ["x", "-1", "0", "nan", "inf", ""])
@pytest.mark.fault(
    "PR13",
    "A scrape timeout header that makes no sense",
    area="Prometheus",
    users_see="it is ignored",
    stays="-",
)
def test_a_timeout_that_makes_no_sense_is_none(header: str) -> None:
    (answer,) = _ask(FakeMonitor(), "/probe?target=a", headers={"x-prometheus-scrape-timeout-seconds": header})
    assert _values(answer.text)["probe_success"] == 1


@pytest.mark.parametrize("evil", ['"} 1\nup 0\n#', "\ud800", "a\\b", "# EOF"])
def test_names_of_others_stay_in_their_labels(evil: str) -> None:
    hostile: TargetStatus = status()
    asked = replace(record(model=evil, detail=evil, outcome=Outcome.TIMEOUT), traffic=Traffic.ONDEMAND)
    page, _ = exposition(asked, hostile.objectives, 0.1)
    names = {family.name for family in text_string_to_metric_families(page.decode())}
    assert all(name.startswith("probe_") for name in names)


def test_without_promises_only_being_there_is_met() -> None:
    page, _ = exposition(record(), replace(CHAT, ttft=None, tpot=None), 0.1)
    assert "probe_objective_met{ttft}" not in _values(page.decode())
