"""The matrix of what servers and gateways send: each row's right outcome, tokens, times and words."""

import asyncio
from collections import Counter

import pytest
from wire_cases.apis import APIS
from wire_cases.chunks import CHUNKS
from wire_cases.errors import ERRORS
from wire_cases.framing import FRAMING
from wire_cases.refusals import REFUSALS
from wire_cases.streams import STREAMS
from wire_cases.wire import WireCase, play

from probe.core import latency
from probe.core.request import Outcome

CASES = (*STREAMS, *CHUNKS, *ERRORS, *REFUSALS, *APIS, *FRAMING)
SECRET = "sk-of-the-matrix-0123456789"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_sent_is_what_is_read(case: WireCase) -> None:
    record = asyncio.run(play(case, SECRET))
    detail = record.detail or ""
    assert (record.outcome, case.words in detail) == (case.outcome, True), detail
    assert (record.outcome is Outcome.OK) == (not detail)
    assert detail.isprintable()
    assert len(detail) <= 200
    assert SECRET not in detail
    assert tuple(record.events.tokens) == case.tokens
    assert (record.prompt_tokens, record.output_tokens) == case.usage
    ttft_s, tpot_s = latency.ttft_s(record), latency.tpot_s(record)
    assert (ttft_s and 1000 * ttft_s) == (case.ttft and pytest.approx(case.ttft))
    assert (tpot_s and 1000 * tpot_s) == (case.tpot and pytest.approx(case.tpot))


def test_each_row_has_a_name_and_a_source() -> None:
    assert not [name for name, count in Counter(case.name for case in CASES).items() if count > 1]
    assert all(case.source for case in CASES)
