"""The longest tests begin first: one that begins last is waited for by an idle core."""

import pytest

_LONGEST = "test_recorded_servers.py"  # eight minutes of a core


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name != _LONGEST)
