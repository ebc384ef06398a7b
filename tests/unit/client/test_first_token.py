"""The look for the first token of an answer in flight, which a worker takes at all of them while it sends."""

import pytest

from probe.client.exchange import FirstToken
from probe.client.response_buffer import ResponseBuffer
from probe.core.request import Api

TOKEN = b'data: {"choices":[{"index":0,"text":"x","finish_reason":null}]}\n\n'
COMMENT = b": keep-alive\n\n"


@pytest.mark.fault(
    "LO110",
    "A server whose answers come by megabytes between two looks of a load worker",
    area="Load",
    users_see="-",
    stays="each is parsed to its first token only, so the worker is not silent for seconds (`worker_lost`)",
)
def test_an_answer_in_flight_is_parsed_to_its_first_token_only() -> None:
    received, look = ResponseBuffer(status=200), FirstToken(Api.COMPLETIONS)
    for _ in range(20):
        received.reads.append((1, 1, TOKEN * 4000))
    assert look.has_come(received)
    assert look._reader is not None
    assert 0 < look._reader.events <= 4096 // len(TOKEN) + 1


def test_a_token_after_many_comments_is_found_wherever_reads_and_looks_end() -> None:
    received, look = ResponseBuffer(status=200), FirstToken(Api.COMPLETIONS)
    whole = COMMENT * 20_000
    for i in range(0, len(whole), 50_001):
        received.reads.append((1, 1, whole[i : i + 50_001]))
    looks = [look.has_come(received) for _ in range(10)]
    assert not any(looks)
    received.reads += [(2, 2, TOKEN[:9]), (3, 3, b""), (4, 4, TOKEN[9:])]
    assert look.has_come(received)
