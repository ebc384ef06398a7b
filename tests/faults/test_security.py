"""Two Kneewatches must not load one server, and secrets must not be shown, however they are spelled."""

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from kneewatch_command import kneewatch
from monitor import Monitor, Sim
from process import eventually
from threaded_server import Request, threaded_server

from probe.capacity.run.locks import FileLock
from probe.core.clock import SystemClock
from probe.core.server_address import server_key


@pytest.mark.parametrize("host", ["[::ffff:127.0.0.1]", "2130706433", "LOCALHOST", "127.1"])
@pytest.mark.fault(
    "C24m",
    "two Kneewatches write one server's address in two ways (`[::ffff:127.0.0.1]`, `2130706433`, `LOCALHOST`)",
    area="Security",
    users_see="the second one is refused: another prober loads it",
    stays="one load at a time",
)
def test_a_server_is_locked_under_every_spelling_of_its_address(tiny: Sim, host: str) -> None:
    async def twice() -> None:
        async with FileLock(server_key(tiny.base_url), None, SystemClock()):
            done = await asyncio.to_thread(
                kneewatch, "ramp", "--base-url", f"http://{host}:{tiny.port}", "--concurrency", "1"
            )
        assert done.status == 2
        assert "another prober loads" in done.err

    asyncio.run(twice())


_USER, _PASSWORD, _KEY = "team", "pa/ss?w0rd+", "sk-live/very+secret"
_LOGIN = f"{_USER}:{_PASSWORD}"
_SHOWN = {
    spelling
    for secret in (_PASSWORD, _LOGIN, _KEY)
    for spelling in (
        secret,
        base64.b64encode(secret.encode()).decode().rstrip("="),
        base64.urlsafe_b64encode(secret.encode()).decode().rstrip("="),
        quote(secret, safe=""),
    )
}


@contextmanager
def _proxy_that_repeats(kind: str) -> Iterator[str]:
    """Run a proxy that answers 407 and repeats in head and body what it was sent. Yields its URL."""

    def reply(request: Request, _: bytes) -> None:
        login = request.headers["proxy-authorization"]
        said = f"{login} {request.headers['authorization']} {base64.b64decode(login.split()[1]).decode()}"
        said += f" {quote(_PASSWORD, safe='')}"
        body = json.dumps({"error": {"message": said}}) if kind == "JSON" else said
        request.send_response(407, f"no {login}")
        request.send_header("location" if kind == "redirect" else "x-said", f"http://elsewhere/{quote(said)}")
        request.send_header("content-length", str(len(body)))
        request.end_headers()
        request.wfile.write(body.encode())

    with threaded_server(reply) as url:
        yield url


@pytest.mark.parametrize(("kind", "scheme"), [("JSON", "http"), ("text", "http"), ("text", "https")])
@pytest.mark.fault(
    "C41p",
    "a proxy repeats the password and the API key that it was sent: as sent, decoded, percent-encoded, in "
    "its status line, body and headers",
    area="Security",
    users_see="`(hidden)` on pages, API, log, `check` and JSON",
    stays="the secret",
)
def test_a_hostile_proxy_that_repeats_its_password_makes_it_show_nowhere(
    tmp_path: Path, kind: str, scheme: str
) -> None:
    (tmp_path / "login").write_text(f"{_LOGIN}\n")
    (tmp_path / "key").write_text(_KEY)
    with _proxy_that_repeats(kind) as proxy:
        target = {
            "name": "a",
            "base_url": f"{scheme}://127.0.0.1:9",
            "model": "m",
            "api_key_file": str(tmp_path / "key"),
            "scrape": "1s",
            "canary": {"every": "1s"},
            "connection": {"proxy": proxy, "proxy_auth_file": str(tmp_path / "login")},
        }
        with Monitor({"targets": [target]}, tmp_path) as monitor:
            eventually(lambda: "(hidden)" in monitor.output, within_s=60, what="a failed canary")
            paths = ("/", "/api/v1/targets", "/targets/a", "/metrics", "/config")
            shown = {path: monitor.page(path) for path in paths}
            shown["/probe"] = httpx.get(f"{monitor.base_url}/probe?target=a", timeout=20, trust_env=False).text
            for more in ((), ("--json",)):
                done = kneewatch("check", "-c", monitor.config_file, *more)
                shown["check", *more] = done.out + done.err
        shown["log"] = monitor.output
    assert "(hidden)" in shown["log"], shown["log"]
    leaks = [(where, each) for where, text in shown.items() for each in _SHOWN if each in text]
    assert leaks == []


def _sd_answers(said: str) -> list[bytes]:
    """Return answers of a registry that repeats what it was sent: where no text was expected, and where it was."""
    lists = [[{"targets": [said]}], [{"targets": ["127.0.0.1:9"], "labels": {"team": said}}]]
    bodies = [json.dumps(each).encode() for each in lists]
    whole = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body) for body in bodies]
    return [
        f"{said}\r\n\r\n".encode(),
        f"HTTP/1.1 200 OK\r\ncontent-encoding: {said}\r\n\r\n".encode(),
        f"HTTP/1.1 200 OK\r\ncontent-length: {said}\r\n\r\n".encode(),
        *whole,
    ]


@pytest.mark.parametrize(
    "spelling", [str, lambda secret: base64.b64encode(secret.encode()).decode()], ids=["plain", "base64"]
)
@pytest.mark.fault(
    "SE27",
    "A registry repeats its token: as a status line, an encoding, a target, a label; or the token file "
    "has a line break",
    area="Security",
    users_see="`(hidden)`; a line that says that no header can carry it",
    stays="token and query are in no log, page or series",
)
def test_a_hostile_registry_that_repeats_its_token_makes_it_show_nowhere(
    tmp_path: Path, spelling: Callable[[str], str]
) -> None:
    token, asked = tmp_path / "token", count()
    token.write_text(f"{_KEY}\n")
    answers = _sd_answers(spelling(_KEY))

    def reply(request: Request, _: bytes) -> None:
        assert request.headers["authorization"] == f"Bearer {_KEY}"
        request.wfile.write(answers[min(next(asked), len(answers) - 1)])
        request.close_connection = True

    with threaded_server(reply) as url:
        discover = {"http": {"url": f"{url}?key={_PASSWORD}", "token_file": str(token), "every": "1s"}}
        with Monitor({"targets": [{"name": "found", "discover": discover}]}, tmp_path) as monitor:
            eventually(lambda: "(hidden)" in monitor.page("/metrics"), within_s=60, what="the label of a target")
            token.write_text(f"{_KEY}\nand more")
            words = "the token contains characters that a header cannot carry"
            eventually(lambda: words in monitor.output, within_s=60, what=words)
            paths = ("/", "/api/v1/targets", "/targets/found/127.0.0.1:9", "/metrics", "/config")
            shown = {path: monitor.page(path) for path in paths}
        shown["log"] = monitor.output
    assert "is not HOST:PORT" in shown["log"]
    leaks = [(where, each) for where, text in shown.items() for each in _SHOWN if each in text]
    assert leaks == []
