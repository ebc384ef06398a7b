"""One test for many values that protect the same lines; a failure names its value."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
Decorator = Callable[[Callable[[T], None]], Callable[[], None]]


def for_each(
    values: Iterable[T], name: Callable[[T], str] = str
) -> Callable[[Callable[[T], None]], Callable[[], None]]:
    """Return a decorator that calls the test with each value. There must be one at least."""

    def decorate(test: Callable[[T], None]) -> Callable[[], None]:
        def all_of_them() -> None:
            every = list(values)
            assert every
            for value in every:
                try:
                    test(value)
                except BaseException as error:
                    error.add_note(f"with {name(value)}")
                    raise

        all_of_them.__name__, all_of_them.__doc__ = test.__name__, test.__doc__
        return all_of_them

    return decorate
