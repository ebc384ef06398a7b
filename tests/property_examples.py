"""How many examples a property test takes that wants more or fewer than the usual hundred."""

from hypothesis import settings


def examples(count: int) -> settings:
    """Set the number of examples; a profile with fewer, as in `make check`, scales it."""
    return settings(max_examples=max(1, count * settings.default.max_examples // 100))
