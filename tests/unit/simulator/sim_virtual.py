"""A closed loop on an engine in virtual time: what a ramp would see, without waiting for it."""

from dataclasses import dataclass, field

from probe.simulator.cost import Profile
from probe.simulator.engine import SimulatedEngine


@dataclass(slots=True)
class Seen:
    """Latencies in seconds of the requests that ended, and how often one was preempted."""

    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    preemptions: int = 0


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def closed_loop(profile: Profile, *, concurrency: int, prompt: int, output: int, requests: int) -> Seen:
    engine = SimulatedEngine(profile)
    seen = Seen()
    sent: dict[int, float] = {}
    first: dict[int, float] = {}
    now_s = 0.0
    for _ in range(concurrency):
        sent[engine.submit(prompt_tokens=prompt, output_tokens=output)] = now_s
    while len(seen.tpot_s) < requests:
        plan = engine.plan_step()
        assert plan is not None
        now_s += profile.cost.step_seconds(plan.batch)
        seen.preemptions += len(plan.preempted)
        outcome = engine.complete_step()
        for number in outcome.emitted:
            if first.setdefault(number, now_s) == now_s:
                seen.ttft_s.append(now_s - sent[number])
        for number in outcome.finished:
            seen.tpot_s.append((now_s - first[number]) / (output - 1))
            sent[engine.submit(prompt_tokens=prompt, output_tokens=output)] = now_s
    return seen
