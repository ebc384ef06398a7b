"""Questions to Prometheus. The only module that imports prometheus_api_client, whose calls block.

Import it where it is needed and not at start: it brings numpy and a date parser into memory.
"""

import asyncio
import json
import math
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from requests import RequestException

from exporters import names
from probe.capacity.trend.fingerprint import from_number
from probe.core.errors import TargetError
from probe.core.request import Outcome
from probe.core.shift import CapacitySample
from probe.core.snapshot import ServerSnapshot
from probe.core.text import one_line
from probe.scrape import vllm

_T = TypeVar("_T")
# The page that says that the knee has dropped must not keep us from measuring whether it is back.
_KNEE_PAGE = "KneewatchKneeDropped"
# A year; a query may ask for 11 000 steps.
_HISTORY_S, _HISTORY_STEP_S = 365 * 86400, 3600
# A forecast's past: as many moments as it can use.
_MOST_STEPS = 1440
_HISTORY = (
    names.CAPACITY_RPS, names.CAPACITY_RPS_LOWER, names.CAPACITY_RPS_UPPER, names.CAPACITY_FINGERPRINT,
    names.CAPACITY_LAST_SUCCESS,
)  # fmt: skip


class Prometheus:
    """One Prometheus server."""

    def __init__(self, url: str) -> None:
        self._url = url
        # Unless told, the library tries four times with pauses between, in a thread that a shutdown waits for.
        self._connection = PrometheusConnect(url=url, timeout=5, retry=0)

    async def firing_pages(self, target: str) -> list[str]:
        """Names of the paging alerts that fire for a target now. Raises TargetError without an answer.

        Tickets do not count: "the knee is down" is one, and must not keep us from measuring the knee again.
        """
        query = (
            f'ALERTS{{alertstate="firing", severity="page", alertname!="{_KNEE_PAGE}", target={json.dumps(target)}}}'
        )
        return await self._ask(
            lambda: self._connection.custom_query(query),
            lambda answer: sorted({str(sample["metric"].get("alertname", "?")) for sample in answer}),
        )

    async def capacity_history(self, target: str, now_s: float) -> list[CapacitySample]:
        """The capacities of a target in the year before `now_s` (wall time), oldest first.

        A run is missed where the next one was made within the hour. Raises TargetError without an answer.
        """
        query = f'{{__name__=~"{"|".join(series.name for series in _HISTORY)}", target={json.dumps(target)}}}'
        start, end = (datetime.fromtimestamp(at_s, UTC) for at_s in (now_s - _HISTORY_S, now_s))
        return await self._ask(
            lambda: self._connection.custom_query_range(query, start, end, str(_HISTORY_STEP_S)), _figures
        )

    async def server_history(self, matchers: str, now_s: float, seconds: float) -> list[ServerSnapshot]:
        """What a server's own metrics said in the `seconds` before `now_s` (wall time), oldest first.

        `matchers`: PromQL's label matchers of its series. Raises TargetError without an answer, and where they are of
        several servers.
        """
        start, end = (datetime.fromtimestamp(at_s, UTC) for at_s in (now_s - seconds, now_s))
        step_s = max(math.ceil(seconds / _MOST_STEPS), 1)
        series = await self._ask(
            lambda: self._connection.custom_query_range(vllm.history_query(matchers), start, end, str(step_s)),
            lambda answer: [
                (one["metric"], [(float(at_s), float(value)) for at_s, value in one["values"]]) for one in answer
            ],
        )
        if differ := vllm.differing_labels(series):
            told = one_line("; ".join(f"{label}: {', '.join(values)}" for label, values in differ.items()))
            raise TargetError(
                f"{self._url}: several servers have vLLM series with {matchers} ({told}); name one of them in"
                " capacity.history",
                Outcome.BAD_REQUEST,
            )
        return vllm.from_history(series)

    async def _ask(self, question: Callable[[], Any], read: Callable[[Any], _T]) -> _T:
        try:
            return read(await asyncio.to_thread(question))
        except (PrometheusApiClientException, RequestException, ValueError) as error:
            words = one_line(str(error))
            raise TargetError(f"{self._url}: Prometheus does not answer ({words})", Outcome.UNREACHABLE) from None
        except (LookupError, TypeError, AttributeError):
            raise TargetError(
                f"{self._url}: this is not Prometheus's answer to a query; check prometheus.url", Outcome.UNREACHABLE
            ) from None


def _figures(answer: list[dict[str, Any]]) -> list[CapacitySample]:
    """A figure for each run, told apart by when it ended: until the next one, the series go on saying the same."""
    read: dict[tuple[str, str, float], dict[str, float]] = defaultdict(dict)
    for series in answer:
        labels = dict(series["metric"])
        name, mode = labels.pop("__name__"), labels["mode"]
        for at_s, value in series["values"]:
            read[json.dumps(labels, sort_keys=True), mode, at_s][name] = float(value)
    found: dict[float, CapacitySample] = {}
    for (_, mode, _), values in read.items():
        rps, ended_s = values.get(names.CAPACITY_RPS.name), values.get(names.CAPACITY_LAST_SUCCESS.name)
        what = values.get(names.CAPACITY_FINGERPRINT.name)
        if rps is None or ended_s is None or what is None:  # from before there was a fingerprint
            continue
        bounds = (values.get(names.CAPACITY_RPS_LOWER.name), values.get(names.CAPACITY_RPS_UPPER.name))
        found[ended_s] = CapacitySample(ended_s, rps, *bounds, mode=mode, fingerprint=from_number(what))
    return [found[ended_s] for ended_s in sorted(found)]
