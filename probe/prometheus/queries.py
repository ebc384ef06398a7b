"""Queries to Prometheus, a server that may be down, slow or hostile: each question has limits (loop_adapter.py).

Import it only where it is needed: prometheus_api_client loads numpy and a date parser.
"""

import asyncio
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import methodcaller
from typing import Any, TypeVar

from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException

from exporters import names
from probe.capacity.trend.fingerprint import from_number
from probe.client.failures import NETWORK_ERRORS
from probe.config.prometheus import PrometheusConfig
from probe.core.errors import TargetError
from probe.core.foreign_json import ForeignJsonError, JsonLimits
from probe.core.request import Outcome
from probe.core.shift import CapacitySample
from probe.core.snapshot import Gpu, ServerSnapshot, UserLoad
from probe.core.target_status import FiringAlert
from probe.core.text import one_line
from probe.gpu import dcgm_series
from probe.gpu.dcgm_series import GpuOwner
from probe.prometheus.loop_adapter import AnswerLimits, RefusalError, connect
from probe.scrape import vllm_history

_T = TypeVar("_T")
# A series of a range query: its labels, and its values by wall time.
Ranges = tuple[Mapping[str, str], Sequence[tuple[float, float]]]
# The page on a dropped knee must not prevent the run that would measure whether it is back.
KNEE_PAGE = "KneewatchKneeDropped"
# ALERTS_FOR_STATE has when each alert's condition began to hold. In a Prometheus without it, ALERTS is enough.
_OWN = 'alertname=~"Kneewatch.+"'
# Some three thousand alerts that fire.
_NOW = AnswerLimits(5.0, JsonLimits(2 * 2**20, 100_000))
# 333,000 samples: a year of three modes of capacity from two monitors, or a day of ten engines. They take 100 MiB.
_PAST = AnswerLimits(5.0, JsonLimits(16 * 2**20, 1_000_000))
# Larger than any time of a sample (s), and a year that a date can have.
_NO_TIME_S = 1e11
_MAX_NAME = 256
# A peak is the mean of this long. Weeks of samples take seconds.
_PEAK_OVER = "5m"
# 32 GPUs or instances with 100 series each, seen by several Prometheus.
_GPUS = AnswerLimits(5.0, JsonLimits(16 * 2**20, 500_000))
_FORECAST = "forecast"  # the mode of one without load
_OF, _A_PLACE = "of", "place"  # the label that tells apart what one question asks for
_PEAK = AnswerLimits(60.0, JsonLimits(2**16, 1000))
# The span of a question and its steps (s): Prometheus allows 11,000. The runs that confirm a drop are minutes apart,
# and a week reaches to the last run of a weekly schedule.
_HISTORY = ((365 * 86400.0, 3600), (8 * 86400.0, 120))
# Mimir, Cortex and the clouds made of them limit the time between both ends of a question, by some weeks at the least.
_LONGEST_S = 28 * 86400.0
# The most steps that a forecast can use.
_MOST_STEPS = 1440
_OF_RUNS = (
    names.CAPACITY_RPS, names.CAPACITY_RPS_LOWER, names.CAPACITY_RPS_UPPER, names.KNEE_UPPER,
    names.CAPACITY_FINGERPRINT, names.CAPACITY_LAST_SUCCESS,
)  # fmt: skip


# What tells two Kneewatches apart that have targets of one name: Prometheus or its federation adds these labels. Every
# question but that for a server's own series is for one of them, or its answer is refused.
_PLACE = ("cluster", "namespace")
_BY_PLACE = f"by ({', '.join(_PLACE)})"
_OF_EACH_TARGET = (names.TARGET_UP.name, names.SERVER_UP.name)


class Prometheus:
    """One Prometheus server, as the configuration has it."""

    def __init__(self, config: PrometheusConfig) -> None:
        self._url, self._config = config.url, config
        self._here = [f"{label}={json.dumps(value)}" for label, value in config.labels.items()]

    async def firing_pages(self, target: str) -> list[str]:
        """Return the names of the paging alerts that fire for a target now. Raise TargetError without an answer.

        Tickets do not count: KneewatchKneeDown is one, and must not prevent the next measurement of the knee.
        """
        # `kneewatch alerts --severity page=...` keeps the original severity in `urgency`.
        of = f"target={json.dumps(target)}"
        pages = (
            self._series("ALERTS", 'alertstate="firing"', f'{label}="page"', f'alertname!="{KNEE_PAGE}"', of)
            for label in ("severity", "urgency")
        )
        query = " or ".join((*pages, self._places(of)))
        return await self._ask(
            lambda prometheus: prometheus.custom_query(query),
            lambda answer: sorted({_name(one["metric"].get("alertname", "?")) for one in self._of_one(answer)}),
        )

    async def firing_alerts(self) -> list[FiringAlert]:
        """Return Kneewatch's alerts that fire now, pages first. Raise TargetError without an answer."""
        since, firing = self._series("ALERTS_FOR_STATE", _OWN), self._series("ALERTS", _OWN, 'alertstate="firing"')
        query = f"({since} and ignoring (alertstate) {firing}) or ignoring (alertstate) {firing} or {self._places()}"
        return await self._ask(
            lambda prometheus: prometheus.custom_query(query), lambda answer: _alerts(self._of_one(answer))
        )

    async def capacity_history(
        self, target: str, workload: str, now_s: float, since_s: float = 0.0
    ) -> list[CapacitySample]:
        """Return what runs found for a target and a workload between two wall times, at most a year, oldest first.

        Forecasts without load are no runs. A run is missed if the next one ended within the hour, or within two minutes
        in the last eight days. Raises TargetError without an answer.
        """
        of = f'target={json.dumps(target)}, workload={json.dumps(workload)}, mode!="forecast"'
        # By exact names, as Google's Managed Prometheus takes alone; `or` compares labels without the name.
        query = " or ".join(
            f'label_replace({self._series(series.name, of)}, "{_OF}", "{number}", "", "")'
            for number, series in enumerate(_OF_RUNS)
        )
        found: dict[float, CapacitySample] = {}
        for start_s, end_s, step_s in _spans(now_s, since_s):
            start, end = (datetime.fromtimestamp(at_s, UTC) for at_s in (start_s, end_s))
            found |= await self._ask(
                methodcaller("custom_query_range", query, start, end, str(step_s)),
                lambda answer: _samples(self._of_one(answer)),
                _PAST,
            )
        return [found[ended_s] for ended_s in sorted(found) if ended_s > since_s]

    async def users_peak(self, target: str, seconds: float) -> UserLoad:
        """Return the users' highest requests/s and output tokens/s in any five minutes of the last `seconds`.

        None: unknown. Raises TargetError without an answer.
        """
        one, past = f"target={json.dumps(target)}", f"{round(seconds)}s:{_PEAK_OVER}"
        requests = f"sum without (outcome) (rate({self._series(names.USERS_REQUESTS.name, one)}[{_PEAK_OVER}]))"
        output_tokens = self._series(names.USERS_TOKENS.name, one, 'kind="output"')
        tokens = f"rate({output_tokens}[{_PEAK_OVER}])"
        query = " or ".join(
            f'label_replace(max {_BY_PLACE} (max_over_time(({rate})[{past}])), "{_OF}", "{of}", "", "")'
            for of, rate in (("requests", requests), ("tokens", tokens))
        )
        found = await self._ask(
            lambda prometheus: prometheus.custom_query(query),
            lambda answer: {one["metric"][_OF]: _positive(one["value"][1]) for one in self._of_one(answer)},
            _PEAK,
        )
        return UserLoad(found.get("requests"), found.get("tokens"))

    async def server_history(
        self, matchers: str, now_s: float, seconds: float, *, step_s: float | None = None, prefix: str = "vllm:"
    ) -> list[ServerSnapshot]:
        """Return snapshots of a server's own metrics in the `seconds` before `now_s` (wall time), oldest first.

        `matchers`: PromQL's label matchers of its series; `prefix`: how vLLM's names begin there. Raises TargetError
        without an answer, and if several servers have such series.
        """
        step_s = step_s or max(math.ceil(seconds / _MOST_STEPS), 1)
        series: list[Ranges] = []
        for query in vllm_history.history_queries(matchers, prefix):
            series += await self.ranges(query, now_s - seconds, now_s, step_s)
        if differ := vllm_history.differing_labels(series, prefix):
            labels = one_line("; ".join(f"{label}: {', '.join(values)}" for label, values in differ.items()))
            raise TargetError(
                f"{self._url}: several servers have vLLM series with {matchers} ({labels}); narrow"
                " capacity.history to one of them",
                Outcome.BAD_REQUEST,
            )
        return await asyncio.to_thread(vllm_history.from_history, series, prefix)

    async def ranges(
        self, query: str, start_s: float, end_s: float, step_s: float, limits: AnswerLimits = _PAST
    ) -> list[Ranges]:
        """Return the labels and the values by wall time of each series. Raises TargetError without an answer."""
        start, end = (datetime.fromtimestamp(at_s, UTC) for at_s in (start_s, end_s))
        return await self._ask(
            methodcaller("custom_query_range", query, start, end, f"{step_s:g}"),
            lambda answer: [
                (one["metric"], [(float(at), float(value)) for at, value in _values(one)]) for one in answer
            ],
            limits,
        )

    async def vector(
        self, query: str, at_s: float, limits: AnswerLimits = _PAST
    ) -> list[tuple[Mapping[str, str], float]]:
        """Return the labels and the value of each series at a wall time. Raises TargetError without an answer."""
        return await self._ask(
            methodcaller("custom_query", query, params={"time": f"{at_s:.3f}"}),
            lambda answer: [(one["metric"], float(one["value"][1])) for one in answer],
            limits,
        )

    async def gpus(self, of: GpuOwner) -> tuple[tuple[Gpu, ...], float]:
        """Return the GPUs of a server by DCGM's series, and their age in seconds. Raise TargetError: no answer, or none
        that are certainly the server's.
        """

        def found(answer: list[dict[str, Any]]) -> tuple[tuple[Gpu, ...], float]:
            try:
                return dcgm_series.gpus(answer, of)
            except ValueError as error:
                raise TargetError(f"{self._url}: {error}", Outcome.UNREACHABLE) from None

        uuids: list[str] = []
        if (query := dcgm_series.pods_gpus(of)) is not None:
            uuids = await self._ask(
                lambda prometheus: prometheus.custom_query(query),
                lambda answer: [str(one["metric"].get("UUID", "")) for one in answer],
            )
        series = dcgm_series.series(of, uuids)
        return await self._ask(lambda prometheus: prometheus.custom_query(series), found, _GPUS)

    def _series(self, name: str, *matchers: str) -> str:
        return f"{name}{{{', '.join((*matchers, *self._here))}}}"

    def _places(self, *matchers: str) -> str:
        """Return a query for where there are targets, also where no alert fires."""
        # Google's Managed Prometheus takes exact names only, no expression for `__name__`.
        targets = " or ".join(self._series(name, *matchers) for name in _OF_EACH_TARGET)
        return f'label_replace(group {_BY_PLACE} ({targets}), "{_OF}", "{_A_PLACE}", "", "")'

    def _of_one(self, answer: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the answer without the places. Raise TargetError if it is of several Kneewatches."""
        places = {tuple(_name(one["metric"].get(label, "")) for label in _PLACE) for one in answer}
        if len(places) > 1:
            differ = "; ".join(
                f"{label}: {', '.join(sorted(values))}"
                for label, values in zip(_PLACE, map(set, zip(*places, strict=True)), strict=True)
                if len(values) > 1
            )
            raise TargetError(
                f"{self._url}: several Kneewatches have such series ({one_line(differ)}); set prometheus.labels to"
                " those of one",
                Outcome.BAD_REQUEST,
            )
        return [one for one in answer if one["metric"].get(_OF) != _A_PLACE]

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
            with connect(self._config, limits) as connection:
                return await asyncio.to_thread(answered, connection)
        except (LookupError, TypeError, AttributeError):
            raise self._failed("the answer is not Prometheus' answer to a query; check prometheus.url") from None
        except ForeignJsonError as error:
            raise self._failed(f"the answer {error}; check prometheus.url") from None
        except RefusalError as error:
            raise self._failed(str(error)) from None
        except (PrometheusApiClientException, *NETWORK_ERRORS) as error:
            words = one_line(str(error)) or type(error).__name__
            raise self._failed(f"Prometheus does not answer ({words})") from None

    def _failed(self, words: str) -> TargetError:
        return TargetError(f"{self._url}: {words}", Outcome.UNREACHABLE)


def _name(value: object) -> str:
    return one_line(str(value), _MAX_NAME)


def _spans(now_s: float, since_s: float) -> Iterator[tuple[float, float, int]]:
    """Yield the start, the end and the step (s) of each question for the history of runs, oldest first."""
    for span_s, step_s in _HISTORY:
        start_s = max(now_s - span_s, since_s)
        while start_s < now_s:
            end_s = min(start_s + _LONGEST_S, now_s)
            yield start_s, end_s, step_s
            start_s = end_s


def _values(series: dict[str, Any]) -> list[list[Any]]:
    """Return the values of a series; of a native histogram, which has others, none."""
    found: list[list[Any]] = [] if "histograms" in series else series["values"]
    return found


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
    # Two Prometheus of a pair report an alert twice, unless Thanos or Mimir joins them: the earlier one counts.
    found.sort(key=lambda one: one.since_s or math.inf)
    each = {(one.name, one.severity, one.target): one for one in reversed(found)}
    return sorted(each.values(), key=lambda one: (one.severity != "page", one.name, one.target or ""))


def _samples(answer: list[dict[str, Any]]) -> dict[float, CapacitySample]:
    """Return one sample per run, by when it ended: the series repeat its values until the next one."""
    read: dict[tuple[str, str, str, float], dict[str, float]] = defaultdict(dict)
    for series in answer:
        labels = dict(series["metric"])
        labels.pop(_OF, None)
        name, mode, model = labels.pop("__name__"), labels["mode"], labels.get("model", "")
        for at_s, value in series["values"]:
            if math.isfinite(number := float(value)):
                read[json.dumps(labels, sort_keys=True), _name(mode), _name(model), float(at_s)][name] = number
    found: dict[float, CapacitySample] = {}
    for (_, mode, model, _), values in read.items():
        rps, ended_s = values.get(names.CAPACITY_RPS.name), values.get(names.CAPACITY_LAST_SUCCESS.name)
        what = values.get(names.CAPACITY_FINGERPRINT.name)
        if rps is None or ended_s is None or what is None or mode == _FORECAST:  # or older than the fingerprint series
            continue
        upper = values.get(names.CAPACITY_RPS_UPPER.name, values.get(names.KNEE_UPPER.name))
        lower = values.get(names.CAPACITY_RPS_LOWER.name)
        found[ended_s] = CapacitySample(ended_s, rps, lower, upper, mode, from_number(what), model=model)
    return found
