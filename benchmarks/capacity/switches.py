"""The heuristics and constants of a search, each with what takes it away: for `benchmarks.capacity.cold --without`.

A heuristic earns its keep where searches without it are worse; docs/evidence/accuracy.md has the figures.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

from probe.capacity.model.front_end_delay import most_likely

_SEARCH = "probe.capacity.search."

# Each: the module, the name in it, and what stands there instead.
SWITCHES: Mapping[str, tuple[tuple[str, str, Any], ...]] = {
    "pulses": ((_SEARCH + "pulses", "MOST", 1),),
    "pulses-of-64": ((_SEARCH + "pulses", "MOST", 16),),
    "guess": ((_SEARCH + "search_state", "guess_cost", lambda *_: None),),
    "steps-apart": ((_SEARCH + "step_plan", "_MIN_GROWTH", 1.06),),
    "longer-top-step": ((_SEARCH + "step_plan", "_TOP_STEP_FACTOR", 1.0),),
    "warm-up": ((_SEARCH + "step_plan", "_WARM_RESIDENCES", 0.0),),
    "correction": ((_SEARCH + "search_state", "estimate_correction", lambda *_: {}),),
    "bias": (("probe.capacity.model.server_model", "estimate_bias", lambda *_: (0.0,) * 6),),
    "speeds": (("probe.capacity.model.step_cost_fit", "_IGNORED_DRIFT", 1e9),),
    "chunk": ((_SEARCH + "search_state", "infer_chunk_tokens", lambda model, *_: model.chunk_tokens),),
    "front-end": ((_SEARCH + "search_state", "candidate_front_ends", lambda *_: []),),
    "single-first-tokens": ((_SEARCH + "search_state", "infer_front_end", lambda fronts, *_: most_likely(fronts)),),
    "max-num-seqs": (("probe.capacity.model.server_model", "infer_max_num_seqs", lambda *_, **__: None),),
    "chance": ((_SEARCH + "verdict", "_may_be_chance", lambda *_: False),),
    "foreseen": ((_SEARCH + "verdict", "_is_foreseen", lambda *_: False),),
    "unexplained-tail": ((_SEARCH + "knee_estimate", "unexplained_tail", lambda *_: 0.0),),
    "floor": ((_SEARCH + "knee_estimate", "LEAST_SPREAD", 0.0),),
    "latency-error": ((_SEARCH + "knee_estimate", "_LATENCY_ERROR", 0.0),),
    "drift-counts-twice": ((_SEARCH + "knee_estimate", "_UNSEEN_DRIFT", 1.0),),
    "unforeseen-overload": ((_SEARCH + "search", "unforeseen_overload", lambda *_: None),),
    "until-verified": ((_SEARCH + "search", "load_to_verify", lambda *_: None),),
    "100-seconds": ((_SEARCH + "unverified", "_LEAST_SPAN_S", 0.0),),
    "late-holds": (("probe.load.late_step", "has_held", lambda *_: False),),
    "late-trips": (("probe.load.late_step", "may_explain", lambda *_: False),),
    "long-simulations": (
        (_SEARCH + "knee_estimate", "_FINAL_REQUESTS", 1000),
        (_SEARCH + "knee_estimate", "QUICK_REQUESTS", 400),
        (_SEARCH + "search_state", "_PLANNING_REQUESTS", 1000),
        (_SEARCH + "verdict", "QUICK_REQUESTS", 400),
    ),
    "light-waiting": ((_SEARCH + "unverified", "_DRIFT_SHARE", 0.9),),
}


@contextmanager
def without(names: Iterable[str]) -> Iterator[None]:
    """Run with these heuristics taken away. KeyError for a name that there is not."""
    with ExitStack() as taken:
        for module, name, instead in (each for switch in names for each in SWITCHES[switch]):
            taken.enter_context(patch.object(import_module(module), name, instead))
        yield
