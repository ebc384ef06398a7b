"""Queries to Prometheus, a server that may be down, slow or hostile: each question has limits (loop_adapter.py).

Import it only where it is needed: prometheus_api_client loads numpy and a date parser.
"""

import asyncio
import json
import math
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException

from exporters import names
from probe.capacity.trend.fingerprint import from_number
from probe.client.failures import NETWORK_ERRORS
from probe.core.errors import TargetError
from probe.core.foreign_json import ForeignJsonError, JsonLimits
from probe.core.request import Outcome
from probe.core.shift import CapacitySample
from probe.core.snapshot import ServerSnapshot, UserLoad
from probe.core.target_status import FiringAlert
from probe.core.text import one_line
from probe.prometheus.loop_adapter import AnswerLimits, connect
from probe.scrape import vllm_history

_T = TypeVar("_T")
# The page on a dropped knee must not prevent the run that would measure whether it is back.
KNEE_PAGE = "KneewatchKneeDropped"
# ALERTS_FOR_STATE has when each alert's condition began to hold. In a Prometheus without it, ALERTS is enough.
_OWN = 'alertname=~"Kneewatch.+"'
_FIRING = (
    f'(ALERTS_FOR_STATE{{{_OWN}}} and ignoring (alertstate) ALERTS{{{_OWN}, alertstate="firing"}})'
    f' or ignoring (alertstate) ALERTS{{{_OWN}, alertstate="firing"}}'
)
# Some three thousand alerts that fire.
_NOW = AnswerLimits(5.0, JsonLimits(2 * 2**20, 100_000))
# 333,000 samples: a year of three modes of capacity from two monitors, or a day of ten engines. They take 100 MiB.
_PAST = AnswerLimits(5.0, JsonLimits(16 * 2**20, 1_000_000))
# Larger than any time of a sample (s), and a year that a date can have.
_NO_TIME_S = 1e11
_MAX_NAME = 256
# A peak is the mean of this long, and the label that tells its two values apart. Weeks of samples take seconds.
_PEAK_OVER = "5m"
_OF = "of"
_PEAK = AnswerLimits(60.0, JsonLimits(2**16, 1000))
# A year; Prometheus allows 11,000 steps in a query.
_HISTORY_S, _HISTORY_STEP_S = 365 * 86400, 3600
# The most steps that a forecast can use.
_MOST_STEPS = 1440
_HISTORY = (
    names.CAPACITY_RPS, names.CAPACITY_RPS_LOWER, names.CAPACITY_RPS_UPPER, names.CAPACITY_FINGERPRINT,
    names.CAPACITY_LAST_SUCCESS,
)  # fmt: skip


class Prometheus:
    """One Prometheus server. `ca_file`: the authorities of its certificate, if not the usual ones."""

    def __init__(self, url: str, ca_file: Path | None = None) -> None:
        self._url, self._ca_file = url, ca_file

    async def firing_pages(self, target: str) -> list[str]:
        """Return the names of the paging alerts that fire for a target now. Raise TargetError without an answer.

        Tickets do not count: KneewatchKneeDown is one, and must not prevent the next measurement of the knee.
        """
        # `kneewatch alerts --severity page=...` keeps the original severity in `urgency`.
        query = " or ".join(
            f'ALERTS{{alertstate="firing", {label}="page", alertname!="{KNEE_PAGE}", target={json.dumps(target)}}}'
            for label in ("severity", "urgency")
        )
        return await self._ask(
            lambda prometheus: prometheus.custom_query(query),
            lambda answer: sorted({_name(sample["metric"].get("alertname", "?")) for sample in answer}),
        )

    async def firing_alerts(self) -> list[FiringAlert]:
        """Return Kneewatch's alerts that fire now, pages first. Raise TargetError without an answer."""
        return await self._ask(lambda prometheus: prometheus.custom_query(_FIRING), _alerts)

    async def capacity_history(self, target: str, workload: str, now_s: float) -> list[CapacitySample]:
        """Return a target's capacities for a workload in the year before `now_s` (wall time), oldest first.

        A run is missed if the next one ended within the hour. Raises TargetError without an answer.
        """
        of = f"target={json.dumps(target)}, workload={json.dumps(workload)}"
        query = f'{{__name__=~"{"|".join(series.name for series in _HISTORY)}", {of}}}'
        start, end = (datetime.fromtimestamp(at_s, UTC) for at_s in (now_s - _HISTORY_S, now_s))
        return await self._ask(
            lambda prometheus: prometheus.custom_query_range(query, start, end, str(_HISTORY_STEP_S)), _figures, _PAST
        )

    async def users_peak(self, target: str, seconds: float) -> UserLoad:
        """Return the users' highest requests/s and output tokens/s in any five minutes of the last `seconds`.

        None: unknown. Raises TargetError without an answer.
        """
        one, past = f"target={json.dumps(target)}", f"{round(seconds)}s:{_PEAK_OVER}"
        requests = f"sum without (outcome) (rate({names.USERS_REQUESTS.name}{{{one}}}[{_PEAK_OVER}]))"
        tokens = f'rate({names.USERS_TOKENS.name}{{{one}, kind="output"}}[{_PEAK_OVER}])'
        query = " or ".join(
            f'label_replace(max(max_over_time(({rate})[{past}])), "{_OF}", "{of}", "", "")'
            for of, rate in (("requests", requests), ("tokens", tokens))
        )
        found = await self._ask(
            lambda prometheus: prometheus.custom_query(query),
            lambda answer: {sample["metric"][_OF]: _positive(sample["value"][1]) for sample in answer},
            _PEAK,
        )
        return UserLoad(found.get("requests"), found.get("tokens"))

    async def server_history(self, matchers: str, now_s: float, seconds: float) -> list[ServerSnapshot]:
        """Return snapshots of a server's own metrics in the `seconds` before `now_s` (wall time), oldest first.

        `matchers`: PromQL's label matchers of its series. Raises TargetError without an answer, and if several servers
        have such series.
        """
        start, end = (datetime.fromtimestamp(at_s, UTC) for at_s in (now_s - seconds, now_s))
        step_s = max(math.ceil(seconds / _MOST_STEPS), 1)
        query = vllm_history.history_query(matchers)
        return await self._ask(
            lambda prometheus: prometheus.custom_query_range(query, start, end, str(step_s)),
            lambda answer: self._snapshots(answer, matchers),
            _PAST,
        )

    def _snapshots(self, answer: list[dict[str, Any]], matchers: str) -> list[ServerSnapshot]:
        series = [(one["metric"], [(float(at_s), float(value)) for at_s, value in one["values"]]) for one in answer]
        if differ := vllm_history.differing_labels(series):
            labels = one_line("; ".join(f"{label}: {', '.join(values)}" for label, values in differ.items()))
            raise TargetError(
                f"{self._url}: several servers have vLLM series with {matchers} ({labels}); narrow"
                " capacity.history to one of them",
                Outcome.BAD_REQUEST,
            )
        return vllm_history.from_history(series)

    async def _ask(
        self,
        question: Callable[[PrometheusConnect], Any],
        read: Callable[[Any], _T],
        limits: AnswerLimits = _NOW,
    ) -> _T:
        """Ask the question and return the answer as `read` returns it. Both run in a thread. Raises TargetError."""

        def answered(connection: PrometheusConnect) -> _T:
            answer = question(connection)
            try:
                return read(answer)
            except (ValueError, ArithmeticError) as error:
                raise TypeError(str(error)) from None

        try:
            with connect(self._url, limits, self._ca_file) as connection:
                return await asyncio.to_thread(answered, connection)
        except (LookupError, TypeError, AttributeError):
            raise self._failed("the answer is not Prometheus' answer to a query; check prometheus.url") from None
        except ForeignJsonError as error:
            raise self._failed(f"the answer {error}; check prometheus.url") from None
        except (PrometheusApiClientException, *NETWORK_ERRORS) as error:
            words = one_line(str(error)) or type(error).__name__
            raise self._failed(f"Prometheus does not answer ({words})") from None

    def _failed(self, words: str) -> TargetError:
        return TargetError(f"{self._url}: {words}", Outcome.UNREACHABLE)


def _name(value: object) -> str:
    return one_line(str(value), _MAX_NAME)


def _positive(value: str) -> float | None:
    number = float(value)
    return number if 0 < number < math.inf else None


def _alerts(answer: list[dict[str, Any]]) -> list[FiringAlert]:
    """Return the alerts of an answer, without severity none, which notifies no person."""
    found = []
    for sample in answer:
        labels, value = sample["metric"], float(sample["value"][1])
        severity = _name(labels.get("urgency", labels.get("severity", "")))
        if severity != "none":
            since_s = value if 1 < value < _NO_TIME_S else None  # 1 is the value of ALERTS
            target = _name(labels["target"]) if "target" in labels else None
            found.append(FiringAlert(_name(labels["alertname"]), severity, target, since_s))
    return sorted(found, key=lambda one: (one.severity != "page", one.name, one.target or ""))


def _figures(answer: list[dict[str, Any]]) -> list[CapacitySample]:
    """Return one sample per run, identified by when it ended: the series repeat its values until the next one."""
    read: dict[tuple[str, str, float], dict[str, float]] = defaultdict(dict)
    for series in answer:
        labels = dict(series["metric"])
        name, mode = labels.pop("__name__"), labels["mode"]
        for at_s, value in series["values"]:
            if math.isfinite(number := float(value)):
                read[json.dumps(labels, sort_keys=True), mode, float(at_s)][name] = number
    found: dict[float, CapacitySample] = {}
    for (_, mode, _), values in read.items():
        rps, ended_s = values.get(names.CAPACITY_RPS.name), values.get(names.CAPACITY_LAST_SUCCESS.name)
        what = values.get(names.CAPACITY_FINGERPRINT.name)
        if rps is None or ended_s is None or what is None:  # older than the fingerprint series
            continue
        bounds = (values.get(names.CAPACITY_RPS_LOWER.name), values.get(names.CAPACITY_RPS_UPPER.name))
        found[ended_s] = CapacitySample(ended_s, rps, *bounds, mode=mode, fingerprint=from_number(what))
    return [found[ended_s] for ended_s in sorted(found)]
