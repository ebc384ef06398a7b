"""The question with a known answer, beside canaries of a real server over HTTP that answers well, or garbage."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from mock_servers import MockServer, mock_server
from plain_records import failure
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope
from starlette.types import Send as AsgiSend
from virtual_time import VirtualClock, virtually

from probe.client.client import Client
from probe.config.config_file import config_from
from probe.core.clock import SystemClock
from probe.core.request import Outcome, RequestRecord, RequestSpec, Traffic
from probe.monitor.canary import KnownAnswer
from probe.monitor.metrics_sink import MetricsSink
from probe.monitor.target_monitor import TargetMonitor

GARBAGE = ["!"] * 24
RIGHT = ["Par", "is"]


@dataclass
class Talker:
    """A chat endpoint that answers with these pieces of text, a token each."""

    pieces: Sequence[str]
    bodies: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200

    async def __call__(self, scope: Scope, receive: Receive, send: AsgiSend) -> None:
        self.bodies.append(await Request(scope, receive).json())
        if self.status != 200:
            await JSONResponse({"error": {"message": "no chat template"}}, self.status)(scope, receive, send)
            return
        stream = StreamingResponse(self._events(), media_type="text/event-stream")
        await stream(scope, receive, send)

    async def _events(self) -> Any:
        for number, piece in enumerate(self.pieces, 1):
            ends = "stop" if number == len(self.pieces) else None
            choice = {"index": 0, "delta": {"content": piece}, "finish_reason": ends}
            usage = {"prompt_tokens": 20, "completion_tokens": number, "total_tokens": 20 + number}
            yield f"data: {json.dumps({'choices': [choice], 'usage': usage})}\n\n"
        usage = {"prompt_tokens": 20, "completion_tokens": len(self.pieces), "total_tokens": 20 + len(self.pieces)}
        yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n"
        yield "data: [DONE]\n\n"


@dataclass
class Watched:
    monitor: TargetMonitor
    sink: MetricsSink
    server: MockServer

    @property
    def page(self) -> str:
        return self.sink.page.render()[0].decode()

    def outcomes(self) -> list[Outcome]:
        return [record.outcome for record in reversed(self.monitor.status().recent)]

    async def close(self) -> None:
        await self.monitor.close()
        self.sink.store.close()


def _watch(server: MockServer, known_answer: object) -> Watched:
    config = config_from(
        {
            "objectives": {"lenient": {"availability": 0.99}},
            "workloads": {"short": {"prompt_tokens": 8, "output_tokens": 2}},
            "targets": [
                {
                    "name": "a",
                    "base_url": server.url,
                    "model": "tiny",
                    "objectives": "lenient",
                    "canary": {"workload": "short", "known_answer": known_answer},
                }
            ],
        },
        "test",
    )
    sink = MetricsSink(None, SystemClock())
    monitor = TargetMonitor(config, config.targets[0], SystemClock(), sink)
    sink.add(config.targets[0], monitor.canary_models, monitor.objectives, monitor.valid_s)
    return Watched(monitor, sink, server)


def _count(page: str, traffic: str, outcome: str) -> float:
    lines = [
        line
        for line in page.splitlines()
        if line.startswith("kneewatch_requests_total{")
        and f'traffic="{traffic}"' in line
        and f'outcome="{outcome}"' in line
    ]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_without_the_section_no_question_is_asked() -> None:
    async def main() -> None:
        async with mock_server() as server:
            watched = _watch(server, None)
            await watched.monitor.send_canary()
            assert server.asked.count("/v1/chat/completions") == 0
            assert 'traffic="answer"' not in watched.page
            await watched.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_right_answer_leaves_the_canary_good_and_is_asked_for_again_only_when_due() -> None:
    async def main() -> None:
        async with mock_server() as server:
            server.instead["/v1/chat/completions"] = talker = Talker(RIGHT)
            watched = _watch(server, {})
            for _ in range(3):
                await watched.monitor.send_canary()
            assert watched.outcomes() == [Outcome.OK] * 3
            (body,) = talker.bodies
            assert body["temperature"] == 0
            assert body["ignore_eos"] is False
            assert body["messages"] == [
                {"role": "user", "content": "What is the capital of France? Answer in one word."}
            ]
            assert _count(watched.page, "answer", "ok") == 1
            assert _count(watched.page, "canary", "ok") == 3
            assert 'kneewatch_ttft_seconds_count{target="a",model="tiny",workload="known_answer"' not in watched.page
            await watched.close()

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.fault(
    "TR1",
    "A server that answers with garbage text",
    area="Truth",
    users_see="canary `corrupt`",
    stays="-",
)
def test_garbage_fails_each_canary_until_the_answer_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with mock_server() as server:
            server.instead["/v1/chat/completions"] = talker = Talker(GARBAGE)
            watched = _watch(server, {})
            for _ in range(3):
                await watched.monitor.send_canary()
            assert watched.outcomes() == [Outcome.CORRUPT] * 3
            assert "repeated" in (watched.monitor.status().recent[0].detail or "")
            page = watched.page
            assert _count(page, "canary", "corrupt") == 3
            assert _count(page, "canary", "ok") == 0
            assert 'kneewatch_target_up{target="a"} 0.0' in page
            assert 'traffic="canary",objective="availability"} 0.0' in page
            talker.pieces = RIGHT
            for _ in range(2):
                await watched.monitor.send_canary()
            assert watched.outcomes()[3:] == [Outcome.OK] * 2
            assert len(talker.bodies) == 4, "right again: the next question is due in five minutes"
            await watched.close()

    asyncio.run(main())
    printed = capsys.readouterr().out
    assert printed.count("known answer changed") == 2
    assert "capital" not in printed
    assert "!!!" not in printed


def test_a_server_that_does_not_answer_the_question_has_not_answered_wrongly() -> None:
    """Such as a base model without a chat template: the section is wrong, and users are served."""

    async def main() -> None:
        async with mock_server() as server:
            server.instead["/v1/chat/completions"] = Talker(RIGHT, status=400)
            watched = _watch(server, {})
            for _ in range(2):
                await watched.monitor.send_canary()
            assert watched.outcomes() == [Outcome.OK] * 2
            assert _count(watched.page, "answer", "bad_request") == 1
            await watched.close()

    asyncio.run(main())


def test_a_failed_canary_asks_nothing() -> None:
    async def main() -> None:
        async with mock_server() as server:
            server.instead["/v1/chat/completions"] = talker = Talker(GARBAGE)
            server.instead["/v1/completions"] = Talker(RIGHT, status=500)
            watched = _watch(server, {})
            await watched.monitor.send_canary()
            assert watched.outcomes() == [Outcome.SERVER_ERROR]
            assert talker.bodies == []
            await watched.close()

    asyncio.run(main())


def test_a_reasoning_model_is_judged_by_its_answer_and_a_limit_within_the_reasoning_by_that() -> None:
    @dataclass
    class Thinker(Talker):
        async def _events(self) -> Any:
            async for event in super()._events():
                yield event.replace('"content"', '"reasoning_content"', 1) if "Hm" in event else event

    async def main() -> None:
        async with mock_server() as server:
            server.instead["/v1/chat/completions"] = talker = Thinker(["Hm: Lyon?", "Paris"])
            watched = _watch(server, {"expect": r"\AParis\Z"})
            await watched.monitor.send_canary()
            assert watched.outcomes() == [Outcome.OK]
            assert len(talker.bodies) == 1
            await watched.close()

    asyncio.run(main())


@pytest.mark.slow
def test_the_users_of_the_server_are_not_raised_by_the_question() -> None:
    async def main() -> None:
        async with mock_server() as server:
            watched = _watch(server, {"prompt": "?", "expect": "not what it says", "max_tokens": 4})
            await watched.monitor.scrape()
            for _ in range(3):
                await watched.monitor.send_canary()
            await asyncio.sleep(1.2)
            await watched.monitor.scrape()
            assert _count(watched.page, "answer", "corrupt") == 3
            users = [line for line in watched.page.splitlines() if line.startswith("kneewatch_users_requests_total{")]
            assert users
            assert all(line.endswith(" 0.0") for line in users)
            await watched.close()

    asyncio.run(main())


@pytest.mark.parametrize(("stopped_s", "becomes"), [(10.0, Outcome.CLIENT_BOUND), (0.4, Outcome.TIMEOUT)])
@pytest.mark.fault(
    "D08q",
    "The monitor is stopped while a question with a known answer is in flight",
    area="Time",
    users_see="the question is `client_bound`",
    stays="the canary, and what is known of the answers",
)
def test_a_question_without_an_answer_while_the_monitor_was_stopped_shows_nothing_of_the_server(
    stopped_s: float, becomes: Outcome
) -> None:
    class Stopped:
        async def send(self, what: RequestSpec, model: str, traffic: Traffic, scheduled_ns: int) -> RequestRecord:
            await asyncio.sleep(max(5.0 - stopped_s, 0.0))
            asyncio.get_running_loop()._leaping.now_s += stopped_s  # type: ignore[attr-defined]
            known = {"spec": what, "model": model, "traffic": traffic, "scheduled_ns": scheduled_ns}
            return failure(outcome=Outcome.TIMEOUT, done_ns=scheduled_ns + 5 * 10**9, **known)

    recorded: list[RequestRecord] = []

    async def ask() -> str | None:
        target = config_from(
            {"targets": [{"name": "a", "base_url": "http://a", "canary": {"known_answer": {}}}]}, "test"
        ).targets[0]
        client = cast(Client, Stopped())
        question = KnownAnswer.from_target(target, client, VirtualClock(), lambda _: nullcontext(), recorded.append)
        assert question is not None
        return await question.find_corruption("tiny")

    assert virtually(ask()) is None
    assert [record.outcome for record in recorded] == [becomes]
