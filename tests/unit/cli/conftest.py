"""What commands change in the process of the tests."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def logs_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the logs that a command configures, and the variables of --log-level and --log-format."""
    for name in ("KNEEWATCH_LOG_LEVEL", "KNEEWATCH_LOG_FORMAT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield
    structlog.reset_defaults()
