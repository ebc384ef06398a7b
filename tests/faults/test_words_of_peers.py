"""A secret in each place of the configuration that has one, peers that repeat it in every form, and all outputs."""

import base64
import json
import os
import signal
from collections.abc import Iterator
from html import escape
from itertools import count
from pathlib import Path
from textwrap import fill
from urllib.parse import quote

import httpx
import pytest
import yaml
from kneewatch_command import kneewatch
from monitor import Monitor
from process import eventually
from threaded_server import Request, threaded_server

_PART = 10  # characters of a secret that no output may have
_PLACES = (
    "api_key_file", "api_key", "header_file", "header", "registry_token", "registry_query", "collector",
    "kubernetes", "proxy", "option_header",
)  # fmt: skip
SECRETS = {place: f"{place[:2]}/{i}Zq{os.urandom(12).hex()}+&{place[-2:]}x" for i, place in enumerate(_PLACES)}


def _forms(secret: str) -> list[str]:
    half = len(secret) // 2
    login = base64.b64encode(f"user:{secret}".encode()).decode()
    return [
        f"Bearer {secret} is wrong",
        f"got {quote(secret, safe='')}",
        f"got {json.dumps(json.dumps(secret))} and {escape(secret)}",
        f"Basic {login} or {base64.urlsafe_b64encode(secret.encode()).decode()}",
        f"got {fill(base64.b64encode(json.dumps({'x': secret}).encode()).decode(), 20)}",
        f"the key\n{secret[:half]}\n  {secret[half:]}\nis wrong",
        f"the key {secret[:half]} is cut off",
        f"the key is {secret[: half - 2]}...",
    ]


def _traces(text: str) -> set[str]:
    """Return which secrets a text shows any part of, plain or encoded."""
    plain = "".join(text.replace("\\n", "").split())
    found = set()
    for place, secret in SECRETS.items():
        packed = base64.b64encode(secret.encode()).decode()
        spelled = (secret, quote(secret, safe=""), packed, base64.b64encode(f"user:{secret}".encode()).decode()[8:])
        windows = {one[at : at + _PART] for one in spelled for at in range(len(one) - _PART)}
        found |= {place for window in windows if window in plain}
    return found


class Peer:
    """A server that takes any request for one of a server, a registry, a collector, an API server or a proxy.

    It answers with the secrets that it was sent, in another form each time, and keeps what a collector gets.
    """

    def __init__(self) -> None:
        self._turns = count()
        self.collected: list[str] = []
        self.seen: set[str] = set()

    def __call__(self, request: Request, body: bytes) -> None:
        head = f"{request.path} {request.headers}"
        if login := request.headers.get("proxy-authorization"):
            head += base64.b64decode(login.split()[1]).decode()
        sent = [secret for secret in SECRETS.values() if secret in head or quote(secret, safe="") in head]
        self.seen.update(place for place, secret in SECRETS.items() if secret in sent)
        if request.path.startswith("/v1/traces"):
            self.collected.append(body.decode())
        turn = next(self._turns)
        words = " ".join(_forms(secret)[turn % 8] for secret in sent[:2]) or "no secret"
        kind = "proxy" if login else ("json", "text", "html", "redirect")[turn // 8 % 4]
        self._answer(request, kind, words)

    @staticmethod
    def _answer(request: Request, kind: str, words: str) -> None:
        content = {
            "json": json.dumps({"error": {"message": words}, "message": words}),
            "html": f"<html><title>{words}</title></html>",
        }.get(kind, words)
        request.send_response({"proxy": 407, "redirect": 302}.get(kind, 500), words.replace("\n", " "))
        if kind == "redirect":
            request.send_header("location", f"/login?{quote(words)}")
        request.send_header("content-length", str(len(content)))
        request.end_headers()
        request.wfile.write(content.encode())


@pytest.fixture
def peer() -> Iterator[tuple[str, Peer]]:
    peer = Peer()
    with threaded_server(peer) as url:
        yield url, peer


def _file(folder: Path, name: str, content: str) -> str:
    (folder / name).write_text(content)
    return str(folder / name)


def _config(url: str, folder: Path) -> dict[str, object]:
    often = {"canary": {"every": "1s"}, "capacity": {"mode": "off"}, "scrape": "1s"}
    key = _file(folder, "key", SECRETS["api_key_file"])
    header = {"x-tenant-key": {"file": _file(folder, "header", SECRETS["header_file"])}}
    proxy = {"proxy": url, "proxy_auth_file": _file(folder, "proxy", f"user:{SECRETS['proxy']}")}
    registry = {
        "url": f"{url}/sd?access={quote(SECRETS['registry_query'], safe='')}&token={quote(SECRETS['registry_query'])}",
        "token_file": _file(folder, "sd", SECRETS["registry_token"]),
        "every": "1s",
    }
    return {
        "targets": [
            {"name": "files", "base_url": f"{url}/files", "api_key_file": key, "headers": header, **often},
            {
                "name": "inline",
                "base_url": f"{url}/inline",
                "api_key": "${KEY}",
                "headers": {"x-other": {"secret": "${HEADER}"}},
                **often,
            },
            {"name": "proxied", "base_url": "http://127.0.0.1:9/v", "connection": proxy, **often},
            {"name": "registry", "discover": {"http": registry}, **often},
            {"name": "pods", "discover": {"kubernetes": {"namespace": "s", "selector": "a=b", "port": 80}}, **often},
        ],
        "otlp": {"endpoint": url, "headers": {"authorization": {"secret": f"Bearer {SECRETS['collector']}"}}},
        "prometheus": {"url": f"{url}/prometheus"},
    }


def _environment(url: str, folder: Path) -> dict[str, str]:
    user = {"name": "u", "user": {"token": SECRETS["kubernetes"]}}
    context = {"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "s"}}
    clusters = [{"name": "k", "cluster": {"server": f"{url}/k8s"}}]
    kubeconfig = {"current-context": "c", "users": [user], "contexts": [context], "clusters": clusters}
    return {
        "KEY": SECRETS["api_key"],
        "HEADER": SECRETS["header"],
        "KUBECONFIG": _file(folder, "kubeconfig", yaml.safe_dump(kubeconfig)),
    }


@pytest.mark.fault(
    "SE54",
    "Servers, a registry, a proxy, a collector and an API server repeat the secrets that they are sent, in eight forms",
    area="Security",
    users_see="`(hidden)`, and the rest of their words",
    stays="no part of a secret in the log, on pages, in the API, the series and the spans",
)
def test_no_output_of_the_monitor_shows_a_secret(peer: tuple[str, Peer], tmp_path: Path) -> None:
    url, answers = peer
    monitor = Monitor(_config(url, tmp_path), tmp_path / "m", env=_environment(url, tmp_path))
    shown = {}
    with monitor:
        eventually(lambda: len(answers.seen) == len(SECRETS) - 1, within_s=60, what="each secret sent")
        eventually(lambda: len(answers.collected) > 1, within_s=60, what="spans")
        paths = ("/", "/metrics", "/config", "/targets/files", "/targets/inline", "/targets/proxied", "/api/v1/targets",
                 "/api/v1/alerts", "/probe?target=files", "/probe?target=proxied")  # fmt: skip
        for path in paths:
            shown[path] = httpx.get(f"{monitor.base_url}{path}").text
        os.kill(monitor.pid, signal.SIGHUP)
        page = shown["/"]
    shown["the log"] = (tmp_path / "m" / "kneewatch-run.log").read_text()
    shown["spans"] = "".join(answers.collected)
    assert {name: found for name, text in shown.items() if (found := _traces(text))} == {}
    assert "(hidden)" in page
    assert shown["the log"].count("(hidden)") >= 4


@pytest.mark.fault("SE54")
@pytest.mark.parametrize("command", ["check", "doctor", "ramp"])
def test_no_output_of_a_command_shows_a_secret(peer: tuple[str, Peer], tmp_path: Path, command: str) -> None:
    url, answers = peer
    secret = SECRETS["option_header"]
    key = _file(tmp_path, "key", SECRETS["api_key_file"])
    options = ("--base-url", f"{url}/x", "--api-key-file", key, "--header", f"x-key: {secret}")
    more = {"ramp": ("--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html"), "--model", "m")}
    for _ in range(2):
        done = kneewatch(command, *options, *more.get(command, ()))
        files = "".join(file.read_text() for file in tmp_path.glob("r.*"))
        assert _traces(done.out + done.err + files) == set()
    assert answers.seen == {"api_key_file", "option_header"}
