"""The names that the pages answer to: a stranger's name that points to our address gets nothing of them."""

import asyncio

import httpx
import pytest
from fake_monitor import FakeMonitor

from probe.web.hosts import ANY_HOST_PATHS, is_allowed
from probe.web.pages import build_pages
from probe.web.serve import serve

PATHS = ["/", "/targets/a", "/config", "/api/v1/targets", "/api/v1/openapi.json", "/probe?target=a", "/nope"]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:9876",
        "10.1.2.3",
        "[::1]:9876",
        "[2001:db8::1]",
        "[::ffff:10.0.0.1]:9876",
        "localhost:9876",
        "LocalHost",
        "me.localhost",
        "kneewatch",
        "kneewatch:9876",
        "kneewatch_1",
        "kneewatch.monitoring.svc:9876",
        "kneewatch.monitoring.svc.cluster.local:9876",
        "kneewatch.monitoring.svc.cluster.local.",
        "box.local",
        "ip-10-0-0-1.ec2.internal",
    ],
)
def test_names_that_no_stranger_can_have_are_taken(host: str) -> None:
    assert is_allowed(host, ())


@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        "evil.test:9876",
        "127.0.0.1.evil.test",
        "localhost.evil.test",
        "kneewatch.monitoring",
        "kneewatch.monitoring.svc.evil.test",
        "evilsvc.test",
        "evil.test#.svc",
        "evil.test/.local",
        "a@evil.local",
        "evil.test:1.local",
        "evil.test:x",
        "[evil.test]",
        "[dead]",
        "[::1].evil.test",
        "[::1",
        "evil.test .local",
        "1.2.3",
        "",
        ":9876",
        ".",
        "..",
        "\u212aneewatch",
    ],
)
def test_names_that_a_stranger_may_have_are_not(host: str) -> None:
    assert not is_allowed(host, ())


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("kneewatch.example.org", True),
        ("KNEEWATCH.example.ORG:443", True),
        ("kneewatch.example.org.", True),
        ("other.example.org", False),
        ("kneewatch.example.org.evil.test", False),
        ("a.below.example.net", True),
        ("a.b.below.example.net", True),
        ("below.example.net", False),
        ("evilbelow.example.net", False),
    ],
)
def test_configured_names_are_taken_and_all_below_one_with_a_dot(host: str, ours: bool) -> None:  # noqa: FBT001
    assert is_allowed(host, ("Kneewatch.example.org", ".below.example.net")) is ours


def _ask(monitor: FakeMonitor, path: str, host: str | None, method: str = "GET") -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(build_pages(monitor))
        async with httpx.AsyncClient(transport=transport, base_url="http://monitor") as client:
            request = client.build_request(method, path)
            del request.headers["host"]
            if host is not None:
                request.headers["host"] = host
            return await client.send(request)

    return asyncio.run(ask())


@pytest.mark.parametrize("host", ["evil.test:9876", "", None])
@pytest.mark.fault("NA4")
def test_everything_but_what_probes_and_prometheus_ask_for_wants_one_of_its_names(host: str | None) -> None:
    monitor = FakeMonitor()
    for path in PATHS:
        answer = _ask(monitor, path, host)
        assert answer.status_code == 421, path
        (line,) = answer.text.splitlines()
        assert "web_allowed_hosts" in line
        assert answer.headers["cache-control"] == "no-store"
    assert _ask(monitor, "/-/reload", host, "POST").status_code == 421
    assert (monitor.asked, monitor.reloads) == ([], 0)
    for path in ANY_HOST_PATHS:
        assert _ask(monitor, path, host).status_code == 200, path


def test_a_name_that_is_configured_while_it_runs_is_taken_at_once() -> None:
    async def main() -> None:
        monitor = FakeMonitor()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(build_pages(monitor))) as client:
            assert (await client.get("http://kneewatch.example.org/")).status_code == 421
            monitor.allowed_hosts = ("kneewatch.example.org",)
            assert (await client.get("http://kneewatch.example.org/")).status_code == 200

    asyncio.run(main())


def test_this_machines_own_name_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Node-1.example.org")
    assert _ask(FakeMonitor(), "/", "node-1.example.org:9876").status_code == 200


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"Host: kneewatch\r\n", b"200"),
        (b"Host: kneewatch\r\nHost: evil.test\r\n", b"421"),
        (b"Host: evil.test\r\nHost: kneewatch\r\n", b"421"),
        (b"", b"421"),
    ],
)
def test_one_host_and_no_other_is_named_on_the_wire(head: bytes, code: bytes) -> None:
    async def main() -> None:
        async with serve(build_pages(FakeMonitor()), "127.0.0.1", 0) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
            writer.write(b"GET /config HTTP/1.0\r\n" + head + b"\r\n")
            assert (await asyncio.wait_for(reader.readline(), 5)).split()[1] == code
            writer.close()

    asyncio.run(main())
