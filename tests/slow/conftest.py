"""The longest tests begin first, since one that begins last is waited for by an idle core; and shorter searches."""

import pytest

from probe.capacity.search import knee_estimate, search_state, verdict

_LONGEST = "test_recorded_servers.py"  # eight minutes of a core


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name != _LONGEST)


@pytest.fixture
def short_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a search simulate a tenth as many requests for its result, and a third as many on the way."""
    monkeypatch.setattr(knee_estimate, "_FINAL_REQUESTS", 1000)
    monkeypatch.setattr(search_state, "_PLANNING_REQUESTS", 1000)
    for module in (knee_estimate, verdict):
        monkeypatch.setattr(module, "QUICK_REQUESTS", 400)
