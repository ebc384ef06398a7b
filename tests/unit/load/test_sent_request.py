"""Responses that wait to be parsed: the loop goes on however many there are."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from example_records import record
from example_records import spec as one_spec
from fake_request import FakeAnswer, FakeRequest

from probe.core.request import RequestRecord
from probe.load.sent_request import SentRequest, UnreadResponses

_PORTIONS, _PORTION_S = 50, 0.01


@dataclass
class SlowAnswer(FakeAnswer):
    """A large answer that takes half a second to parse."""

    def read(self) -> Iterator[RequestRecord | None]:
        for _ in range(_PORTIONS):
            time.sleep(_PORTION_S)
            yield None
        yield self.record


async def _never(*_: object) -> RequestRecord:
    raise AssertionError("the response is already there: nothing is sent")


@pytest.mark.slow
@pytest.mark.fault(
    "R07d",
    "answers so fast and long that parsing them, or reporting them to the controller, takes seconds",
    area="Memory",
    users_see="`client_bound`",
    stays="the worker reports, and stops when asked: it is not given up while it sends",
)
def test_parsing_too_much_for_memory_lets_the_loop_go_on() -> None:
    """A worker that does not report for 2.5 s is given up, and all of its load with it."""
    records: list[RequestRecord] = []
    unread = UnreadResponses(records.append)
    for _ in range(2):
        sent = SentRequest(FakeRequest(one_spec(), _never), 0)
        sent.response = SlowAnswer(record(), held=100 * 2**20)
        unread.add(sent)

    turns = 0
    began = time.perf_counter()
    while unread.read_portion():
        turns += 1
    assert len(records) == 2
    assert (time.perf_counter() - began) / turns < _PORTIONS * _PORTION_S / 2
