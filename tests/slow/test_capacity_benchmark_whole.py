"""One small run of all of `make bench-capacity`: every method on the case whose requests are fewest."""

import json
from pathlib import Path

import pytest

from benchmarks.capacity import truth_file
from benchmarks.capacity.__main__ import main
from benchmarks.capacity.bench import FORECAST, METHODS

pytestmark = pytest.mark.long


def test_all_of_it_on_one_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one whose requests are fewest: a capacity of a request in four seconds."""
    truths = tmp_path / "truth.json"
    truths.write_text(truth_file.FILE.read_text())
    monkeypatch.setattr(truth_file, "FILE", truths)
    out = tmp_path / "record.json"
    main(["--cases", "70b-a100-rag", "--seeds", "1", "--peer-seeds", "1", "--processes", "1", "--out", str(out)])
    said, found = capsys.readouterr().out, json.loads(out.read_text())
    assert "concurrency bisection  named (1)" in said
    assert [run["method"] for run in found["runs"]] == list(METHODS)
    assert found["command"].startswith("python -m benchmarks.capacity --cases 70b-a100-rag")
    assert found["machine"]["cores"] >= 0
    for run in found["runs"]:
        assert (run["tokens"] > 0) == (run["method"] != FORECAST)
        assert run["users"] > 0
        assert run["seconds"] > 60
        # A figure that is not verified has one too: what it lacks.
        assert run["reason"] is not None or run["answer_rps"] is not None
