"""Series of capacity: the knee, as the last run that found one measured it."""

from functools import partial

from exporters.series.declaration import declare

_KNEE = ("target", "model", "workload", "mode")
_declare = partial(declare, "capacity")

CAPACITY_RPS = _declare(
    "gauge",
    "capacity_requests_per_second",
    "Capacity: requests per second that the server sustains within every objective",
    _KNEE,
)
CAPACITY_RPS_LOWER = _declare(
    "gauge", "capacity_requests_per_second_lower", "Lower bound of the capacity in requests per second", _KNEE
)
CAPACITY_RPS_UPPER = _declare(
    "gauge",
    "capacity_requests_per_second_upper",
    "Upper bound of the capacity in requests per second; absent if no load missed an objective",
    _KNEE,
)
CAPACITY_TOKENS = _declare("gauge", "capacity_output_tokens_per_second", "Output tokens per second at the knee", _KNEE)
PREFILL_TOKENS = _declare(
    "gauge",
    "prefill_tokens_per_second",
    "Prompt tokens per second of one engine in steps full of prompts, by the step cost model; absent if the model does"
    " not know it",
    _KNEE,
)
HEADROOM = _declare(
    "gauge",
    "capacity_headroom_ratio",
    "1 minus users' share of the capacity in requests or output tokens, whichever is more; below 0: over capacity;"
    " absent for a forecast that is a lower bound",
    _KNEE,
)
BOTTLENECK = _declare(
    "gauge",
    "capacity_bottleneck",
    "1 for the resource that limits the server by the last result of this workload and mode, 0 for others",
    (*_KNEE, "bottleneck"),
)
CAPACITY_STEPS = _declare("counter", "capacity_steps_total", "Steps of capacity runs by verdict", ("target", "verdict"))
MODEL_RESIDUAL = _declare(
    "gauge",
    "capacity_model_residual_ratio",
    "Last forecast before a measuring run divided by the run's result, minus 1",
    ("target", "model", "workload"),
)
KNEE_CONCURRENCY = _declare(
    "gauge", "knee_concurrency", "Requests in flight at the knee; absent where no load broke an objective", _KNEE
)
CAPACITY_LAST_SUCCESS = _declare(
    "gauge",
    "capacity_last_success_timestamp_seconds",
    'Time of the last capacity result; with mode="forecast", up to when it has learnt all that there was: now minus'
    " this is a forecast's age",
    _KNEE,
)
CAPACITY_FINGERPRINT = _declare(
    "gauge",
    "capacity_fingerprint",
    "Digest of the setup (model, engine, flags, workload, objectives) as a number, for comparison only",
    _KNEE,
)
KNEE_UPPER = _declare(
    "gauge",
    "knee_upper_requests_per_second",
    "The most that the knee of the last run may be, as it is compared with the baseline; known also where the load of"
    " users is not",
    _KNEE,
)
KNEE_BASELINE = _declare(
    "gauge", "knee_baseline_requests_per_second", "Baseline: median of earlier capacities with the same setup", _KNEE
)
KNEE_BASELINE_SINCE = _declare(
    "gauge", "knee_baseline_since_timestamp_seconds", "Time of the first run in the baseline of the knee", _KNEE
)
KNEE_SHIFT = _declare(
    "gauge", "knee_shift_ratio", "Last capacity divided by its baseline, minus 1: -0.1 is 10 % less", _KNEE
)
KNEE_SHIFTED = _declare(
    "gauge",
    "knee_shifted",
    "1 while this method detects a shift of the knee, else 0; rise detects a higher knee, the other methods a lower"
    " one",
    (*_KNEE, "method"),
)
CAPACITY_RUNS = _declare("counter", "capacity_runs_total", "Capacity runs by outcome", ("target", "outcome"))
CAPACITY_SCHEDULE = _declare(
    "gauge",
    "capacity_schedule_interval_seconds",
    "Longest time between two days with a scheduled capacity run: 86400 if there is one every day",
    ("target",),
)
CAPACITY_REFUSALS = _declare(
    "counter",
    "capacity_refusals_total",
    "Scheduled capacity runs that were refused, by reason",
    ("target", "reason"),
)
GUARD_TRIPS = _declare(
    "counter", "guard_trips_total", "Times that the guard stopped the load of a capacity run", ("target", "reason")
)
OVER_OBJECTIVE = _declare(
    "counter",
    "capacity_over_objective_seconds_total",
    "Seconds in which requests of capacity runs missed an objective",
    ("target",),
)
