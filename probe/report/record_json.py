"""One request as JSON: for the API and for `check --json`. Pure."""

from typing import Any

from probe import latency
from probe.errors import TargetError
from probe.records import RequestRecord
from probe.report.words import iso


def record_json(record: RequestRecord) -> dict[str, Any]:
    """What happened to a request, without its prompt; latencies in seconds, `at` in ISO 8601."""
    return {
        "at": iso(record.done_wall_s),
        "outcome": record.outcome.value,
        "detail": record.detail,
        "ttft_s": latency.ttft_s(record),
        "tpot_s": latency.tpot_s(record),
        "e2e_s": latency.e2e_s(record),
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
    }


def unmeasured_json(error: TargetError, wall_s: float) -> dict[str, Any]:
    """The same keys where there was nothing to measure: a target that could not be asked at `wall_s`."""
    return {
        "at": iso(wall_s),
        "outcome": error.outcome.value,
        "detail": str(error),
        "ttft_s": None,
        "tpot_s": None,
        "e2e_s": None,
        "prompt_tokens": 0,
        "output_tokens": 0,
    }
