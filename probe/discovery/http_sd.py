"""Discovery by HTTP: polls a URL that answers in the format of Prometheus' http_sd.

Only HTTP 200 with a list of target groups counts. After anything else the last servers are kept.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from urllib.parse import parse_qsl

import httpx

from probe.client.secrets import BEARER, is_sendable
from probe.client.tls_files import client_context
from probe.config.discovery import HttpDiscovery
from probe.config.headers import names_secret
from probe.core.foreign_json import ForeignJsonError, read_json, size_text
from probe.core.plain_file import read_secret
from probe.core.redactor import SECRETS, Redactor
from probe.discovery import target_groups as groups
from probe.discovery.polling import PollError, ProblemReporter, polled
from probe.discovery.target_groups import LIMITS
from probe.discovery.types import State

_TIMEOUT_S = 10.0


class HttpSource:
    """The servers that a registry lists."""

    def __init__(self, config: HttpDiscovery, scheme: str, path: str, reporter: ProblemReporter) -> None:
        self._url = config.url
        self._shown, _, query = config.url.partition("?")  # a query may hold a secret
        self._token = Redactor()  # for labels, too, which the registry may fill with it
        self._query = Redactor()  # only of this registry's words: such a value may also be a name, as in ?env=prod
        for name, value in parse_qsl(query):
            (SECRETS if names_secret(name) else self._query).add(value)
        self._every_s = config.every
        self._scheme, self._path = scheme, path
        self._reporter = reporter
        self._token_file = config.token_file  # read for each request
        self._ca_file = config.ca_file
        self._client: httpx.AsyncClient | None = None
        self._tls: ssl.SSLContext | None = None

    async def states(self) -> AsyncGenerator[State, None]:
        states = polled(self._ask, self._every_s, self._reporter)
        try:
            async for state in states:
                yield state
        finally:
            await states.aclose()
            await self._close()

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _ask(self) -> State:
        try:
            tls = client_context(str(self._ca_file) if self._ca_file else None)
            if self._client is None or tls is not self._tls:
                await self._close()
                self._client = httpx.AsyncClient(timeout=_TIMEOUT_S, verify=tls, trust_env=False)
                self._tls = tls
            async with asyncio.timeout(_TIMEOUT_S):
                body = await self._body(self._client)
            found, left_out = await asyncio.to_thread(self._read, body)
        except TimeoutError:
            raise self._failure(f"it has not answered within {_TIMEOUT_S:g} s") from None
        except httpx.HTTPError as error:
            raise self._failure(str(error) or type(error).__name__) from None
        except ForeignJsonError as error:
            raise self._failure(f"the answer {error}") from None
        except (OSError, ValueError) as error:
            raise self._failure(str(error)) from None
        if left_out:
            self._reporter.problem(f"{self._shown}: {self._safe('; '.join(left_out))}")
        else:
            self._reporter.well()
        return found

    def _read(self, body: bytes) -> tuple[State, list[str]]:
        return groups.read(read_json(self._token.hide(body), LIMITS), self._scheme, self._path)

    def _safe(self, words: str) -> str:
        return self._query.hide_text(words)

    def _failure(self, words: str) -> PollError:
        return PollError(f"{self._shown}: {self._safe(words)}; its last servers are kept")

    async def _body(self, client: httpx.AsyncClient) -> bytes:
        # Not compressed: httpx would decompress a read to a thousand times its size before the limit applies.
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        headers |= {"x-prometheus-refresh-interval-seconds": f"{self._every_s:.0f}"}
        if self._token_file is not None:
            token = read_secret(self._token_file)
            if not is_sendable(token):
                raise ValueError("the token contains characters that a header cannot carry")
            self._token.add(token)
            headers |= BEARER.headers(token)
        async with client.stream("GET", self._url, headers=headers) as answer:
            if answer.status_code != httpx.codes.OK:
                raise ValueError(f"HTTP {answer.status_code}")
            if (encoding := answer.headers.get("content-encoding", "identity")) != "identity":
                raise ValueError(f"the answer has the content-encoding {encoding!r}, which was not requested")
            body = bytearray()
            async for piece in answer.aiter_raw():
                body += piece
                if len(body) > LIMITS.max_bytes:
                    raise ValueError(f"the answer is larger than {size_text(LIMITS.max_bytes)}")
            return bytes(body)
