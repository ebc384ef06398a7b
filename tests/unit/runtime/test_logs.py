"""Logs in both formats: one entry is one line, whatever a server says."""

import json
import sys

import pytest
import structlog

from probe.runtime.logs import configure_logs

HOSTILE = "bad\n2026-01-01 [error] forged \x1b[2J\x9b31m\u202e end"


def _logged(capsys: pytest.CaptureFixture[str], **values: object) -> str:
    configure_logs()
    structlog.get_logger().error("an event", **values)
    assert not sys.stderr.isatty()
    return capsys.readouterr().err


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.fault(
    "SE33",
    "Terminal escapes and line breaks in what is logged, tracebacks included, with `--log-format text`",
    area="Security",
    users_see="escaped, further lines indented; colours only on a terminal",
    stays="no forged entry, no obeyed escape",
)
def test_text_of_a_server_is_neither_obeyed_by_a_terminal_nor_taken_for_another_entry(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KNEEWATCH_LOG_FORMAT", form)
    for values in ({"detail": HOSTILE}, {"changed": [HOSTILE]}, {"exc_info": ValueError(HOSTILE)}):
        text = _logged(capsys, **values)
        assert "forged" in text
        assert text.replace("\n", "").isprintable(), "no escapes, and no colours where there is no terminal"
        first, *more = text.splitlines()
        assert "an event" in first
        assert all(line.startswith("    ") for line in more)
        if form == "json":
            assert json.loads(first)["event"] == "an event"
            assert more == []
