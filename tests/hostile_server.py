"""A server on loopback that does to its clients whatever a test says, byte by byte.

In: a script, which is what to write to each request: bytes, pauses in seconds, and HANG, which waits until
the client has gone. Out: what was asked, over how many connections, and whether the client has gone.
"""

import asyncio
import json
import math
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

HANG = math.inf
CLOSE = -1.0  # ends the connection here, though the head promised to keep it
Script = Sequence[bytes | float]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it arrived."""

    line: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Hostile:
    """The server as the test sees it."""

    base_url: str
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # a client left while we were hanging
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until_asked(self, count: int = 1) -> None:
        """Wait until this many requests have arrived."""
        async with self.news:
            await self.news.wait_for(lambda: len(self.asked) >= count)


def head(status: int = 200, kind: str = "text/event-stream", *more: str) -> bytes:
    """Return a head; the body ends with the connection unless `more` says otherwise."""
    lines = [f"HTTP/1.1 {status} Whatever", f"content-type: {kind}", *more]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def whole(status: int, body: bytes | str | object, kind: str = "application/json", *more: str) -> bytes:
    """Return a complete answer of known length; a body that is neither bytes nor text is sent as JSON."""
    text = body if isinstance(body, bytes | str) else json.dumps(body)
    data = text.encode() if isinstance(text, str) else text
    return head(status, kind, f"content-length: {len(data)}", *more) + data


def chunked(*parts: bytes, end: bool = True) -> bytes:
    """Return a body in HTTP chunks, one per part."""
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + (b"0\r\n\r\n" if end else b"")


def event(data: Any) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def token(number: int, *, last: bool = False, prompt_tokens: int = 8) -> bytes:
    """Return vLLM's event for the nth token of a completion, with the running usage."""
    choice = {"index": 0, "text": "x", "finish_reason": "length" if last else None}
    return event({"choices": [choice], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": number}})


DONE = event(b"[DONE]")
THREE_TOKENS = (token(1), token(2), token(3, last=True), DONE)
STREAM_HEAD = head(200, "text/event-stream; charset=utf-8", "transfer-encoding: chunked")
GOOD = STREAM_HEAD + chunked(*THREE_TOKENS)


@asynccontextmanager
async def hostile(
    script: Script | Callable[[Asked], Script], host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Hostile]:
    """Answer every request with `script`, or with what it returns for the request, until the block ends."""
    tasks: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        state.connections += 1
        try:
            while (asked := await _request(reader)) is not None:
                async with state.news:
                    state.asked.append(asked)
                    state.news.notify_all()
                steps = script(asked) if callable(script) else script
                if not await _play(steps, reader, writer, state):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(converse, host, 0, limit=2**20, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    state = Hostile(f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}")
    try:
        yield state
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _request(reader: asyncio.StreamReader) -> Asked | None:
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
    return Asked(lines[0], headers, await reader.readexactly(int(headers.get("content-length", 0))))


async def _play(script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: Hostile) -> bool:
    """Play the script. Report whether the connection may be reused: only if the answer's bytes show where it ends."""
    written = end = b""
    for step in script:
        if isinstance(step, bytes):
            writer.write(step)
            await writer.drain()
            written, end = written + step[:4096], step[-5:]
        elif step == CLOSE:
            return False
        elif step == HANG:
            await reader.read(1)
            state.gone.set()
            return False
        else:
            await asyncio.sleep(step)
    return b"content-length: " in written or end == b"0\r\n\r\n"
