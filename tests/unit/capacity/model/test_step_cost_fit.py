"""From windows to the step cost model. Single terms are confounded, so the durations of whole steps are compared."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from scipy.optimize import least_squares as scipys
from simulated_servers import CHAT, FAST, SLOW, WORDY, profile, watched, without, workload

from probe.capacity.model import step_cost_fit as ours
from probe.capacity.model.fit_data import TERMS, FitData, Floats
from probe.capacity.model.lengths import prompt_lengths
from probe.capacity.model.step_cost_fit import MIN_WINDOWS, StepCostModel, _drift, fit
from probe.capacity.model.windows import MetricsWindow, windows
from probe.core.snapshot import ServerSnapshot
from probe.core.workload import Part, Workload, mixed
from probe.simulator.cost import Batch, StepCost

pytestmark = pytest.mark.slow

KNOWN = {
    "fast": (FAST, CHAT, 12.0),
    "slow": (SLOW, CHAT, 1.5),
    "wordy": (WORDY, workload(1500, 100), 2.4),
    "fixed lengths": (FAST, workload(512, 128, 0), 12.0),
}


def learnt(snapshots: Sequence[ServerSnapshot], asked: Workload, chunk: int = 2048) -> StepCostModel | None:
    return fit([windows(snapshots)], chunk, prompt_lengths(asked))


def alike(count: int = 40, **changed: float) -> list[MetricsWindow]:
    """Return equal windows of one second."""
    plain = MetricsWindow(0, 1, 50, 490, 9.8, 10, 1000, 1, 10, 0.5, 1000, 500, 10, 0, 4000, 0)
    return [replace(plain, begin_s=i, end_s=i + 1, **changed) for i in range(count)]


def off(cost_model: StepCostModel, cost: StepCost, seen: Sequence[MetricsWindow], prompt: int) -> list[float]:
    """Return how much the cost model is off for the batches it was learnt from, without and with a prompt in the step.

    As a share of the step, or of a gap as users saw it where that is longer: steps that hardly count are hardly learnt.
    """
    gap_s = sorted(window.itl_s for window in seen)[len(seen) // 2]
    found = []
    middle = sorted(window.batch for window in seen)[len(seen) // 20 : -len(seen) // 20 or None]
    tokens_each = sum(w.kv_tokens for w in seen) / sum(w.batch for w in seen)
    for batch in (middle[0], middle[len(middle) // 2], middle[-1]):
        for prefill in (0, prompt):
            n = round(batch)
            step = Batch(n, n + prefill, round(tokens_each * n))
            true_s = cost.step_seconds(step)
            found.append((cost_model.cost.step_seconds(step) - true_s) / max(true_s, gap_s))
    return found


@pytest.mark.parametrize("name", KNOWN)
def test_the_steps_of_a_known_server_are_recovered(name: str) -> None:
    cost, asked, rate_rps = KNOWN[name]
    snapshots = watched(profile(cost), asked, rate_rps, 240.0)
    cost_model = learnt(snapshots, asked)
    assert cost_model is not None
    prompt = asked.prompt_tokens if isinstance(asked.prompt_tokens, int) else asked.prompt_tokens.median
    errors = off(cost_model, cost, windows(snapshots), prompt)
    # Of steps that only decode. They are hardly seen where prompts take nearly all of the time.
    assert max(map(abs, errors[::2])) < (0.2 if name == "wordy" else 0.05)
    assert max(map(abs, errors)) < 0.12
    assert cost_model.residual < 0.1


def test_prompts_longer_than_a_step_s_tokens() -> None:
    asked = workload(6000, 100, 0.3)
    snapshots = watched(profile(FAST, chunk=1024), asked, 1.2, 240.0)
    cost_model = learnt(snapshots, asked, 1024)
    assert cost_model is not None
    assert max(map(abs, off(cost_model, FAST, windows(snapshots), 1000))) < 0.12


def test_an_old_server_without_steps_and_prefill_times() -> None:
    snapshots = [
        without(r, "iteration_tokens", "prefill", "prompt_length") for r in watched(profile(SLOW), CHAT, 1.5, 240.0)
    ]
    cost_model = learnt(snapshots, CHAT)
    assert cost_model is not None
    assert max(map(abs, off(cost_model, SLOW, windows(snapshots), 400)[::2])) < 0.08


def test_a_cache_that_was_not_seen_costs_nothing() -> None:
    """Else its term would be the first guess: a tenth of a step for each token in it."""
    snapshots = [replace(r, kv_cache_tokens=None) for r in watched(profile(FAST), CHAT, 12.0, 120.0)]
    cost_model = learnt(snapshots, CHAT)
    assert cost_model is not None
    assert cost_model.cost.per_kv_token_s == 0
    assert cost_model.cost.step_seconds(Batch(30, 30)) == pytest.approx(
        FAST.step_seconds(Batch(30, 30, 15_000)), rel=0.07
    )


def test_a_hiccup_does_not_move_the_cost_model() -> None:
    seen = windows(watched(profile(FAST), CHAT, 12.0, 120.0))
    shaken = [replace(w, itl_sum_s=w.itl_sum_s * 6) if i % 15 == 0 else w for i, w in enumerate(seen)]
    calm, rough = fit([seen], 2048, prompt_lengths(CHAT)), fit([shaken], 2048, prompt_lengths(CHAT))
    assert calm is not None
    assert rough is not None
    step = Batch(20, 20, 8000)
    assert rough.cost.step_seconds(step) == pytest.approx(calm.cost.step_seconds(step), rel=0.08)


def test_too_few_or_too_idle_windows_give_no_cost_model() -> None:
    assert fit([], 2048, [100.0]) is None
    assert fit([[]], 2048, [100.0]) is None
    assert fit([alike(MIN_WINDOWS - 1)], 2048, [100.0]) is None
    assert fit([alike(MIN_WINDOWS)], 2048, [100.0]) is not None
    assert fit([alike(steps=450)], 2048, [100.0]) is None  # about one at a time
    assert fit([alike(steps=0)], 2048, [100.0]) is None
    assert fit([alike(itl_sum_s=0.0)], 2048, [100.0]) is None


def test_without_prompts_the_cost_of_one_is_unknown() -> None:
    assert fit([alike(prompts=0, prompt_tokens=0, finished=0)], 2048, [100.0]) is None
    assert fit([alike(cached_tokens=1000)], 2048, [100.0]) is None
    assert fit([alike(cached_tokens=5000)], 2048, [100.0]) is None  # a cache hit of a prompt that ends in the next


def test_prefill_times_of_zero_are_ignored() -> None:
    assert fit([alike(prefill_sum_s=0.0)], 2048, [100.0]) is not None


def test_windows_that_are_all_alike_explain_themselves() -> None:
    cost_model = fit([alike()], 2048, [100.0])
    assert cost_model is not None
    assert cost_model.residual < 0.01
    assert cost_model.batches == (9.8, 9.8)
    assert (cost_model.drift, cost_model.slowdown) == (0.0, (1.0,))


def odd(source: random.Random) -> MetricsWindow:
    """Generate values of any size, many of them zero."""

    def figure(most: float) -> float:
        return source.choice((0.0, 10 ** source.uniform(-6, 0) * most, most))

    return MetricsWindow(
        begin_s=0.0,
        end_s=source.uniform(1, 300),
        steps=figure(1e4),
        decodes=20 + figure(1e5),
        itl_sum_s=figure(1e4),
        prompts=figure(1e3),
        prompt_tokens=figure(1e6),
        ttft_sum_s=figure(1e3),
        finished=figure(1e3),
        prefill_sum_s=figure(1e3),
        finished_prompt_tokens=figure(1e6),
        generation_tokens=figure(1e6),
        running=figure(1e3),
        waiting=figure(1e3),
        kv_tokens=figure(1e7),
        cached_tokens=figure(1e6),
        engines=source.randint(1, 8),
    )


@examples(60)
@given(st.integers(0, 10**6), st.integers(6, 15), st.sampled_from([1, 512, 8192]))
def test_whatever_the_windows_a_cost_model_is_sound_or_absent(seed: int, count: int, chunk: int) -> None:
    source = random.Random(seed)
    seen = [odd(source) for _ in range(count)]
    cost_model = fit([seen[:4], seen[4:]], chunk, [100.0, 1000.0])
    if cost_model is not None:
        assert cost_model.residual >= 0
        assert 0 < cost_model.cost.step_seconds(Batch(10, 10, 100)) < math.inf


def test_stretches_of_one_speed_have_no_drift_and_others_have_theirs() -> None:
    source = np.random.default_rng(3)
    lengths = [20] * 8
    noise = source.normal(0, 0.05, sum(lengths))
    assert _drift(noise, lengths) < 0.03
    speeds = np.repeat([-0.15, 0.15] * 4, 20)
    assert _drift(noise + speeds, lengths) == pytest.approx(0.16, abs=0.03)


def test_of_a_single_stretch_no_drift_is_known() -> None:
    assert _drift(np.array([0.5, 0.1, -0.2, 0.3]), [4]) == 0.0
    assert _drift(np.array([0.5, 0.1]), [1, 1]) == 0.0


MIXTURE = mixed(
    "mixture",
    CHAT.api,
    (Part("chats", workload(160, 180).prompt_tokens, 180, share=0.9), Part("documents", 2800, 48, share=0.1)),
)


@pytest.mark.parametrize("name", ["fast", "slow", "wordy", "mixture"])
@pytest.mark.parametrize("ahead", [False, True])
def test_prompts_cost_no_more_where_steps_are_planned_ahead(name: str, *, ahead: bool) -> None:
    """vLLM's asynchronous scheduling: first tokens come a step later, which hardly shows where prompts take long.

    Among nine chats, a document of two chunks fills steps in which others wait.
    """
    cost, asked, rate = {**KNOWN, "mixture": (FAST, MIXTURE, 14.0)}[name]
    seen = windows(watched(replace(profile(cost), plans_ahead=ahead), asked, rate, 45.0))
    found = fit([seen], 2048, prompt_lengths(asked))
    assert found is not None
    assert name == "wordy" or found.plans_ahead is ahead
    assert 0.5 * cost.per_token_s < found.cost.per_token_s < 1.15 * cost.per_token_s


def test_without_a_part_a_fit_that_begins_at_that_of_all_ends_where_one_from_nothing_does() -> None:
    cost, asked, rate = KNOWN["slow"]
    parts = [windows(watched(profile(cost), asked, rate, 30.0, seed=seed)) for seed in range(4)]
    whole = fit(parts, 2048, prompt_lengths(asked), plans_ahead=False)
    assert whole is not None
    anew = fit(parts[1:], 2048, prompt_lengths(asked), plans_ahead=False)
    near = fit(parts[1:], 2048, prompt_lengths(asked), plans_ahead=False, near=whole.cost)
    assert anew is not None
    assert near is not None
    for batch in (Batch(8, 8, 6000), Batch(24, 24, 20_000), Batch(16, 1200, 12_000)):
        assert near.cost.step_seconds(batch) == pytest.approx(anew.cost.step_seconds(batch), rel=0.003)


def losses(errors: Callable[[Floats], Floats], begin: Floats, lower: Floats, upper: Floats) -> tuple[float, float]:
    """Return the loss where ours ends, and the least that scipy finds from there and from the beginning."""
    found = ours.least_squares(errors, begin, lower, upper)
    assert (found.x >= lower).all()
    assert (found.x <= upper).all()
    span = np.where(np.isinf(upper), 1.0, upper - lower)
    # scipy begins strictly inside.
    starts = [
        np.clip(x, lower + 1e-9 * span, np.where(np.isinf(upper), x + 1, upper - 1e-9 * span)) for x in (begin, found.x)
    ]
    solved = [
        scipys(errors, x, bounds=(lower, upper), loss="soft_l1", f_scale=2.0, ftol=1e-13, xtol=1e-13, gtol=1e-13)
        for x in starts
    ]
    best = min(solved, key=lambda one: float(one.cost))
    assert found.jacobian.T @ found.jacobian == pytest.approx(best.jac.T @ best.jac, rel=0.02, abs=0.02)
    return ours._loss(errors(found.x)), float(best.cost)


@pytest.mark.parametrize("seed", range(20))
def test_lines_with_outliers_within_bounds(seed: int) -> None:
    """Some variables end at a bound, some between."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 8))
    slopes, truth = rng.normal(size=(40, count)), rng.normal(size=count)
    values = slopes @ truth + 0.1 * rng.normal(size=40) + np.where(rng.random(40) < 0.1, 50.0, 0.0)
    lower, upper = np.full(count, -0.5), np.where(np.arange(count) % 2, np.inf, 0.5)
    mine, theirs = losses(lambda x: np.asarray((slopes @ x - values) / 0.1), np.zeros(count), lower, upper)
    assert mine <= theirs * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_a_curve(seed: int) -> None:
    rng = np.random.default_rng(seed)
    at = np.linspace(0.0, 4.0, 50)
    rate, height = rng.uniform(0.3, 3.0), rng.uniform(1.0, 5.0)
    values = height * np.exp(-rate * at) + 0.02 * rng.normal(size=50)

    def errors(x: Floats) -> Floats:
        return np.asarray((x[0] * np.exp(-x[1] * at) - values) / 0.02)

    mine, theirs = losses(errors, np.array([1.0, 1.0]), np.zeros(2), np.array([np.inf, 10.0]))
    assert mine <= theirs * (1 + 1e-6)


@pytest.mark.parametrize(("cost", "rate_rps"), [(FAST, 12.0), (SLOW, 1.5), (WORDY, 2.4)], ids=["fast", "slow", "wordy"])
def test_the_fit_of_a_server(cost: object, rate_rps: float) -> None:
    """With a hiccup, and from the first guess: what the step cost model asks for."""
    asked = workload(1500, 100) if cost is WORDY else CHAT
    seen = windows(watched(profile(cost), asked, rate_rps, 120.0))  # type: ignore[arg-type]
    seen = [replace(w, itl_sum_s=w.itl_sum_s * 4) if i % 15 == 7 else w for i, w in enumerate(seen)]
    good = [w for w in seen if w.steps > 0 and w.batch >= 1.5 and w.itl_sum_s > 0]
    data = FitData([good], [seen], 2048, prompt_lengths(asked), 0.0)
    mine, theirs = losses(data.misfit, np.ones(TERMS), np.zeros(TERMS), np.full(TERMS, np.inf))
    assert mine <= theirs * (1 + 1e-6)


def test_nothing_is_gained_where_the_least_is_at_a_corner() -> None:
    found = ours.least_squares(lambda x: x + 1.0, np.array([0.0, 0.0]), np.zeros(2), np.ones(2))
    assert found.x.tolist() == [0.0, 0.0]


def test_it_begins_within_the_bounds() -> None:
    found = ours.least_squares(lambda x: x - 0.25, np.array([9.0]), np.zeros(1), np.ones(1))
    assert found.x == pytest.approx([0.25])


def test_a_variable_that_hardly_matters_near_the_least_holds_up_no_other() -> None:
    """The time for a token, where steps wait for memory: its derivative vanishes there, and it made giant steps."""
    batch = np.linspace(1.0, 20.0, 30)
    kv_tokens = 400 * batch * (1 + 0.1 * np.sin(7 * batch))
    step_s = 15.0 + 0.03 * batch + 6e-5 * kv_tokens

    def errors(x: Floats) -> Floats:
        host, sequence, token, weights, kv_token = x
        longer = ((10 * weights + 2e-3 * kv_token * kv_tokens) ** 4 + (token * (batch + 60)) ** 4) ** 0.25
        off = (5 * host + 0.1 * sequence * batch + longer) / step_s - 1
        return np.concatenate([100 * off, np.array([1.0, 0.5, 0.1, 1.0, 0.5]) * (x - 1)])

    lower, upper = np.zeros(5), np.full(5, np.inf)
    found = ours.least_squares(errors, np.ones(5), lower, upper)
    best = scipys(errors, found.x + 1e-9, bounds=(lower, upper), loss="soft_l1", f_scale=2.0)
    assert ours._loss(errors(found.x)) <= 1.02 * float(best.cost)
