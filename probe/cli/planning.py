"""What `kneewatch plan` does: find results, and plan replicas for a peak from each. No parsing and no printing."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from probe.capacity.model.knobs import Knob, doubled_knobs, simulate_knobs, withheld_knobs
from probe.capacity.trend.fingerprint import capacity_sample, is_comparable
from probe.capacity.trend.headroom import REQUESTS, CapacityShare, largest_share
from probe.capacity.trend.replica_count import Demand, Price, gpus_of, lower_end, replicas_for
from probe.cli.options import check_address, share
from probe.cli.result_commands import PeakOptions, PlanOptions
from probe.cli.targets import one_target
from probe.config.config_file import load_config, load_prometheus
from probe.config.prometheus import PrometheusConfig
from probe.core.errors import ConfigError, TargetError
from probe.core.objectives import Objectives
from probe.core.request import Outcome
from probe.core.result import Capacity, CapacityResult, Phase
from probe.core.snapshot import UserLoad
from probe.core.text import one_line
from probe.monitor.store import stored_texts
from probe.report.figures import number
from probe.report.measured_file import read_result
from probe.report.replica_plan import ReplicaPlan
from probe.report.result_json import loads, objectives_of, workload_of
from probe.runtime import event_loop

_WEEK_S = 604_800.0
_LAST = 100  # results of a target that are looked through
_KNOBS_S = 30.0  # about how long the simulations of a result take
_MOST_REPLICAS = 1e6
_CONFIG_FILES = (".yml", ".yaml")


@dataclass(frozen=True, slots=True)
class Peak:
    """A peak in requests/s or output tokens/s, or in both: then the larger share of a capacity counts."""

    load: UserLoad
    source: str  # in words


def check_options(peak: PeakOptions, options: PlanOptions) -> None:
    """Raise ConfigError for options that do not give one peak, or are no numbers that a plan can be made with."""
    price = options.gpu_hour_price
    if price is not None and not math.isfinite(price):
        raise ConfigError(f"--gpu-hour-price {price}: expected a number of at least 0")
    share(options.margin, "--margin")
    given = {"--peak": peak.peak, "--peak-output-tokens": peak.peak_output_tokens}
    stated = {option: rate for option, rate in given.items() if rate is not None}
    if len(stated) + (peak.prometheus is not None) != 1:
        raise ConfigError("expected one of --peak, --peak-output-tokens and --prometheus; give one of them")
    for option, rate in stated.items():
        if not 0 < rate < math.inf:
            raise ConfigError(f"{option} {rate:g}: expected a number above 0, per second")
    if peak.prometheus is not None:
        prometheus_of(peak.prometheus, peak.prometheus_label or ())


def prometheus_of(written: str, labels: Sequence[str]) -> PrometheusConfig:
    """Return the Prometheus of --prometheus, an address or a file with the section `prometheus`. Raises ConfigError.

    `labels`: NAME=VALUE, in addition to those of the file.
    """
    added = {name: value for name, _, value in (pair.partition("=") for pair in labels)}
    if written.endswith(_CONFIG_FILES):
        config = load_prometheus(Path(written))
    else:
        check_address(written, "--prometheus", "http://prometheus:9090, or a file such as kneewatch.yml")
        config = PrometheusConfig(url=written)
    try:
        return PrometheusConfig.model_validate(
            {**{name: getattr(config, name) for name in config.model_fields_set}, "labels": {**config.labels, **added}}
        )
    except ValidationError:
        raise ConfigError("--prometheus-label: expected NAME=VALUE such as cluster=eu; fix it") from None


def peak_of(options: PeakOptions, result: CapacityResult, target: str | None = None) -> Peak:
    """Return the peak for a result's target; `target`: its name in Prometheus, if that is another one.

    Raise TargetError where Prometheus does not show it.
    """
    if options.prometheus is None:
        option = "--peak" if options.peak is not None else "--peak-output-tokens"
        return Peak(UserLoad(options.peak, options.peak_output_tokens), option)
    from probe.prometheus.queries import Prometheus

    name, weeks = target or result.target, options.weeks
    prometheus = prometheus_of(options.prometheus, options.prometheus_label or ())
    load = event_loop.run(Prometheus(prometheus).users_peak(name, weeks * _WEEK_S))
    if load.requests_per_second is None and load.output_tokens_per_second is None:
        words = f"no user traffic of target {one_line(name)} in {weeks} weeks; name its target with --target"
        raise TargetError(f"{prometheus.url}: {words}", Outcome.NOT_FOUND)
    return Peak(load, f"the users' highest five minutes in {weeks} weeks")


def sources(files: Sequence[Path], config: Path | None, target: str | None) -> list[tuple[str, CapacityResult]]:
    """Return the results to plan with, and where each is from: files, or a target's last capacity in the store.

    Raise ConfigError.
    """
    if files and config is None:
        return [(str(file), read_result(file)) for file in files]
    if config is None or files:
        raise ConfigError("expected either result files, or -c FILE; give one of them")
    loaded = load_config(config)
    name = target or one_target(loaded, None).name
    if loaded.store.path is None:
        raise ConfigError("store.path: is not set, so the monitor keeps no results in a file; set it, or give a file")
    return [(f"{loaded.store.path}", _last_capacity(loaded.store.path, name))]


def _last_capacity(path: Path, target: str) -> CapacityResult:
    """Return the target's last measured capacity; its last forecast where there is none, or none of that setup."""
    found: dict[bool, CapacityResult] = {}
    for text in stored_texts(path, target, _LAST):
        with suppress(ValidationError):  # of another version
            result = loads(text)
            if capacity_sample(result) is not None:
                found.setdefault(result.capacity.mode == "forecast", result)
    measured, forecast = found.get(False), found.get(True)
    if measured is not None and (
        forecast is None or forecast.started < measured.started or is_comparable(forecast, measured)
    ):
        return measured
    if forecast is None:
        raise ConfigError(f"--target {target}: {path} has no capacity of this target; expected one by `kneewatch run`")
    return forecast


def plan_replicas(
    source: str,
    result: CapacityResult,
    peak: Peak,
    options: PlanOptions,
    on_phase: Callable[[Phase], None] = lambda _: None,
) -> ReplicaPlan:
    """Return the plan from one result. Raise ConfigError for a result that no plan may be made from."""
    capacity = result.capacity
    if (why := _unfit(result)) is not None:
        raise ConfigError(f"{source}: {one_line(why, 400)}; plan with the result of a run that ended by itself")
    at_peak, margin = _share_at_peak(source, capacity, peak), share(options.margin, "--margin")
    demand = Demand(at_peak.ratio * (capacity.requests_per_second or 0.0), margin, options.spare)
    if not demand.requests_per_second <= _MOST_REPLICAS * lower_end(capacity) * (1 - margin):
        raise ConfigError(
            f"{source}: {number(at_peak.live)} {at_peak.unit} need more than a million replicas of"
            f" {number(lower_end(capacity))} requests/s; check the peak ({peak.source}) and the capacity"
        )
    on_phase(Phase("simulating other settings", _KNOBS_S))
    return ReplicaPlan(
        source=source,
        result=result,
        objectives=_objectives(result),
        peak=_peak_words(peak, at_peak, demand.requests_per_second),
        demand=demand,
        replicas=replicas_for(demand, capacity),
        knobs=predicted_knobs(result, doubled_knobs(capacity.fitted_server)),
        price=_price(options, result),
    )


def _price(options: PlanOptions, result: CapacityResult) -> Price | None:
    if options.gpu_hour_price is None:
        return None
    return Price(options.gpu_hour_price, options.gpus or gpus_of(result))


def _unfit(result: CapacityResult) -> str | None:
    """Return why no plan may be made from a result, or None."""
    capacity = result.capacity
    if capacity.requests_per_second is None:
        return f"has no capacity ({capacity.reason})"
    if capacity_sample(result) is None:
        reason = f" ({result.stopped.reason})" if result.stopped.reason else ""
        return f"the run did not end by itself: {result.stopped.by}{reason}"
    least, most, tokens = lower_end(capacity), capacity.upper, capacity.output_tokens_per_second
    if not 0 < least <= capacity.requests_per_second < math.inf:
        return f"the lower end of its capacity is {number(capacity.lower)} requests/s, which no run writes"
    if most is not None and not capacity.requests_per_second <= most < math.inf:
        return f"the upper end of its capacity is {number(most)} requests/s, which no run writes"
    if tokens is not None and not 0 <= tokens < math.inf:
        return f"its capacity is {number(tokens)} output tokens/s, which no run writes"
    return None


def _share_at_peak(source: str, capacity: Capacity, peak: Peak) -> CapacityShare:
    """Return the share of one replica's capacity that the peak takes. Raise ConfigError if that is unknown."""
    share = largest_share(peak.load, capacity)
    if share is None:
        raise ConfigError(f"{source}: has no output tokens/s; use --peak with requests/s")
    return share


def _peak_words(peak: Peak, share: CapacityShare, requests_per_second: float) -> str:
    words = f"{number(share.live)} {share.unit}"
    if share.unit != REQUESTS:
        words += f", which are {number(requests_per_second)} requests/s of this workload"
    return f"{words} ({peak.source})"


def predicted_knobs(result: CapacityResult, knobs: Sequence[Knob]) -> list[Knob]:
    """Return the knobs with what each would give the server of a result, or why that is not known."""
    capacity, stored, objectives = result.capacity, result.capacity.fitted_server, _objectives(result)
    if stored is None:
        return withheld_knobs(knobs, _why_no_model(capacity))
    if objectives is None or not objectives.latencies():
        return withheld_knobs(knobs, "the result does not have its objectives")
    model_rps = capacity.correction.uncorrected.requests_per_second if capacity.correction is not None else None
    near_rps = model_rps or capacity.requests_per_second or 0.0
    try:
        return simulate_knobs(stored, workload_of(result.context.workload), objectives, near_rps, knobs)
    except (ValueError, TypeError, ArithmeticError) as error:
        return withheld_knobs(knobs, f"the result's fitted_server cannot be simulated ({one_line(str(error))})")


def predicted_in_json(result: str, knobs: Sequence[Knob]) -> list[Knob]:
    """Return predicted_knobs of a result in JSON: for a helper process."""
    return predicted_knobs(loads(result), knobs)


def _objectives(result: CapacityResult) -> Objectives | None:
    try:
        return objectives_of(result.context.objectives)
    except ValidationError:
        return None


def _why_no_model(capacity: Capacity) -> str:
    if capacity.mode == "empirical":
        return "this capacity is from load alone, without a model of the server; measure with a search"
    if capacity.is_lower_bound:
        return "the capacity is a lower bound; set capacity.server.max_num_seqs, then measure"
    return "the result is from a version that did not store its model; measure again"
