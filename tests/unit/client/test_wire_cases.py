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
from wire_cases.tokens import TOKENS
from wire_cases.wire import WireCase, play

from probe.core import latency
from probe.core.request import Outcome

CASES = (*STREAMS, *CHUNKS, *ERRORS, *REFUSALS, *APIS, *FRAMING, *TOKENS)
SECRET = "sk-of-the-matrix-0123456789"


def in_ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


@pytest.mark.fault(
    "FA150",
    "Keep-alives without data in a stream",
    area="Foreign answers",
    users_see="nothing: they are no events",
    stays="the next canary is sent as scheduled",
    case="keep-alives: empty data",
)
@pytest.mark.fault(
    "FA151",
    "A stream with CR line ends and a byte order mark",
    area="Foreign answers",
    users_see="nothing",
    stays="the next canary is sent as scheduled",
    case="a byte order mark, byte by byte",
)
@pytest.mark.fault(
    "FA152",
    "A usage of nulls in each event",
    area="Foreign answers",
    users_see="nothing: the counts at the end are taken",
    stays="the next canary is sent as scheduled",
    case="a usage of nulls",
)
@pytest.mark.fault(
    "FA153",
    "An `error` event without JSON",
    area="Foreign answers",
    users_see="canary `server_error`, in its words",
    stays="the next canary is sent as scheduled",
    case="an event: stream closed (gateways: words without JSON)",
)
@pytest.mark.fault(
    "FA154",
    "A log-in page with HTTP 200",
    area="Foreign answers",
    users_see="canary `broken_stream` with the page's title",
    stays="the next canary is sent as scheduled",
    case="a log-in page",
)
@pytest.mark.fault(
    "FA155",
    "A stream compressed with gzip, although not asked for",
    area="Foreign answers",
    users_see="nothing: it is unpacked",
    stays="the next canary is sent as scheduled",
    case="gzip, flushed after each event",
)
@pytest.mark.fault(
    "FA156",
    "A stream compressed with br",
    area="Foreign answers",
    users_see="canary `broken_stream` that names the fix",
    stays="the next canary is sent as scheduled",
    case="compressed with br",
)
@pytest.mark.fault(
    "FA157",
    "A body that unpacks to 16 MiB",
    area="Foreign answers",
    users_see="canary `broken_stream`; at most 72 KiB are unpacked",
    stays="the next canary is sent as scheduled",
    case="a body that unpacks to 16 MiB",
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_sent_is_what_is_read(case: WireCase) -> None:
    record = asyncio.run(play(case, SECRET))
    detail = record.detail or ""
    assert (record.outcome, case.words in detail) == (case.outcome, True), detail
    assert (record.outcome is Outcome.OK) == (not detail)
    assert not [words for words in case.unsaid if words in detail]
    assert detail.isprintable()
    assert len(detail) <= 200
    assert SECRET not in detail
    assert tuple(record.events.tokens) == case.tokens
    assert (record.prompt_tokens, record.output_tokens) == case.usage
    assert in_ms(latency.ttft_s(record)) == (case.ttft and pytest.approx(case.ttft))
    assert in_ms(latency.tpot_s(record)) == (case.tpot and pytest.approx(case.tpot))
    if record.outcome is Outcome.OK:
        assert in_ms(latency.first_visible_s(record)) == (case.visible and pytest.approx(case.visible))
        gaps = list(latency.itl_s(record))
        assert len(gaps) == (case.itls if case.itls is not None else max(len(case.tokens) - 1, 0) * bool(case.tpot))
        assert all(gap > 0 for gap in gaps)


def test_each_row_has_a_name_and_a_source() -> None:
    assert not [name for name, count in Counter(case.name for case in CASES).items() if count > 1]
    assert all(case.source for case in CASES)
