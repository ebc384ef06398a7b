"""A Prometheus that asks for credentials: what is sent, to whom, and what is said where they are not taken."""

import asyncio
import base64
import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from threaded_server import Request, threaded_server

from probe.config.prometheus import PrometheusConfig
from probe.core.errors import TargetError
from probe.prometheus.queries import Prometheus

NOTHING = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}})
TOKEN = "s3cret-token-of-mimir"


@contextmanager
def answering(
    body: str | bytes = NOTHING, status: int = 200, media: str = "application/json", **headers: str
) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Serve one answer. Yields the address, and the headers of each question with `path` and lower-case names."""
    asked: list[dict[str, str]] = []
    payload = body.encode() if isinstance(body, str) else body

    def reply(request: Request, _: bytes) -> None:
        asked.append({"path": request.path.partition("?")[0], **{n.lower(): v for n, v in request.headers.items()}})
        request.send_response(status)
        sent = {"content-type": media, "content-length": str(len(payload)), **headers}
        for name, value in sent.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(payload)

    with threaded_server(reply) as url:
        yield url, asked


def pages(url: str, **values: Any) -> list[str]:
    config = PrometheusConfig.model_validate({"url": url, **values})
    return asyncio.run(Prometheus(config).firing_pages("a"))


def refusal(url: str, **values: Any) -> str:
    with pytest.raises(TargetError) as raised:
        pages(url, **values)
    line = str(raised.value)
    assert line.startswith(f"{url}: ")
    assert "\n" not in line
    return line.removeprefix(f"{url}: ")


@pytest.mark.fault(
    "PR20",
    "The token or password of Prometheus is rotated",
    area="Prometheus",
    users_see="-",
    stays="the next question sends the new one",
)
def test_a_token_is_read_again_for_each_question(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with answering() as (url, asked):
        prometheus = Prometheus(PrometheusConfig(url=url, token_file=file))
        for token in ("first", "second"):
            file.write_text(f"{token}\n")
            asyncio.run(prometheus.firing_pages("a"))
    assert [one["authorization"] for one in asked] == ["Bearer first", "Bearer second"]


def test_a_login_is_sent_as_utf_8_and_headers_beside_it(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("pässword\n")
    (tmp_path / "tenant").write_text("chat\n")
    login = {"username": "1234", "password_file": tmp_path / "password"}
    with answering() as (url, asked):
        pages(url, basic_auth=login, headers={"X-Scope-OrgID": {"file": tmp_path / "tenant"}, "X-Team": "serving"})
    (one,) = asked
    assert base64.b64decode(one["authorization"].removeprefix("Basic ")).decode() == "1234:pässword"
    assert (one["x-scope-orgid"], one["x-team"], one["accept-encoding"]) == ("chat", "serving", "identity")


@pytest.mark.parametrize("ending", ["", "/", "/api/v1", "/api/v1/query", "/api/v1/query_range"])
def test_the_address_may_have_a_path_and_be_that_of_the_query(ending: str) -> None:
    """Amazon and Google print the address of a query."""
    with answering() as (url, asked):
        pages(f"{url}/workspaces/ws-1{ending}")
    assert asked[0]["path"] == "/workspaces/ws-1/api/v1/query"


@pytest.mark.fault(
    "PR21",
    "Prometheus refuses credentials, or asks for some (401, 403, 407)",
    area="Prometheus",
    users_see="one line that says which keys to set or check: no load",
    stays="secrets that the answer repeats are hidden",
    case="401",
)
@pytest.mark.fault(
    "PR22",
    "Prometheus limits the rate of questions (429), or has no API at the address (404)",
    area="Prometheus",
    users_see="one line with the fix: no load",
    stays="-",
    case="429",
)
@pytest.mark.parametrize(
    ("status", "without", "with_token"),
    [
        (401, "asks for credentials (HTTP 401: no", "it does not take these: check prometheus.token_file, basic_auth"),
        (403, "forbids the question (HTTP 403: no", "give these credentials, or this tenant, the right to query"),
        (404, "no query API at this address (HTTP 404: no", "check the path of prometheus.url"),
        (407, "a proxy asks for credentials (HTTP 407: no", "reached without that proxy"),
        (429, "limits its questions (HTTP 429: no", "raise the tenant's limit of queries"),
    ],
    ids=str,
)
def test_a_refusal_says_what_to_set(status: int, without: str, with_token: str) -> None:
    with answering(f"no access with Bearer {TOKEN}\n", status) as (url, _):
        assert without in refusal(url)
        line = refusal(url, token=TOKEN)
    assert with_token in line
    assert TOKEN not in line


@pytest.mark.fault(
    "PR23",
    "A login page, or a redirect to one",
    area="Prometheus",
    users_see="one line that says so and which keys to set: no load",
    stays="credentials are never sent to another address",
)
def test_credentials_do_not_follow_a_redirect() -> None:
    page = "\n<!doctype html><title>Sign in</title>"
    with answering() as (other, stolen):
        for location in (f"{other}/login?back=1", "/login"):
            with answering(page, 302, "text/html", location=location) as (url, asked):
                assert "which is not followed: fix prometheus.url, or set prometheus.token" in refusal(url, token=TOKEN)
            assert len(asked) == 1
    assert stolen == []
    with answering(page, media="text/html") as (url, _):
        assert refusal(url).startswith(
            "the answer is not JSON but a web page, such as of a login; set prometheus.token"
        )


@pytest.mark.fault(
    "PR24",
    "An answer in part: `isPartial`, `status: error` beside data, `warnings`",
    area="Prometheus",
    users_see="one line with what is missing: no load",
    stays="an alert that fires there may be missing, so none counts as absent",
)
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"warnings": ["No StoreAPIs matched"]}, "the answer is partial: ['No StoreAPIs matched']"),
        ({"isPartial": True}, "the answer is partial"),
        ({"status": "error", "error": "store down"}, "the answer has status error: store down"),
        ({"infos": ["metric might not be a counter"], "isPartial": False, "warnings": []}, None),
    ],
    ids=["thanos", "victoriametrics", "error", "remark"],
)
def test_an_answer_in_part_does_not_say_that_no_alert_fires(more: dict[str, object], words: str | None) -> None:
    with answering(json.dumps({**json.loads(NOTHING), **more})) as (url, _):
        if words is None:
            assert pages(url) == []
        else:
            assert words in refusal(url)


@pytest.mark.fault(
    "PR25",
    "An answer that is compressed unasked",
    area="Prometheus",
    users_see="one line: no load",
    stays="the limit of its size",
)
def test_an_answer_that_is_compressed_unasked_is_refused() -> None:
    with answering(gzip.compress(NOTHING.encode()), content_encoding="gzip") as (url, _):
        assert refusal(url) == "the answer is compressed (gzip), unasked; fix the proxy before it"


@pytest.mark.fault(
    "PR26",
    "The file of a token is gone, empty, or no text",
    area="Prometheus",
    users_see="one line with the file: no load",
    stays="nothing is sent",
)
def test_a_secret_that_cannot_be_sent_is_one_line_and_nothing_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with answering() as (url, asked):
        words = f"a secret of prometheus cannot be read ({file}: No such file or directory); create the file again"
        assert refusal(url, token_file=file) == words
        for content in (b"\n", b"a\nb", "ü".encode()):
            file.write_bytes(content)
            assert refusal(url, token_file=file).startswith("the bearer token is empty, or has characters that")
        file.write_bytes(b"\xff")
        assert "it is not text" in refusal(url, headers={"X-Key": {"file": file}})
    assert asked == []


@pytest.mark.fault(
    "PR27",
    "Two Prometheus of a pair answer as one, without deduplication",
    area="Prometheus",
    users_see="each alert once, since the earlier time",
    stays="-",
)
def test_an_alert_of_both_replicas_is_one() -> None:
    def alert(replica: str, since: str) -> dict[str, object]:
        labels = {"alertname": "KneewatchTTFTBurn", "severity": "ticket", "target": "a", "prometheus_replica": replica}
        return {"metric": labels, "value": [1.0, since]}

    both = [alert("a", "1795402200"), alert("b", "1795402140"), alert("c", "1")]
    with answering(json.dumps({"status": "success", "data": {"resultType": "vector", "result": both}})) as (url, _):
        found = asyncio.run(Prometheus(PrometheusConfig(url=url)).firing_alerts())
    assert [(one.name, one.since_s) for one in found] == [("KneewatchTTFTBurn", 1795402140.0)]
