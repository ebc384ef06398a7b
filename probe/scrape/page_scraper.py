"""Scrapes of one metrics page: URL in, ServerSnapshot out, or a TargetError with one of REASONS.

It also reads vLLM's startup flags from /server_info, which is served with VLLM_SERVER_DEV_MODE=1. That answer also
holds the environment of the process and of the machine; only the flags named here are taken.
"""

import asyncio
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http import HTTPStatus

import httpx

from probe.client.compression import unread, window_bits
from probe.client.endpoint import Endpoint
from probe.client.failures import NETWORK_ERRORS, shortage
from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.foreign_json import ForeignJsonError, JsonLimits, read_json
from probe.core.redactor import Redactor
from probe.core.request import Outcome
from probe.core.snapshot import ServerSnapshot, with_kv_cache_tokens
from probe.core.text import one_line
from probe.core.vllm_command import MAX_VALUE, parts_of
from probe.core.vllm_flags import FLAGS, KV_TRANSFER, SPECULATIVE
from probe.scrape import engines, vllm

_INFO_PATH = "/server_info?config_format=json"  # without it, and before vLLM 0.11, the configuration is a text
# vLLM 0.32's answer has 26 KB, 1,400 values and a depth of 6.
_INFO_LIMITS = JsonLimits(max_bytes=1024 * 1024, max_values=20_000)
_PARTS = (SPECULATIVE, KV_TRANSFER)  # sections of which a part counts


def flags_of(answer: bytes) -> dict[str, str]:
    """Return the flags in the answer, by vLLM's names with underscores; {} if it has none. Raise ForeignJsonError."""
    document = read_json(answer, _INFO_LIMITS)
    config = document.get("vllm_config") if isinstance(document, dict) else None
    return dict(_flags(config)) if isinstance(config, dict) else {}


def _flags(config: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for row in FLAGS:
        value = _at(config, row.config) if row.config else None
        text = str(value) if isinstance(value, str | int | float) else ""
        if text.isprintable() and text.removesuffix(".0") not in ("", row.default):
            yield row.name, text.removeprefix("torch.")[:MAX_VALUE]
    for section in _PARTS:
        if isinstance(found := config.get(section), dict):
            yield from parts_of(section, found)


def _at(config: Mapping[str, object], path: str) -> object:
    """Return the value at a path of names with dots; None if there is none."""
    found: object = config
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


# Why a scrape failed. Few: each is a value of a label.
REASONS = ("timeout", "unreachable", "status", "redirect", "too_large", "not_metrics", "damaged")

MAX_PAGE_BYTES = 8 * 1024 * 1024
# vLLM's page has 50 to 150 kB and takes a millisecond or two. One of 2 MB takes 50 to 250, in which the event loop
# could not timestamp any stream: from this size on a page is parsed in a thread.
_BESIDE_BYTES = 256 * 1024
_VERSION = JsonLimits(max_bytes=64 * 1024, max_values=1000)  # vLLM's is {"version": "..."}
_INFO_TIMEOUT_S = 15.0  # vLLM 0.32 first lists the machine's software, which took 9 s on two busy cores
_STOPPED_SHARE = 0.1  # of the time limit
_MAX_VERSION = 64
_UNKNOWN = "unknown"
# After a page; it was asked for at once. A guard gives up a poll after a second.
_VERSION_WAIT_S = 0.5
_SLEEP_WAIT_S = 0.25  # most steps are shorter
_MAX_ADDRESS = 100
_MAX_MESSAGE = 300
# Shorter secrets may be words of the page.
_SHORTEST_SECRET = 8


class _UnreadError(ValueError):
    """The page could not be read, for one of REASONS."""

    def __init__(self, reason: str, message: str, *, is_refused: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.is_refused = is_refused  # another attempt would be refused as well


class PageScraper:
    """Scrapes one page. Beside it, it requests the version once, and again after every failure: servers are redeployed.

    `engine`: one of engines.NAMES, or None to detect it. `kv_cache_tokens`: the size of the KV cache, instead of the
    page's. `max_bytes`: the most of an answer. `seconds` and `page_bytes` describe the last page: the time to fetch and
    parse it, and its uncompressed size.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        clock: Clock,
        timeout_s: float = 3.0,
        engine: str | None = None,
        kv_cache_tokens: float | None = None,
    ) -> None:
        self.seconds = 0.0
        self.page_bytes = 0
        self._endpoint = endpoint
        self._engine = engine
        self._address = endpoint.metrics_url or f"{endpoint.base_url}{engines.path(engine)}"
        self._clock = clock
        self._timeout_s = timeout_s
        self.max_bytes = MAX_PAGE_BYTES
        self._version: str | None = None
        self._asking: asyncio.Task[str] | None = None  # for the version
        self._answers_version = True  # not known to leave the question open
        self._found_engine = engine
        self._kv_cache_tokens = kv_cache_tokens
        self._has_no_info = False  # the server has refused /server_info
        self._has_no_sleep = False  # the server has refused /is_sleeping
        self._is_asleep: bool | None = None  # by its last answer
        self._asking_sleep: asyncio.Task[None] | None = None
        self._answers_sleep = True  # not known to leave the question open
        self._redactor = Redactor()  # of labels, which the server may fill with the secrets that it was sent
        timeout = httpx.Timeout(timeout_s, connect=min(endpoint.connect_s, timeout_s))
        self._server = httpx.AsyncClient(timeout=timeout, transport=endpoint.transport(), trust_env=False)
        self._metrics = httpx.AsyncClient(timeout=timeout, transport=endpoint.metrics_transport(), trust_env=False)

    async def close(self) -> None:
        await self._forget_version()
        await self._forget_sleep()
        await self._server.aclose()
        await self._metrics.aclose()

    async def read(self) -> ServerSnapshot:
        """Return a snapshot of the server. Raise TargetError if its page cannot be read or has no metrics.

        If this process was stopped meanwhile, which shows only in that the time limit was found to be long over, the
        page is read once more.
        """
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + self._timeout_s
        try:
            return await self._read()
        except TargetError:
            if loop.time() - ends_s < _STOPPED_SHARE * self._timeout_s:
                raise
            return await self._read()

    async def read_flags(self) -> dict[str, str] | None:
        """Return the startup flags that vLLM reports at /server_info; {} without that page, None if it is silent.

        A server that has refused the page is not asked again until a scrape has failed, as when it restarts.
        """
        if self._has_no_info or self._found_engine not in (None, vllm.ENGINE.name):
            return {}
        try:
            async with asyncio.timeout(_INFO_TIMEOUT_S):
                url = f"{self._endpoint.base_url}{_INFO_PATH}"
                answer, _ = await self._get(self._server, url, _INFO_TIMEOUT_S)
            return flags_of(answer)
        except _UnreadError as error:
            self._has_no_info = error.is_refused
            return {} if error.is_refused else None
        except NETWORK_ERRORS:
            return None

    async def _read(self) -> ServerSnapshot:
        try:
            async with asyncio.timeout(self._timeout_s):
                version, asking = self._version, self._ask_beside()
                began_ns = self._clock.monotonic_ns()
                page, is_framed = await self._get(self._metrics, self._address)
            if page and not is_framed and not page.endswith(b"\n"):
                raise _UnreadError("damaged", "cut short: the last line has no end")
            # Outside the time-out: a thread cannot be cancelled, and each scrape would leave another one behind.
            snapshot = replace(await self._parsed(page), asked_ns=began_ns)
        except NETWORK_ERRORS as error:
            await self._forget_version()
            await self._forget_sleep()
            self._has_no_info = False
            message = shortage(error) or one_line(str(error), _MAX_MESSAGE)
            message = message or self._unsaid(error)
            raise TargetError(
                f"{self._address}: no metrics of a server ({message})", Outcome.UNREACHABLE, _reason(error)
            ) from None
        self.seconds = (self._clock.monotonic_ns() - began_ns) * 1e-9
        self.page_bytes = len(page)
        self._found_engine = snapshot.engine
        if asking is not None:
            await asyncio.wait((asking,), timeout=_VERSION_WAIT_S if self._answers_version else 0)
            # Another read may have failed and forgotten the version while this one waited for its page.
            version = asking.result() if asking.done() and not asking.cancelled() else self._version
        if snapshot.is_asleep is None and snapshot.engine == vllm.ENGINE.name:
            snapshot = replace(snapshot, is_asleep=await self._says_it_sleeps())
        snapshot = with_kv_cache_tokens(snapshot, self._kv_cache_tokens)
        return replace(snapshot, version=version or _UNKNOWN)

    async def _parsed(self, page: bytes) -> ServerSnapshot:
        at_ns, wall_s = self._clock.monotonic_ns(), self._clock.wall_s()

        def parsed() -> ServerSnapshot:
            return engines.parse(page.decode("utf-8", "replace"), at_ns, wall_s, engine=self._engine)

        try:
            return await asyncio.to_thread(parsed) if len(page) > _BESIDE_BYTES else parsed()
        except engines.NotMetricsError:
            raise
        except ValueError as error:
            raise _UnreadError("damaged", str(error)) from None

    def _ask_beside(self) -> asyncio.Task[str] | None:
        """Return the question for the version, where it is not known.

        It goes on when the read that asked is given up: else a gateway that never answers it would be asked by each.
        """
        if self._version is None and self._asking is None:
            self._asking = asyncio.create_task(self._ask_version())
        return self._asking

    async def _forget_version(self) -> None:
        self._version, asking, self._asking = None, self._asking, None
        if asking is not None:
            asking.cancel()
            await asyncio.wait((asking,))

    async def _ask_version(self) -> str:
        """Return and keep the version at /version, vLLM's; "unknown" if there is none within half the time-out."""
        version: object = None
        try:
            async with asyncio.timeout(self._timeout_s / 2):
                answer, _ = await self._get(self._server, f"{self._endpoint.base_url}/version")
            self._answers_version = True
            version = read_json(answer, _VERSION)["version"]
        except (TimeoutError, httpx.TimeoutException):
            self._answers_version = False
        except (*NETWORK_ERRORS, KeyError, TypeError):
            self._answers_version = True
        is_label = isinstance(version, str) and 0 < len(version) <= _MAX_VERSION and version.isprintable()
        self._version, self._asking = str(version) if is_label else _UNKNOWN, None
        return self._version

    async def _says_it_sleeps(self) -> bool | None:
        """Return what vLLM says at /is_sleeping, for a page that does not show it; None where it says nothing.

        The engine answers between two steps: while it takes longer, its last answer counts.
        """
        if self._has_no_sleep:
            return None
        if self._asking_sleep is None:
            self._asking_sleep = asyncio.create_task(self._ask_sleep())
        await asyncio.wait((self._asking_sleep,), timeout=_SLEEP_WAIT_S if self._answers_sleep else 0)
        return self._is_asleep

    async def _ask_sleep(self) -> None:
        """Keep the answer of /is_sleeping. A server that refuses it is not asked again until a scrape has failed."""
        found: object = None
        try:
            async with asyncio.timeout(self._timeout_s):
                answer, _ = await self._get(self._server, f"{self._endpoint.base_url}/is_sleeping")
            found = read_json(answer, _VERSION)["is_sleeping"]
            self._answers_sleep = True
        except _UnreadError as error:
            self._has_no_sleep = error.is_refused
        except (ForeignJsonError, KeyError, TypeError):
            self._has_no_sleep = True  # another program's page
        except NETWORK_ERRORS:
            self._answers_sleep = False
        self._is_asleep = found if isinstance(found, bool) else None
        self._asking_sleep = None

    async def _forget_sleep(self) -> None:
        self._has_no_sleep, self._is_asleep = False, None
        asking, self._asking_sleep = self._asking_sleep, None
        if asking is not None:
            asking.cancel()
            await asyncio.wait((asking,))

    async def _get(self, http: httpx.AsyncClient, url: str, timeout_s: float | None = None) -> tuple[bytes, bool]:
        """Return the body, and whether its length or framing would reveal a truncated body."""
        own = self._endpoint.headers(url, self._redactor)
        # Not compressed: vLLM would compress in the event loop that serves its users.
        timeout = http.timeout if timeout_s is None else timeout_s
        headers = {"accept-encoding": "identity", **own}
        async with http.stream("GET", url, headers=headers, timeout=timeout) as response:
            if response.status_code != HTTPStatus.OK:
                raise self._refused(response, has_key=len(own) > len(self._endpoint.plain_headers))
            try:
                body = await _body(response, self.max_bytes)
            except (httpx.NetworkError, httpx.RemoteProtocolError, zlib.error) as error:
                raise _UnreadError("damaged", f"cut short or damaged: {error}") from None
            return self._redactor.hide(body, _SHORTEST_SECRET), bool(
                {"content-length", "transfer-encoding"} & response.headers.keys()
            )

    def _refused(self, response: httpx.Response, *, has_key: bool) -> _UnreadError:
        """Return the error for a status other than 200, with the fix."""
        status, fix = response.status_code, ""
        if response.next_request is not None:
            return _UnreadError("redirect", f"HTTP {status} {self._redirect(response.url, response.next_request.url)}")
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            below = "it is sent only below base_url"
            fix = ": the page refuses the key" if has_key else f": the page needs the key; set api_key_file, {below}"
        elif status == HTTPStatus.NOT_FOUND and self._endpoint.metrics_url:
            fix = ": fix metrics_url"
        elif status == HTTPStatus.NOT_FOUND:
            fix = ": set metrics_url" if self._engine else ": set engine, if this is not vLLM, or metrics_url"
        is_refused = response.is_client_error and status != HTTPStatus.TOO_MANY_REQUESTS
        return _UnreadError("status", f"HTTP {status}{fix}", is_refused=is_refused)

    def _redirect(self, here: httpx.URL, there: httpx.URL) -> str:
        """Describe the destination of a redirect. Redirects are not followed: the key would be sent there, and most
        such pages are log-ins with secrets in the address.
        """
        bare = there.copy_with(userinfo=b"", query=None, fragment=None)
        if (there.scheme, there.host, there.port) == (here.scheme, here.host, here.port):
            return f"to {self._address_words(bare)}: if the page is there, set metrics_url to it"
        origin = self._address_words(bare.copy_with(path="/"))
        return f"to {origin}, another server: fix base_url or metrics_url"

    def _address_words(self, url: httpx.URL) -> str:
        return one_line(str(url), _MAX_ADDRESS)

    def _unsaid(self, error: Exception) -> str:
        is_late = isinstance(error, TimeoutError)
        return f"not read within {self._timeout_s:g} s" if is_late else type(error).__name__


async def _body(response: httpx.Response, most: int) -> bytes:
    """Read the whole body. It is decompressed here, because httpx would decompress a read to a thousand times its size
    before any limit applies.
    """
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if why := unread(encoding):
        raise _UnreadError("damaged", why)
    body, unpack, is_begun = bytearray(), None, False
    async for data in response.aiter_raw():
        if not is_begun and data:
            bits, is_begun = window_bits(encoding, data), True
            unpack = zlib.decompressobj(bits) if bits is not None else None
        body += unpack.decompress(data, most + 1) if unpack is not None else data
        if len(body) > most:
            raise _UnreadError("too_large", f"more than {most} bytes")
    if unpack is not None and not unpack.eof:
        raise zlib.error(f"{encoding} without its end")
    return bytes(body)


def _reason(error: Exception) -> str:
    match error:
        case _UnreadError():
            return error.reason
        case engines.NotMetricsError():
            return "not_metrics"
        case TimeoutError() | httpx.TimeoutException():
            return "timeout"
        case _:
            return "unreachable"
