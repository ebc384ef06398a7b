"""One request as JSON: for the API and for `check --json`. Pure."""

from typing import Any

from probe import latency
from probe.records import RequestRecord
from probe.report.words import when


def record_json(record: RequestRecord) -> dict[str, Any]:
    """What happened to a request, without its prompt; latencies in seconds."""
    return {
        "at": when(record.done_wall_s),
        "outcome": record.outcome.value,
        "detail": record.detail,
        "ttft_s": latency.ttft_s(record),
        "tpot_s": latency.tpot_s(record),
        "e2e_s": latency.e2e_s(record),
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
    }
