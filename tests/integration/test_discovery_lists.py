"""Servers found in files, at a registry and in the DNS: real files, a real HTTP server, a real DNS server."""

import asyncio
import json
import os
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest
import trustme
from both_loops import Run

from probe.config.discovery import DnsDiscovery, FileDiscovery, HttpDiscovery
from probe.discovery import target_groups as groups
from probe.discovery.dns_sd import DnsSource
from probe.discovery.file_sd import FileSource
from probe.discovery.http_sd import HttpSource
from probe.discovery.polling import ProblemReporter
from probe.discovery.types import DiscoveredServer, Discovery, State

pytestmark = [pytest.mark.alone, pytest.mark.long]

EVERY_S = 0.05


@dataclass
class Listener:
    states: list[State] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reported = ProblemReporter(self.said.append, lambda: self.said.append("well"))

    @property
    def ids(self) -> list[str] | None:
        return [found.id for found in self.states[-1]] if self.states else None

    async def until(self, check: Callable[[], object], within_s: float = 20.0) -> None:
        end = time.monotonic() + within_s
        while not check():
            assert time.monotonic() < end, (self.ids, self.said)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def listening(seen: Listener, source: Discovery) -> AsyncIterator[Listener]:
    async def listen() -> None:
        async with aclosing(source.states()) as states:
            async for state in states:
                seen.states.append(state)

    task = asyncio.create_task(listen())
    try:
        yield seen
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def files(seen: Listener, *patterns: str) -> FileSource:
    config = FileDiscovery.model_validate({"files": patterns})
    return FileSource(config.model_copy(update={"every": EVERY_S}), "http", "", seen.reported)


def registry(seen: Listener, url: str, **more: Any) -> HttpSource:
    config = HttpDiscovery.model_validate({"url": url} | more)
    return HttpSource(config.model_copy(update={"every": EVERY_S}), "http", "", seen.reported)


def test_files_of_both_formats_are_read_and_read_again(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "a.yml").write_text("- targets: ['10.0.0.1:8000']\n  labels: {team: chat, __meta_x: y}\n")
        (tmp_path / "b.json").write_text('[{"targets": ["10.0.0.2:8000"]}]')
        seen = Listener()
        async with listening(seen, files(seen, f"{tmp_path}/*.yml", f"{tmp_path}/b.json")):
            await seen.until(lambda: seen.ids == ["10.0.0.1:8000", "10.0.0.2:8000"])
            assert seen.states[0][0] == DiscoveredServer("10.0.0.1:8000", "http://10.0.0.1:8000", {"team": "chat"})
            (tmp_path / "c.yml").write_text("- targets: ['10.0.0.3:8000']\n")
            await seen.until(lambda: len(seen.states[-1]) == 3)
            (tmp_path / "a.yml").unlink()
            await seen.until(lambda: seen.ids == ["10.0.0.2:8000", "10.0.0.3:8000"])
            assert seen.said == []

    run(story())


@pytest.mark.fault("CO13")
def test_a_swapped_link_of_a_config_map_is_noticed(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        for version, address in (("1", "10.0.0.1:8000"), ("2", "10.0.0.2:8000")):
            (tmp_path / version).mkdir()
            (tmp_path / version / "targets.yml").write_text(f"- targets: ['{address}']\n")
        (tmp_path / "..data").symlink_to("1")
        (tmp_path / "targets.yml").symlink_to("..data/targets.yml")
        seen = Listener()
        async with listening(seen, files(seen, f"{tmp_path}/*.yml")):
            await seen.until(lambda: seen.ids == ["10.0.0.1:8000"])
            (tmp_path / "..new").symlink_to("2")
            (tmp_path / "..new").rename(tmp_path / "..data")
            await seen.until(lambda: seen.ids == ["10.0.0.2:8000"])
            assert len(seen.states) == 2, "never nothing in between"

    run(story())


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("- targets: ['10.0.0.1:80", "(line "),
        ("targets: []", "expected a list of target groups"),
        ("- targets: ['http://x']", "'http://x' is not HOST:PORT"),
        ("- !!python/object:os.system {}", "could not determine a constructor"),
        ("&a [*a]", "group 0: expected a mapping"),
    ],
)
@pytest.mark.fault(
    "SE26",
    "YAML that constructs Python objects in a target file",
    area="Security",
    users_see="refused",
    stays="what the file said before",
)
@pytest.mark.fault(
    "CO15",
    "A target file that is broken",
    area="Configuration",
    users_see="one line",
    stays="its last servers, and the other files'",
)
def test_a_broken_file_keeps_what_it_said_and_others_go_on(run: Run, tmp_path: Path, broken: str, words: str) -> None:
    async def story() -> None:
        (tmp_path / "a.yml").write_text("- targets: ['10.0.0.1:8000']\n")
        (tmp_path / "b.yml").write_text("- targets: ['10.0.0.2:8000']\n")
        seen = Listener()
        async with listening(seen, files(seen, f"{tmp_path}/*.yml")):
            await seen.until(lambda: seen.ids == ["10.0.0.1:8000", "10.0.0.2:8000"])
            (tmp_path / "a.yml").write_text(broken)
            (tmp_path / "b.yml").write_text("- targets: ['10.0.0.3:8000']\n")
            await seen.until(lambda: seen.said and "10.0.0.3:8000" in (seen.ids or ()))
            assert str(tmp_path / "a.yml") in seen.said[0]
            assert words in seen.said[0]
            if "http://" not in broken:
                assert seen.ids == ["10.0.0.1:8000", "10.0.0.3:8000"]
            (tmp_path / "a.yml").write_text("- targets: ['10.0.0.4:8000']\n")
            await seen.until(lambda: seen.ids == ["10.0.0.3:8000", "10.0.0.4:8000"])
            assert seen.said[-1] == "well"

    run(story())


FULL, HALF = "- targets:\n  - 10.0.0.1:8000\n  - 10.0.0.2:8000\n", "- targets:\n  - 10.0.0.1:8000\n"


@pytest.mark.parametrize("half", [HALF, "- targets:\n", None])
@pytest.mark.fault(
    "CO16",
    "A target file that is written in pieces",
    area="Configuration",
    users_see="nothing",
    stays="no target is lost in between",
)
def test_a_file_that_is_rewritten_in_pieces_or_replaced_loses_no_targets(
    run: Run, tmp_path: Path, half: str | None
) -> None:
    async def story() -> None:
        path = tmp_path / "a.yml"
        path.write_text(FULL)
        seen = Listener()
        source = files(seen, str(path))
        async with listening(seen, source):
            await seen.until(lambda: seen.states)
            path.unlink() if half is None else path.write_text(half)
            await seen.until(lambda: source._doubted)
            path.write_text(FULL + "  - 10.0.0.3:8000\n")
            await seen.until(lambda: len(seen.states) > 1)
            assert [len(state) for state in seen.states] == [2, 3]
            assert seen.said == []
            path.write_text(HALF)
            await seen.until(lambda: seen.ids == ["10.0.0.1:8000"])

    run(story())


@pytest.mark.parametrize("name", ["a.yml", "a.json"])
@pytest.mark.fault(
    "CO17",
    "A target file that is emptied by accident",
    area="Configuration",
    users_see="one line: write `[]` for no targets",
    stays="its last servers",
)
def test_an_emptied_file_says_nothing_and_an_empty_list_says_none(run: Run, tmp_path: Path, name: str) -> None:
    async def story() -> None:
        path = tmp_path / name
        path.write_text('[{"targets": ["10.0.0.1:8000"]}]')
        seen = Listener()
        async with listening(seen, files(seen, str(path))):
            await seen.until(lambda: seen.states)
            path.write_text("\n")
            await seen.until(lambda: seen.said)
            words = "it is empty; write [] for no targets; its last servers are kept"
            assert seen.said == [f"{path}: {words}"]
            assert seen.ids == ["10.0.0.1:8000"]
            path.write_text("[]")
            await seen.until(lambda: seen.ids == [])
            assert seen.said[-1] == "well"

    run(story())


@pytest.mark.fault(
    "CO18",
    "A target file that keeps changing",
    area="Configuration",
    users_see="one line",
    stays="its last servers until it settles",
)
def test_a_file_that_keeps_changing_is_reported_and_read_once_it_settles(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        monkeypatch.setattr("probe.discovery.file_sd._SETTLED_S", 0.3)
        path = tmp_path / "a.yml"
        path.write_text(FULL)
        seen = Listener()
        async with listening(seen, files(seen, str(path))):
            await seen.until(lambda: seen.states)
            path.write_text(HALF)
            stamp = 1

            def is_told() -> bool:
                nonlocal stamp
                stamp += 1
                os.utime(path, ns=(stamp, stamp))
                return bool(seen.said)

            await seen.until(is_told)
            assert seen.said == [f"{path}: it is being written; its last servers are kept"]
            assert len(seen.states) == 1
            await seen.until(lambda: seen.ids == ["10.0.0.1:8000"])
            assert seen.said[-1] == "well"

    run(story())


@pytest.mark.fault(
    "CO19",
    "A link of a target file that leads to itself",
    area="Configuration",
    users_see="one line",
    stays="its last servers",
)
def test_a_file_that_cannot_be_looked_at_has_not_gone(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "now").mkdir()
        (tmp_path / "now" / "a.yml").write_text(FULL)
        seen = Listener()
        async with listening(seen, files(seen, f"{tmp_path}/now/a.yml")):
            await seen.until(lambda: seen.states)
            (tmp_path / "now").rename(tmp_path / "away")
            (tmp_path / "now").symlink_to("now")
            await seen.until(lambda: "symbolic links; its last servers are kept" in (seen.said or [""])[-1])
            await asyncio.sleep(1.5)
            assert len(seen.states) == 1
            (tmp_path / "now").unlink()
            await seen.until(lambda: seen.ids == [])

    run(story())


def test_a_pattern_without_files_is_reported_and_yields_no_targets(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        seen = Listener()
        async with listening(seen, files(seen, f"{tmp_path}/none/*.yml")):
            await seen.until(lambda: seen.states == [()])
            assert seen.said == [f"{tmp_path}/none/*.yml: no file matches"]

    run(story())


class Registry:
    """An HTTP server with one answer to everything."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.body = b"[]"
        self.heads: list[str] = []

    def says(self, groups: object, status: int = 200) -> None:
        self.body, self.status = json.dumps(groups).encode(), status

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            head = f"HTTP/1.1 {self.status} X\r\nlocation: http://127.0.0.1:1/\r\nconnection: close\r\n"
            writer.write(f"{head}content-length: {len(self.body)}\r\n\r\n".encode() + self.body)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def http_registry(tls: ssl.SSLContext | None = None) -> AsyncIterator[Registry]:
    its = Registry()
    async with await asyncio.start_server(its.serve, "127.0.0.1", 0, ssl=tls) as server:
        scheme = "http" if tls is None else "https"
        its.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield its


@pytest.mark.fault(
    "SE25",
    "A registry redirects to another address",
    area="Security",
    users_see="one line: HTTP 302, without the query of its URL",
    stays="not followed",
)
@pytest.mark.fault(
    "CO20",
    "A registry that answers 500, a redirect, HTML or no list",
    area="Configuration",
    users_see="one line, without its query",
    stays="the last servers",
)
def test_a_registry_is_asked_again_and_its_failures_leave_what_it_listed(run: Run) -> None:
    async def story() -> None:
        async with http_registry() as its:
            its.says([{"targets": ["10.0.0.1:8000"], "labels": {"team": "chat", "__meta_dc": "x"}}])
            seen = Listener()
            async with listening(seen, registry(seen, f"{its.url}/sd?key=hidden")):
                await seen.until(lambda: seen.ids == ["10.0.0.1:8000"])
                assert seen.states[0][0].labels == {"team": "chat"}
                assert its.heads[0].startswith("GET /sd?key=hidden HTTP/1.1")
                assert "x-prometheus-refresh-interval-seconds: 0" in its.heads[0].lower()
                for status, body, words in (
                    (500, b"[]", "HTTP 500"),
                    (302, b"[]", "HTTP 302"),
                    (200, b"<html>", "Expecting value"),
                    (200, b"{}", "expected a list of target groups"),
                    (200, b'["\xff"]', "the answer is not JSON (it is not UTF-8)"),
                ):
                    its.status, its.body = status, body
                    await seen.until(lambda words=words: words in (seen.said or [""])[-1])  # type: ignore[misc]
                assert seen.ids == ["10.0.0.1:8000"]
                assert "hidden" not in str(seen.said)
                its.says([])
                await seen.until(lambda: seen.ids == [])
                assert seen.said[-1] == "well"

    run(story())


@pytest.mark.fault(
    "ST10",
    "A registry's answer of a million targets",
    area="Starvation",
    users_see="refused: more than 10,000",
    stays="parsed in a thread, within 0.5 s of CPU",
)
def test_a_registry_s_answer_is_parsed_in_a_thread_and_a_large_one_refused_at_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One target a million times over has no more servers than one, and took the event loop for seconds."""
    threads: list[threading.Thread] = []
    seconds: list[float] = []

    def read(document: object, scheme: str, path: str) -> tuple[State, list[str]]:
        threads.append(threading.current_thread())
        begun = time.thread_time()
        try:
            return groups.read(document, scheme, path)
        finally:
            seconds.append(time.thread_time() - begun)

    async def story() -> None:
        async with http_registry() as its:
            its.says([{"targets": ["10.0.0.1:8000"]}])
            seen = Listener()
            async with listening(seen, registry(seen, its.url)):
                await seen.until(lambda: seen.states)
                its.body = b'[{"targets":[' + b'"a:1",' * 200_000 + b'"a:1"]}]'
                await seen.until(lambda: seen.said)
                assert seen.said == [f"{its.url}: more than 10000 targets; its last servers are kept"]
                assert seen.ids == ["10.0.0.1:8000"]

    monkeypatch.setattr("probe.discovery.http_sd.groups", SimpleNamespace(read=read))
    run(story())
    assert threading.main_thread() not in threads
    assert max(seconds) < 0.5


def test_a_registry_behind_tls_and_a_token(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        authority = trustme.CA()
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(tls)
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        (tmp_path / "token").write_text("first\n")
        async with http_registry(tls) as its:
            its.says([{"targets": ["10.0.0.1:8000"]}])
            seen = Listener()
            paths = {"token_file": tmp_path / "token", "ca_file": tmp_path / "ca.pem"}
            async with listening(seen, registry(seen, its.url, **paths)):
                await seen.until(lambda: seen.ids == ["10.0.0.1:8000"])
                assert "authorization: Bearer first" in its.heads[0]
                (tmp_path / "token").write_text("second\n")
                await seen.until(lambda: "authorization: Bearer second" in its.heads[-1])
                assert seen.said == []
            distrustful = Listener()
            async with listening(distrustful, registry(distrustful, its.url)):
                await distrustful.until(lambda: "CERTIFICATE_VERIFY_FAILED" in str(distrustful.said))

    run(story())


class DnsServer(asyncio.DatagramProtocol):
    """Answers what the test says; None: nothing at all."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] | None = {}
        self.code = dns.rcode.NOERROR

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        if self.records is None:
            return
        query = dns.message.from_wire(data)
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        answer.set_rcode(self.code)
        (question,) = query.question
        kind = dns.rdatatype.to_text(question.rdtype)
        if found := self.records.get((str(question.name), kind)):
            answer.answer.append(dns.rrset.from_text(question.name, 5, "IN", kind, *found))
        self.transport.sendto(answer.to_wire(), address)  # type: ignore[attr-defined]


@asynccontextmanager
async def name_server() -> AsyncIterator[tuple[DnsServer, dns.asyncresolver.Resolver]]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(DnsServer, local_addr=("127.0.0.1", 0))
    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers = ["127.0.0.1"]
    resolver.port = transport.get_extra_info("sockname")[1]
    resolver.timeout = 0.2
    try:
        yield server, resolver
    finally:
        transport.close()


def by_dns(seen: Listener, resolver: dns.asyncresolver.Resolver, **config: Any) -> DnsSource:
    read = DnsDiscovery.model_validate(config).model_copy(update={"every": EVERY_S})
    return DnsSource(read, "http", "/llm", seen.reported, resolver=resolver)


@pytest.mark.parametrize(
    ("kind", "records", "found"),
    [
        ("A", ["10.0.0.2", "10.0.0.1"], [("10.0.0.1:8000", "http://10.0.0.1:8000/llm"), ("10.0.0.2:8000", None)]),
        ("AAAA", ["fd00::1"], [("[fd00::1]:8000", "http://[fd00::1]:8000/llm")]),
        (
            "SRV",
            ["0 50 8000 Qwen-0.qwen.", "0 50 8001 qwen-1.qwen.", "0 0 0 ."],
            [("qwen-0.qwen:8000", "http://qwen-0.qwen:8000/llm"), ("qwen-1.qwen:8001", None)],
        ),
    ],
)
def test_names_become_servers(run: Run, kind: str, records: list[str], found: list[tuple[str, str | None]]) -> None:
    async def story() -> None:
        async with name_server() as (server, resolver):
            server.records = {("qwen.serving.", kind): records}
            seen = Listener()
            port = {} if kind == "SRV" else {"port": 8000}
            async with listening(seen, by_dns(seen, resolver, name="qwen.serving", type=kind, **port)):
                await seen.until(lambda: seen.states)
                assert [one.id for one in seen.states[0]] == [name for name, _ in found]
                assert seen.states[0][0].base_url == found[0][1]
                assert seen.said == []

    run(story())


@pytest.mark.fault(
    "NA2",
    "A DNS name goes, or the server fails",
    area="Names",
    users_see="gone names go; on failure what was found stays",
    stays="-",
)
def test_addresses_that_go_are_gone_and_failures_leave_them(run: Run) -> None:
    async def story() -> None:
        async with name_server() as (server, resolver):
            server.records = {("qwen.", "A"): ["10.0.0.1", "10.0.0.2"]}
            seen = Listener()
            async with listening(seen, by_dns(seen, resolver, name="qwen", port=8000)):
                await seen.until(lambda: seen.ids == ["10.0.0.1:8000", "10.0.0.2:8000"])
                server.records = {("qwen.", "A"): ["10.0.0.2"]}
                await seen.until(lambda: seen.ids == ["10.0.0.2:8000"])
                server.code = dns.rcode.SERVFAIL
                await seen.until(lambda: seen.said)
                assert seen.said[-1].endswith("the last servers are kept")
                assert seen.ids == ["10.0.0.2:8000"]
                server.code, server.records = dns.rcode.NXDOMAIN, {}
                await seen.until(lambda: seen.said[-1].startswith("qwen: the DNS has no A records of this name"))
                assert seen.ids == ["10.0.0.2:8000"], "a single answer like that may be a resolver that restarts"
                await seen.until(lambda: seen.ids == [])
                assert seen.said[-1] == "well", "no servers is an answer"
                server.code, server.records = dns.rcode.NOERROR, {("qwen.", "A"): ["10.0.0.3"]}
                await seen.until(lambda: seen.ids == ["10.0.0.3:8000"])
                assert seen.said[-1] == "well"

    run(story())


@pytest.mark.fault(
    "NA1",
    "The DNS server is silent",
    area="Names",
    users_see="discovery reports it",
    stays="what was found stays",
)
def test_a_dns_server_that_is_silent_leaves_what_was_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr("probe.discovery.dns_sd._LIFETIME_S", 0.5)
        async with name_server() as (server, resolver):
            server.records = {("qwen.", "A"): ["10.0.0.1"]}
            seen = Listener()
            async with listening(seen, by_dns(seen, resolver, name="qwen", port=8000)):
                await seen.until(lambda: seen.ids == ["10.0.0.1:8000"])
                server.records = None
                await seen.until(lambda: seen.said)
                assert seen.ids == ["10.0.0.1:8000"]

    run(story())
