"""How many examples a property test takes that wants more or fewer than the usual hundred."""

from hypothesis import settings


def examples(count: int) -> settings:
    """So many; in `make check`, whose profile has fewer, in proportion fewer."""
    return settings(max_examples=max(1, count * settings.default.max_examples // 100))
