"""How many chunks of which size the prompts of a window have."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from probe.capacity.model.fit_data import PromptMix

CHATS_AND_A_DOCUMENT = np.array([160.0] * 9 + [2800.0])
MEAN = float(CHATS_AND_A_DOCUMENT.mean())


def mix(lengths: list[float], mean: float, room: float = 2000.0) -> PromptMix:
    return PromptMix(np.array(lengths), np.array([mean]), np.array([room]))


def test_a_larger_mean_is_more_long_prompts_and_not_longer_ones() -> None:
    found = PromptMix(CHATS_AND_A_DOCUMENT, np.array([160.0, MEAN, 2 * MEAN - 160.0]), np.full(3, 2000.0))
    assert found.shares[-1] == pytest.approx([0.0, 0.1, 0.2])
    assert found.rest[0] == pytest.approx([160.0] * 3)
    assert found.rest[-1] == pytest.approx([800.0] * 3)
    assert found.chunks == pytest.approx([1.0, 1.1, 1.2])


def test_prompts_of_one_length_are_as_long_as_they_were_measured() -> None:
    found = mix([3000.0], 4500.0)
    assert (found.full.item(), found.rest.item()) == (2.0, 500.0)
    assert found.first_tokens.item() == 2000.0


def test_prompts_that_were_all_cached_have_no_tokens() -> None:
    found = mix([100.0, 300.0], 0.0)
    assert found.mean_tokens.item() == 0.0
    filled, tokens = found.in_steps(np.array([0.5]))
    assert filled.item() == 0.0
    assert found.mean(tokens).item() == 0.0


@given(
    st.lists(st.floats(1.0, 20_000.0), min_size=1, max_size=9),
    st.floats(1.0, 50_000.0),
    st.floats(16.0, 9000.0),
    st.floats(0.001, 0.5),
)
@example([10923.506] * 3, 9000.0, 2048.0, 0.1)  # their variance is not 0, but of rounding errors
def test_no_token_and_no_pair_is_lost(lengths: list[float], mean: float, room: float, begun: float) -> None:
    found = mix(lengths, mean, room)
    assert (found.counts * found.tokens).sum() == pytest.approx(mean)
    prompts = found.full * room + found.rest
    assert (found.counts * found.pairs).sum() == pytest.approx(float((found.shares * prompts**2).sum()) / 2)
    filled, tokens = found.in_steps(np.array([begun]))
    assert tokens.max() <= room * (1 + 1e-9)
    if filled.item() < 1:
        assert filled.item() * found.mean(tokens).item() == pytest.approx(begun * found.mean_tokens.item())
