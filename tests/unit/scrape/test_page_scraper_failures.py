"""Metrics pages that cannot be read: a TargetError of one line, with a reason."""

import asyncio
import gzip
import re
import tracemalloc

import pytest
from hostile_server import CLOSE, HANG, Script, chunked, head, whole
from scraping import GZIP, PAGE, PLAIN, RECORDED, SECRET, by_path, read, refusal, refusal_elsewhere

from probe.client.endpoint import Endpoint
from probe.core.clock import SystemClock
from probe.core.errors import TargetError
from probe.scrape.page_scraper import REASONS, PageScraper

BOMB = gzip.compress(b"# " + bytes(64 * 2**20), 9)
NINE_MB = RECORDED * (9 * 2**20 // len(RECORDED) + 1)
BYTE: Script = (b"#", 0.001)
DRIBBLE: Script = (head(200, PLAIN, "content-length: 99999"), *(step for _ in range(1000) for step in BYTE))
BAD: dict[str, tuple[Script, str, str]] = {
    "refused": ([CLOSE], "unreachable", "without an answer"),
    "404": ([whole(404, {"detail": "Not Found"})], "status", "HTTP 404"),
    "401": ([whole(401, {"error": SECRET})], "status", "HTTP 401: the page refuses the key"),
    "302": ([whole(302, b"", "text/html", f"location: /login?{SECRET}")], "redirect", "HTTP 302"),
    "to nowhere": ([whole(302, b"")], "status", "HTTP 302"),
    "to no address": (
        [whole(302, b"", PLAIN, "location: http://[::1")],
        "unreachable",
        "Invalid URL in location header",
    ),
    "HTML": ([whole(200, "<html>", "text/html")], "not_metrics", "no series of vllm"),
    "nothing": ([whole(200, b"")], "not_metrics", "no series of vllm"),
    "garbage": ([whole(200, bytes(range(256)))], "not_metrics", "no series of vllm"),
    "only NaN": ([whole(200, "vllm:num_requests_running NaN\n")], "damaged", "with a value"),
    "a long line": ([whole(200, "vllm:num_requests_running " + "x" * 100_000 + "\n")], "damaged", "16384"),
    "control characters": ([whole(200, "vllm:num_requests_running \x1b[31mred\n")], "damaged", "could not convert"),
    "a bucket without a bound": ([whole(200, "vllm:time_to_first_token_seconds_bucket 1\n")], "damaged", "le"),
    "too large": ([whole(200, b"# " + b"x" * (9 * 2**20))], "too_large", "more than 8388608 bytes"),
    "9 MB of metrics": ([whole(200, NINE_MB)], "too_large", "more than 8388608 bytes"),
    "packed too small": ([whole(200, BOMB, PLAIN, GZIP)], "too_large", "more than 8388608 bytes"),
    "cut short": ([head(200, PLAIN, "content-length: 99999") + RECORDED[:500], CLOSE], "damaged", "cut short"),
    "cut short in chunks": (
        [head(200, PLAIN, "transfer-encoding: chunked") + chunked(RECORDED, end=False), CLOSE],
        "damaged",
        "cut short",
    ),
    "cut short and nobody knows": ([head(200, PLAIN) + RECORDED[:-5], CLOSE], "damaged", "the last line has no end"),
    "cut short and packed": ([whole(200, gzip.compress(RECORDED)[:-20], PLAIN, GZIP)], "damaged", "cut short"),
    "never": ([HANG], "timeout", "within 0.3 s"),
    "stalls": ([head(200, PLAIN, "content-length: 99999") + RECORDED[:500], HANG], "timeout", "within 0.3 s"),
    "dribbles": (DRIBBLE, "timeout", "not read within 0.3 s"),
    "endless head": ([b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 90_000, HANG], "unreachable", "without content"),
    "not gzip": ([whole(200, b"\x1f\x8bboo", PLAIN, GZIP)], "damaged", "compression method"),
    "packed by whatever": (
        [whole(200, b"boo", PLAIN, "content-encoding: br")],
        "damaged",
        "turn off compression at the server",
    ),
}


@pytest.mark.parametrize(("script", "reason", "words"), BAD.values(), ids=BAD)
@pytest.mark.fault(
    "FA69",
    "Metrics page answers 404",
    area="Foreign answers",
    users_see="`kneewatch_server_up` 0, scrape error `status`",
    stays="canaries; the last values go, none is invented",
    case="404",
)
@pytest.mark.fault(
    "FA70",
    "Metrics page refuses the key",
    area="Foreign answers",
    users_see="scrape error `status`: the page refuses the key",
    stays="canaries; the last values go, none is invented",
    case="401",
)
@pytest.mark.fault(
    "FA71",
    "Metrics page redirects to a log-in",
    area="Foreign answers",
    users_see="scrape error `redirect`; not followed, and the address hides its query",
    stays="canaries; the last values go, none is invented",
    case="302",
)
@pytest.mark.fault(
    "FA72",
    "Metrics page is HTML",
    area="Foreign answers",
    users_see="scrape error `not_metrics`",
    stays="canaries; the last values go, none is invented",
    case="HTML",
)
@pytest.mark.fault(
    "FA73",
    "Metrics page is binary",
    area="Foreign answers",
    users_see="scrape error `not_metrics`",
    stays="canaries; the last values go, none is invented",
    case="garbage",
)
@pytest.mark.fault(
    "FA74",
    "Metrics page has only NaN",
    area="Foreign answers",
    users_see="scrape error `damaged`",
    stays="canaries; the last values go, none is invented",
    case="only NaN",
)
@pytest.mark.fault(
    "FA75",
    "Metrics page with a line of 100 kB",
    area="Foreign answers",
    users_see="scrape error `damaged`",
    stays="canaries; the last values go, none is invented",
    case="a long line",
)
@pytest.mark.fault(
    "FA76",
    "Terminal escapes as a value",
    area="Foreign answers",
    users_see="scrape error `damaged`, printable",
    stays="canaries; the last values go, none is invented",
    case="control characters",
)
@pytest.mark.fault(
    "FA77",
    "A histogram bucket without its bound",
    area="Foreign answers",
    users_see="scrape error `damaged`",
    stays="canaries; the last values go, none is invented",
    case="a bucket without a bound",
)
@pytest.mark.fault(
    "FA78",
    "Metrics page of 9 MiB",
    area="Foreign answers",
    users_see="scrape error `too_large`",
    stays="canaries; the last values go, none is invented",
    case="too large",
)
@pytest.mark.fault(
    "FA79",
    "Metrics page that unpacks to 64 MiB (gzip bomb)",
    area="Foreign answers",
    users_see="scrape error `too_large`; it is never unpacked whole",
    stays="canaries; the last values go, none is invented",
    case="packed too small",
)
@pytest.mark.fault(
    "FA80",
    "Metrics page that breaks off",
    area="Foreign answers",
    users_see="scrape error `damaged`: cut short",
    stays="canaries; the last values go, none is invented",
    case="cut short",
)
@pytest.mark.fault(
    "FA81",
    "Metrics page that breaks off where no length shows it",
    area="Foreign answers",
    users_see="scrape error `damaged`: the last line has no end",
    stays="canaries; the last values go, none is invented",
    case="cut short and nobody knows",
)
@pytest.mark.fault(
    "FA82",
    "Compressed metrics page that breaks off",
    area="Foreign answers",
    users_see="scrape error `damaged`",
    stays="canaries; the last values go, none is invented",
    case="cut short and packed",
)
@pytest.mark.fault(
    "FA83",
    "Metrics page that stops in the middle",
    area="Foreign answers",
    users_see="scrape error `timeout`",
    stays="canaries; the last values go, none is invented",
    case="stalls",
)
@pytest.mark.fault(
    "FA84",
    "Metrics page at one byte a millisecond",
    area="Foreign answers",
    users_see="scrape error `timeout` at the total limit",
    stays="canaries; the last values go, none is invented",
    case="dribbles",
)
@pytest.mark.fault(
    "FA85",
    "A body that is not the gzip it claims to be",
    area="Foreign answers",
    users_see="scrape error `damaged`",
    stays="canaries; the last values go, none is invented",
    case="not gzip",
)
@pytest.mark.fault(
    "FA86",
    "A content coding that was not requested",
    area="Foreign answers",
    users_see="scrape error `damaged`",
    stays="canaries; the last values go, none is invented",
    case="packed by whatever",
)
@pytest.mark.fault(
    "FA87",
    "A response head without end on the metrics port",
    area="Foreign answers",
    users_see="scrape error `unreachable`",
    stays="canaries; the last values go, none is invented",
    case="endless head",
)
def test_anything_else_is_an_error_of_one_line_with_a_reason(script: Script, reason: str, words: str) -> None:
    with pytest.raises(TargetError) as caught:
        read(by_path(script), timeout_s=0.3 if HANG in script or script is DRIBBLE else 2.0)
    message = str(caught.value)
    assert caught.value.reason == reason
    assert reason in REASONS
    assert "no metrics of a server" in message
    assert words in message
    assert message.startswith("http://127.0.0.1:")
    assert message.isprintable()
    assert len(message) < 500
    assert SECRET not in message


@pytest.mark.fault(
    "ME3",
    "A gzip bomb as the metrics page",
    area="Memory",
    users_see="scrape error `too_large`",
    stays="peak below 40 MiB",
)
def test_a_page_packed_too_small_is_never_unpacked_whole() -> None:
    tracemalloc.start()
    try:
        refusal(whole(200, BOMB, PLAIN, GZIP))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 * 2**20


def test_a_redirect_to_the_same_server_names_where_to() -> None:
    """LiteLLM's page is at /metrics/, and /metrics answers with the way there."""
    message = str(refusal(whole(307, b"", PLAIN, "location: /metrics/")))
    assert re.search(r"HTTP 307 to http://127.0.0.1:\d+/metrics/: if the page is there, set metrics_url to it", message)


@pytest.mark.fault(
    "FA88",
    "A redirect of the metrics page to another host with a password in it",
    area="Foreign answers",
    users_see="the line names the host and nothing else",
    stays="canaries",
)
def test_a_redirect_to_another_server_names_it_and_nothing_else() -> None:
    """Most are log-ins, whose address holds what nobody but them should see."""
    away = refusal(whole(302, b"", PLAIN, f"location: https://me:{SECRET}@sso.example/in/{SECRET}?{SECRET}"))
    assert "HTTP 302 to https://sso.example/, another server: fix base_url or metrics_url" in str(away)
    assert away.reason == "redirect"
    assert SECRET not in str(away)


@pytest.mark.parametrize("status", [401, 403])
def test_a_401_from_a_page_elsewhere_explains_that_the_key_is_not_sent(status: int) -> None:
    for error in (refusal_elsewhere(whole(status, b"")), refusal(whole(status, b""), secret=lambda: None)):
        assert f"HTTP {status}: the page needs the key; set api_key_file, it is sent only below base_url" in str(error)


@pytest.mark.fault(
    "FA89",
    "Metrics page of another engine than configured",
    area="Foreign answers",
    users_see="the line names the engine it seems to be",
    stays="canaries",
)
def test_a_page_of_another_engine_is_named() -> None:
    other = refusal(PAGE, engine="sglang")
    assert "no series of sglang on the page, which seems to be vllm's; fix engine" in str(other)
    assert other.reason == "not_metrics"


def test_a_page_that_is_not_there_names_the_setting() -> None:
    missing = whole(404, b"")
    assert "HTTP 404: set engine, if this is not vLLM, or metrics_url" in str(refusal(missing))
    assert "HTTP 404: set metrics_url" in str(refusal(missing, engine="nim"))
    assert "HTTP 404: fix metrics_url" in str(refusal_elsewhere(missing))


def _raise(error: Exception) -> str | None:
    raise error


@pytest.mark.parametrize(
    "endpoint",
    [
        Endpoint("llama", "http://127.0.0.1:1", verify=False),
        Endpoint("llama", "http://127.0.0.1:99999", verify=False),
        Endpoint("llama", "http://127.0.0.1:port", verify=False),
        Endpoint("llama", "http://127.0.0.1:1", secret=lambda: "two\nlines", verify=False),
        Endpoint(
            "llama", "http://127.0.0.1:1", secret=lambda: _raise(FileNotFoundError(2, "No such file")), verify=False
        ),
        Endpoint(
            "llama",
            "http://127.0.0.1:1",
            secret=lambda: _raise(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x")),
            verify=False,
        ),
    ],
)
def test_an_endpoint_that_cannot_be_used_is_an_error_of_one_line(endpoint: Endpoint) -> None:
    async def main() -> None:
        scraper = PageScraper(endpoint, SystemClock(), 1.0)
        try:
            await scraper.read()
        finally:
            await scraper.close()

    with pytest.raises(TargetError) as caught:
        asyncio.run(main())
    assert str(caught.value).isprintable()
    assert caught.value.reason == "unreachable"
