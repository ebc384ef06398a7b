"""The step cost model from sums over steps: known costs are recovered."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, fields, replace
from random import Random

import pytest
from simulated_servers import CHAT, FAST, SLOW, WORDY, profile, watched

from probe.capacity.model.hints import Hints
from probe.capacity.model.server_model import ServerModel
from probe.capacity.model.step_sums_fit import fit_steps
from probe.core.snapshot import ServerSnapshot, StepSums
from probe.simulator.cost import Batch, StepCost

pytestmark = pytest.mark.slow

PROMPTS = (400.0,)
NOISE = 0.02


def stepped(cost: StepCost, seconds: int, seed: int = 1, *, speed: float = 1.0) -> list[ServerSnapshot]:
    """Return snapshots, one a second, of a server that runs random steps; one in eight of them holds prompts."""
    random, sums = Random(seed), dict[str, list[float]]()
    found, left_s = [], 0.0
    for second in range(seconds):
        most = random.randint(2, 120)
        left_s += 1.0
        while left_s > 0:
            decodes = max(1, round(most * random.uniform(0.7, 1.0)))
            prompts = random.choice((1, 1, 2)) if random.random() < 0.125 else 0
            prefill = sum(random.randint(50, 1500) for _ in range(prompts))
            kv_tokens = round(decodes * random.uniform(200, 1200))
            batch = Batch(decodes + prompts, decodes + prefill, kv_tokens)
            took_s = cost.step_seconds(batch) * speed * random.lognormvariate(0.0, NOISE)
            left_s -= took_s
            bound = str(1 << (decodes + prefill - 1).bit_length())
            values = (1, took_s, batch.sequences, decodes, prefill, kv_tokens)
            sums[bound] = [a + b for a, b in zip(sums.get(bound, [0.0] * 6), values, strict=True)]
        found.append(
            ServerSnapshot(
                at_ns=second * 10**9,
                wall_s=float(second),
                step_sums={bound: StepSums(*values) for bound, values in sums.items()},
            )
        )
    return found


@pytest.mark.parametrize("cost", [FAST, SLOW, WORDY])
def test_known_costs_are_recovered(cost: StepCost) -> None:
    found = fit_steps([stepped(cost, 150)], PROMPTS)
    assert found is not None
    sums = found.cost
    assert sums.host_s + sums.weights_s == pytest.approx(cost.host_s + cost.weights_s, rel=0.02)
    assert sums.per_token_s == pytest.approx(cost.per_token_s, rel=0.05)
    for batch in (Batch(4, 4, 2000), Batch(60, 60, 40_000), Batch(41, 1040, 30_000)):
        assert sums.step_seconds(batch) == pytest.approx(cost.step_seconds(batch), rel=0.01)


def test_a_segment_that_was_slower_gets_a_speed_of_its_own() -> None:
    segments = [stepped(FAST, 40, seed, speed=speed) for seed, speed in ((1, 1.0), (2, 1.15), (3, 1.0), (4, 1.15))]
    found = fit_steps(segments, PROMPTS)
    assert found is not None
    assert found.slowdown[1] / found.slowdown[0] == pytest.approx(1.15, rel=0.02)
    assert found.slowdown[3] / found.slowdown[2] == pytest.approx(1.15, rel=0.02)


def test_tokens_that_blocks_have_room_for_are_counted_as_those_of_requests() -> None:
    """Where each token takes blocks of six kinds of attention, a sixth of the tokens costs six times as much each."""
    found, sixth = fit_steps([stepped(FAST, 60)], PROMPTS), fit_steps([stepped(FAST, 60)], PROMPTS, kv_ratio=1 / 6)
    assert found is not None
    assert sixth is not None
    assert sixth.cost.per_kv_token_s == pytest.approx(6 * found.cost.per_kv_token_s, rel=0.02)


def without_prompts(snapshots: Sequence[ServerSnapshot]) -> Iterator[ServerSnapshot]:
    for snapshot in snapshots:
        sums = {bound: replace(one, prefill_tokens=0.0) for bound, one in snapshot.step_sums.items()}
        yield replace(snapshot, step_sums=sums)


def test_too_little_gives_nothing() -> None:
    snapshots = stepped(FAST, 20)
    assert fit_steps([], PROMPTS) is None
    assert fit_steps([[replace(one, step_sums={}) for one in snapshots]], PROMPTS) is None
    assert fit_steps([snapshots[:1]], PROMPTS) is None
    assert fit_steps([list(without_prompts(snapshots))], PROMPTS) is None


def test_a_restart_between_two_snapshots_is_no_measurement() -> None:
    before, after = stepped(FAST, 60), stepped(FAST, 60, seed=2)
    split = fit_steps([before, after], PROMPTS)
    together = fit_steps([before + after], PROMPTS)
    assert split is not None
    assert together is not None
    assert together.windows == split.windows


def test_a_server_model_learns_from_steps_where_they_are_shown() -> None:
    """Its other metrics are those of another server: only the steps' costs can be the result."""
    windows = watched(profile(SLOW), CHAT, 1.5, 60.0)
    steps = stepped(FAST, len(windows))
    limits = {"max_num_seqs": 48, "max_num_batched_tokens": 4096}
    both = [
        replace(one, step_sums=step.step_sums, scheduler_limits=limits)
        for one, step in zip(windows, steps, strict=True)
    ]
    model = ServerModel(CHAT, Hints())
    model.learn(both)
    fit = model.fit()
    assert fit is not None
    twin = fit.twin
    assert twin.cost.step_seconds(Batch(60, 60, 40_000)) == pytest.approx(
        FAST.step_seconds(Batch(60, 60, 40_000)), rel=0.02
    )
    assert (twin.max_num_seqs, twin.chunk_tokens, model.is_chunk_known) == (48, 4096, True)
    assert astuple(fit.cost_model.cost) == pytest.approx(astuple(twin.cost))


def test_what_is_configured_wins_over_what_the_page_shows() -> None:
    model = ServerModel(CHAT, Hints(max_num_seqs=12, max_num_batched_tokens=512))
    model.learn([ServerSnapshot(0, 0.0, scheduler_limits={"max_num_seqs": 48, "max_num_batched_tokens": 4096})])
    assert (model.max_num_seqs, model.chunk_tokens) == (12, 512)


def test_new_requests_do_not_get_what_the_watermark_leaves_free() -> None:
    page = ServerSnapshot(0, 0.0, kv_cache_tokens=100_000.0)
    for flags, tokens in (({}, 100_000), ({"watermark": "0.1"}, 90_000), ({"watermark": "0.05 | 0.2"}, 80_000)):
        model = ServerModel(CHAT, Hints(flags=flags))
        model.learn([page])
        assert model.guessed_twin(FAST).kv_tokens == pytest.approx(tokens)


def test_a_lower_limit_that_the_page_shows_counts_below_what_is_configured() -> None:
    shown = {"max_num_seqs": 256, "max_num_batched_tokens": 4096, "max_num_active_seqs": 64}
    page = ServerSnapshot(0, 0.0, scheduler_limits={**shown, "max_num_scheduled_tokens": 1024})
    for hints in (Hints(), Hints(max_num_seqs=128, max_num_batched_tokens=2048)):
        model = ServerModel(CHAT, hints)
        model.learn([page])
        assert (model.max_num_seqs, model.chunk_tokens) == (64, 1024)


@pytest.mark.parametrize("value", [1e308, 1e30, 5e-324])
@pytest.mark.parametrize("name", [field.name for field in fields(StepSums)])
@pytest.mark.fault(
    "PL2",
    "A page with sums over engine steps that cannot be",
    area="Foreign answers",
    users_see="nothing",
    stays="the sums are left out of the fit",
)
def test_sums_that_cannot_be_give_no_error(name: str, value: float) -> None:
    """They come from outside: a page can say anything."""
    snapshots = stepped(FAST, 20)
    for i in range(5, 20, 3):
        broken = {bound: replace(one, **{name: value}) for bound, one in snapshots[i].step_sums.items()}
        snapshots[i] = replace(snapshots[i], step_sums=broken)
    found = fit_steps([snapshots], PROMPTS)
    assert found is None or all(math.isfinite(term) for term in astuple(found.cost))


@pytest.mark.parametrize("name", [field.name for field in fields(StepSums)])
def test_steps_that_grow_beyond_all_bounds_give_no_error(name: str) -> None:
    snapshots = [
        replace(one, step_sums={b: replace(s, **{name: 10.0 ** (12 * i)}) for b, s in one.step_sums.items()})
        for i, one in enumerate(stepped(FAST, 20))
    ]
    found = fit_steps([snapshots], PROMPTS)
    assert found is None or all(math.isfinite(term) for term in astuple(found.cost))
