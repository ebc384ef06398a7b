"""Fuzzes the path of an answer: bytes into a connection, what it kept into the reader of streams.

    python tests/fuzz/fuzz_response.py --seconds 60                  random mutations of recorded answers
    python tests/fuzz/fuzz_response.py --seconds 60 --engine atheris guided by coverage; needs `pip install atheris`

In: a seed, and the answers recorded from vLLM with a few of our own. Out: how many answers were tried. It fails, and
prints the answer and its cuts as a Python literal, when an answer makes the client raise anything but httpx's errors,
wait for ever although the connection is gone, take longer than a second, keep more than it may, say something else
when cut elsewhere, or be complete in one way of reading and broken in the other.
"""

import argparse
import asyncio
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TypeVar

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/unit/client")]

from hostile_server import GOOD, STREAM_HEAD, chunked, event, head, whole  # noqa: E402 - after the path to it
from memory_wire import EOF, GOLDEN, OPEN, RESET, Exchanged, cut_at, exchange, recorded, streamed  # noqa: E402
from plain_records import spec  # noqa: E402

from probe.client.api_json import error_message  # noqa: E402
from probe.client.exchange import read_answer  # noqa: E402
from probe.client.judgement import Transcript, judge  # noqa: E402
from probe.client.response_buffer import BodyLimits, ResponseBuffer  # noqa: E402
from probe.core.request import Api  # noqa: E402

MAX_BYTES = 20_000
MAX_GROWTH_MIB = 200
SLOW_S = 1.0
ENDS = (EOF, EOF, RESET, OPEN)
SEEDS = [
    *(recorded(path.stem) for path in sorted(GOLDEN.glob("*.txt")) if path.stat().st_size < 10_000),
    GOOD,
    whole(200, b"hello"),
    whole(401, {"error": "Unauthorized"}),
    whole(500, "Internal Server Error", "text/plain"),
    head(200, "text/plain") + b"until the end",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + GOOD,
    STREAM_HEAD + b"5;ext=1\r\nhello\r\n0\r\nx-trailer: 1\r\n\r\n",
    STREAM_HEAD + chunked(event({"error": {"message": "EngineDeadError"}}), b": ping\n\n", b"data: [DONE]\r\n\r\n"),
]
PIECES = [
    b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b";", b"\xff", b"\xed\xa0\x80", b"data: ", b"data: [DONE]\n\n", b"\n\n",
    b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"10000000000000000\r\n", b"-1\r\n", b"HTTP/1.1 ", b"HTTP/1.0 200 OK\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 101 x\r\nupgrade: y\r\nconnection: upgrade\r\n\r\n", b"204", b"304",
    b"content-length: 0\r\n", b"content-length: 99999999999\r\n", b"transfer-encoding: chunked\r\n",
    b"transfer-encoding: gzip\r\n", b"connection: close\r\n", b"connection: keep-alive\r\n", b"null", b"{}", b"[]",
    b'{"choices":[{"text":"x"}],"usage":{"prompt_tokens":1,"completion_tokens":99999999999999999999}}', b"[" * 3000,
    b'"error":', b"1e999", b"NaN", b"\\ud800", b"x" * 70_000, b"x: y\r\n" * 12_000, b"1\r\nx\r\n" * 12_000,
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One answer as a server might send it."""

    data: bytes
    cuts: tuple[int, ...]
    end: str
    bodiless: bool


class SlowError(Exception):
    """An answer that takes too long: a loop that does not end, or work that grows faster than the answer."""


T = TypeVar("T")


class Choices:
    """Where the fuzzer's decisions come from: a generator of random numbers, or the bytes of an engine."""

    def __init__(self, below: Callable[[int], int]) -> None:
        self.below = below

    def of(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]

    def case(self) -> Case:
        """Return a seed with a few changes, cut somewhere."""
        data = bytearray(self.of(SEEDS))
        for _ in range(self.below(6)):
            self.change(data)
        cuts = tuple(self.below(len(data) + 1) for _ in range(self.below(8)))
        return Case(bytes(data[: 4 * 70_000]), cuts, self.of(ENDS), bodiless=self.below(20) == 0)

    def change(self, data: bytearray) -> None:
        """Insert, remove, change or repeat bytes, or append the tail of another answer."""
        at, size = self.below(len(data) + 1), 1 + self.below(40)
        match self.below(7):
            case 0:
                data[at:at] = self.of(PIECES)
            case 1:
                del data[at : at + size]
            case 2:
                data[at : at + 1] = bytes([self.below(256)])
            case 3:
                data[at:at] = data[at : at + size] * (1 + self.below(20))
            case 4:
                other = self.of(SEEDS)
                data[at:] = other[self.below(len(other)) :]
            case 5:
                data[at : at + size] = self.of(PIECES)
            case _:
                del data[at:]


def check(case: Case, run: asyncio.Runner) -> str:
    """Return the outcome in a word. Raises AssertionError, SlowError or an error that the client should not raise."""
    received = ResponseBuffer(BodyLimits(MAX_BYTES, MAX_BYTES))
    one = run.run(exchange([case.data], case.end, bodiless=case.bodiless))
    cut = run.run(exchange(cut_at(case.data, case.cuts), case.end, bodiless=case.bodiless, received=received))
    assert len(received.body) <= MAX_BYTES + len(case.data)
    if not cut.is_cut:
        agree(one, cut, case)
    read_all_apis(received)
    if case.end != OPEN and not case.bodiless:
        status, body, error = run.run(streamed(cut_at(case.data, case.cuts), case.end))
        assert (status, body) == (cut.status, cut.body) or cut.is_cut, (status, cut.status)
        assert bool(error) == bool(cut.error) or cut.is_cut, (error, cut.error)
    return "cut" if cut.is_cut else "complete" if cut.is_complete else cut.error.partition(":")[0]


def agree(one: Exchanged, cut: Exchanged, case: Case) -> None:
    """Assert the same result however the answer was cut. Only size limits depend on when they are checked."""
    if "without content" in one.error + cut.error:
        return
    if case.data.endswith((b"\r", b"\n")):  # empty lines after an answer: skipped, or bytes that nobody asked for
        one, cut = replace(one, is_kept=False), replace(cut, is_kept=False)
    assert one == cut, (str(one), str(cut))


def read_all_apis(received: ResponseBuffer) -> None:
    whole_body = [(1, 0, received.body)] if received.reads else []
    for api in Api:
        said = read_answer(received.reads, api)
        asked = spec(8, 3, api)
        outcome, detail = judge(asked, said)
        assert detail is None or (detail.isprintable() and len(detail) < 400), outcome
        assert without_times(said) == without_times(read_answer(whole_body, api))
        assert all(0 <= tokens <= 10_000_000 for tokens in said.events.tokens)
    assert len(error_message(received.body)) <= 200


def without_times(said: Transcript) -> tuple[object, ...]:
    """Return what does not depend on times; those decide in which event a token without text counts."""
    events = said.events
    return (
        sum(events.tokens), events.first_visible, said.prompt_tokens, said.output_tokens, said.finish_reason,
        said.is_done, said.error, said.malformed,
    )  # fmt: skip


@contextmanager
def watchdog() -> Iterator[None]:
    """Interrupt whatever takes longer than a second."""

    def bark(_: int, frame: FrameType | None) -> None:
        raise SlowError(f"still at line {frame.f_lineno if frame else '?'}")

    before = signal.signal(signal.SIGALRM, bark)
    signal.setitimer(signal.ITIMER_REAL, SLOW_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fuzz(seed: int, seconds: float, count: int | None = None) -> dict[str, int]:
    """Try answers until the time is over, or `count` of them. Return how often each outcome occurred."""
    random_ = random.Random(seed)
    choices, met = Choices(random_.randrange), dict[str, int]()
    until, at_first = time.monotonic() + seconds, 0.0
    with asyncio.Runner() as run:
        tried = 0
        while time.monotonic() < until and tried != count:
            case = choices.case()
            try:
                with watchdog():
                    became = check(case, run)
            except BaseException:
                print(f"seed {seed}, answer {tried}: {case!r}", file=sys.stderr)  # noqa: T201 - a script's output
                raise
            met[became] = met.get(became, 0) + 1
            tried += 1
            at_first = at_first or (peak_mib() if tried >= 1000 else 0.0)
    assert not at_first or peak_mib() - at_first < MAX_GROWTH_MIB, f"{at_first:.0f} to {peak_mib():.0f} MiB"
    return met


def fuzz_with_atheris(seconds: float) -> None:
    """Fuzz with atheris. Never returns: the engine ends the process."""
    atheris = import_module("atheris")  # here, and not among the imports: only who asks for it needs it
    atheris.instrument_all()
    run = asyncio.Runner()

    def one(data: bytes) -> None:
        provider = atheris.FuzzedDataProvider(data)
        case = Choices(lambda top: provider.ConsumeIntInRange(0, max(top - 1, 0))).case()
        check(case, run)

    atheris.Setup([sys.argv[0], f"-max_total_time={seconds:.0f}", "-timeout=5", "-max_len=512"], one)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--engine", choices=["random", "atheris"], default="random")
    asked = parser.parse_args()
    if asked.engine == "atheris":
        fuzz_with_atheris(asked.seconds)
    started = time.monotonic()
    met = fuzz(asked.seed, asked.seconds)
    words = ", ".join(f"{count} {name}" for name, count in sorted(met.items(), key=lambda pair: -pair[1]))
    took = time.monotonic() - started
    print(f"seed {asked.seed}: {sum(met.values())} answers in {took:.0f} s, peak {peak_mib():.0f} MiB: {words}")  # noqa: T201


if __name__ == "__main__":
    main()
