"""What fires and the run under way, on the pages."""

import asyncio
import re
import time

import httpx
from example_records import status, step
from fake_monitor import FakeMonitor

from probe.core.result import RunProgress
from probe.core.target_status import FiringAlert, FiringAlerts
from probe.report.figures import moment
from probe.web.pages import build_pages

NIGHT_S = 1_795_402_140.0  # 2026-11-23 02:49:00 UTC
PAGE = FiringAlert("KneewatchAvailabilityBurn", "page", "a", NIGHT_S)
TICKET = FiringAlert("KneewatchConfigRefused", "ticket", None, None)


def _text(monitor: FakeMonitor, path: str = "/") -> str:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(build_pages(monitor))
        async with httpx.AsyncClient(transport=transport, base_url="http://monitor") as client:
            return await client.get(path)

    return " ".join(re.sub("<[^>]*>", " ", asyncio.run(ask()).text.partition("<main")[2]).split())


def test_alerts_that_fire_are_on_the_first_page_and_on_that_of_their_target() -> None:
    monitor = FakeMonitor([status(name="a"), status(name="b")], alerts=FiringAlerts((PAGE, TICKET), NIGHT_S))
    first = _text(monitor)
    assert f"Firing alerts a KneewatchAvailabilityBurn, page, since {moment(NIGHT_S, time.time())}" in first
    assert "no target KneewatchConfigRefused, ticket" in first
    of_a = _text(monitor, "/targets/a")
    assert "KneewatchAvailabilityBurn" in of_a
    assert "KneewatchConfigRefused" not in of_a
    assert "No alert fires for this target in Prometheus" in _text(monitor, "/targets/b")


def test_the_sixth_alert_and_the_others_are_folded_with_the_pages_first() -> None:
    many = [FiringAlert(f"KneewatchTicket{i}", "ticket", "a", NIGHT_S) for i in range(120)]
    text = _text(FakeMonitor([status(name="a")], alerts=FiringAlerts((PAGE, *many), NIGHT_S)))
    assert text.index("KneewatchAvailabilityBurn") < text.index("KneewatchTicket3,") < text.index(" 116 more ")
    assert text.index(" 116 more ") < text.index("KneewatchTicket4,")
    assert "and 21 more, in Prometheus" in text


def test_alerts_are_unknown_where_prometheus_does_not_answer_or_is_not_configured() -> None:
    failing = FiringAlerts((), NIGHT_S, "http://p:9090: Prometheus does not answer")
    for path in ("/", "/targets/a"):
        text = _text(FakeMonitor([status(name="a")], alerts=failing), path)
        assert "Firing alerts are unknown http://p:9090: Prometheus does not answer" in text
        assert "No alert fires" not in text
        text = _text(FakeMonitor([status(name="a")]), path)
        assert "firing alerts are not known here: no `prometheus` in the configuration, or no answer yet" in text
        assert "No alert fires" not in text


def test_a_run_under_way_shows_its_steps_and_what_it_does_now() -> None:
    begun = RunProgress(time.time() - 30, "first requests")
    text = _text(FakeMonitor([status(name="a", run=begun, capacity_state="running")]), "/targets/a")
    assert "A capacity run is in progress first requests; began 30 s ago" in text
    assert "No step has ended yet." in text
    later = RunProgress(time.time() - 90, "8 in flight", (step(4), step(8, broken=("ttft",))))
    text = _text(FakeMonitor([status(name="a", run=later, capacity_state="running")]), "/targets/a")
    assert "4 in flight passed 10" in text
    assert "8 in flight broke ttft 10" in text
