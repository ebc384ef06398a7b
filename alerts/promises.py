"""Recording rules of what is promised, from the series of the objectives: the terms of burn conditions. Pure."""

from alerts.alert_labels import by, on
from alerts.rules import Recording
from alerts.windows import PAIRS, SUSTAINED, BurnWindow, duration
from exporters import names
from exporters.names import PREFIX
from probe.core import objectives as slo

OBJECTIVES = (slo.AVAILABILITY, *slo.LATENCIES)
# With the label `slo`, the objectives' name.
WINDOW = f"target_slo:{PREFIX}objective_window:seconds"
OF_TARGET = f"{on('target')} group_left ()"


def promise_rules() -> list[Recording]:
    """Return the rules, of each target that has objectives."""
    # Where two Kneewatches disagree, one of them counts: each target needs one value.
    one = f"topk {by('target')} (1, {names.OBJECTIVE_WINDOW.name})"
    rules = [Recording(WINDOW, f"max {by('target', 'slo')} ({one})")]
    for objective in OBJECTIVES:
        ratio = f'{names.OBJECTIVE_RATIO.name}{{objective="{objective}"}}'
        rules.append(Recording(allowed(objective), f"1 - max {by('target')} ({ratio})"))
    for pair in {limit(pair): pair for pair in PAIRS}.values():
        # A pair longer than the objective's window has no limit, and does not fire.
        spent = f"{pair.share:g} * ({WINDOW} >= {pair.long_s:g}) / {pair.long_s:g}"
        rules.append(Recording(limit(pair), f"clamp_min({spent}, 1)"))
    return rules


def allowed(objective: str) -> str:
    """Return the name of the rule that records the ratio of bad requests that the objective allows."""
    return f"target:{PREFIX}{objective}_allowed:ratio"


def limit(pair: BurnWindow) -> str:
    """Return the name of the rule that records the multiple of the allowed ratio at which the pair fires."""
    return f"target_slo:{PREFIX}burn_limit:over{duration(pair.long_s)}"


def least(pair: BurnWindow) -> str:
    """Return the multiple that the short window must exceed."""
    return f"clamp_min({limit(pair)} / {SUSTAINED:g}, 1)" if pair.is_sustained else limit(pair)
