"""Parses and judges answers that are no stream: embeddings, scores and rankings. Pure.

In: the stamped reads of a JSON body. Out: a Transcript with one event, the end of the answer, without a token. The
numbers themselves are judged: a server that computes NaN or zeros answers 200.
"""

import binascii
import math
from array import array
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from probe.client.api_json import error_in, error_message, usage_in
from probe.client.judgement import Numbers, Transcript
from probe.client.response_buffer import BodyLimits, Read
from probe.client.stream_parser import unchanged
from probe.core.foreign_json import ForeignJsonError, JsonLimits, check_json, read_json
from probe.core.request import Api, TokenEvents
from probe.core.text import one_line

# A vector of 16,384 numbers of 22 characters has 352 KiB; no model in use has a longer one.
_JSON = JsonLimits(max_bytes=2**20, max_values=50_000)
LIMITS = BodyLimits(max_bytes=_JSON.max_bytes)
_decode = msgspec.json.Decoder().decode
_FLOAT_BYTES = 4
_NAMES = {Api.EMBEDDINGS: "vector", Api.RERANK: "relevance score", Api.SCORE: "score"}


class ResultReader:
    """A parser of one answer without a stream. It never raises: errors are in the transcript."""

    def __init__(self, api: Api, hide: Callable[[bytes], bytes] = unchanged) -> None:
        self._api, self._hide = api, hide
        self._pieces: list[bytes] = []
        self.events = 0

    def read(self, reads: Sequence[Read]) -> None:
        """Take the next reads of the body."""
        self._pieces += (data for _, _, data in reads)

    def transcript(self, last: Read | None) -> Transcript:
        """Return the transcript; `last` is the last read of the body."""
        body = b"".join(self._pieces)
        said = _object(body)
        if said is None:
            return Transcript(malformed=error_message(body, self._hide) or "nothing")
        if (error := error_in(said, self._hide)) is not None:
            return Transcript(error=error.words, error_status=error.status)
        found, model, usage = _numbers(self._api, said), said.get("model"), said.get("usage")
        if found is None:
            return Transcript(malformed=one_line(self._hide(body), 200))
        end = (array("q", [last[0]]), array("q", [last[0] - last[1]]), array("i", [0])) if last else ()
        return Transcript(
            events=TokenEvents(*end),
            prompt_tokens=usage_in(usage)[0],
            output_tokens=0,
            is_done=True,
            model=model if isinstance(model, str) else None,
            numbers=found,
        )


def _object(body: bytes) -> dict[str, Any] | None:
    """Return the body's object, also where a number in it is NaN, which is no JSON."""
    try:
        check_json(body, _JSON)
        said = _decode(body)
    except ForeignJsonError:
        return None
    except (ValueError, RecursionError):
        try:
            said = read_json(body, _JSON)
        except ForeignJsonError:
            return None
    return said if isinstance(said, dict) else None


def _numbers(api: Api, said: dict[str, Any]) -> Numbers | None:
    """Return what the results hold, or None if they do not follow the API."""
    results = said.get("results" if api is Api.RERANK else "data")
    if not isinstance(results, list) or not all(isinstance(each, dict) for each in results):
        return None
    key = {Api.EMBEDDINGS: "embedding", Api.RERANK: "relevance_score", Api.SCORE: "score"}[api]
    if any(key not in each for each in results):
        return None
    corrupt, lengths = None, []
    for each in results:
        values = _vector(each[key]) if api is Api.EMBEDDINGS else [each[key]]
        if values is None:
            return None
        lengths.append(len(values))
        corrupt = corrupt or _fault(_NAMES[api], values, may_be_zero=api is not Api.EMBEDDINGS)
    return Numbers(len(results), lengths[0] if lengths else 0, corrupt)


def _vector(given: object) -> Sequence[object] | None:
    """Return a vector that was sent as numbers, or as base64 of 32-bit floats; None if it is neither."""
    if isinstance(given, list):
        return given
    if not isinstance(given, str):
        return None
    try:
        data = b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(data) % _FLOAT_BYTES:
        return None
    floats = array("f", data)
    if array("H", [1]).tobytes() != b"\1\0":  # they are little-endian
        floats.byteswap()
    return floats.tolist()


def _fault(name: str, values: Iterable[object], *, may_be_zero: bool) -> str | None:
    """Return why numbers cannot be right, or None."""
    is_empty, is_zero = True, True
    for value in values:
        is_empty = False
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return f"the {name} holds NaN"  # some servers write null
        if type(value) not in (int, float):
            return f"the {name} holds a value that is not a number"
        if isinstance(value, float) and math.isinf(value):
            return f"the {name} holds an infinite number"
        is_zero = is_zero and value == 0
    if is_empty:
        return f"the {name} is empty"
    return f"the {name} is all zeros" if is_zero and not may_be_zero else None
