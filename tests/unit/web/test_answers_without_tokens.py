"""Canaries that get a vector or a score, on the status pages."""

from example_records import token_events
from plain_records import MS, record, spec

from probe.core.objectives import Objective, Objectives
from probe.core.request import Api, RequestRecord
from probe.web.overview import strip
from probe.web.waterfall import waterfall

PROMISED = Objectives("vectors", availability=0.99, e2e=Objective(0.95, 0.2))


def vector(e2e_ms: int) -> RequestRecord:
    events = token_events([(e2e_ms * MS, 0, False)])
    return record(spec=spec(8, 0, Api.EMBEDDINGS), events=events, done_ns=e2e_ms * MS, output_tokens=0, tokens=0)


def test_a_vector_is_a_wait_to_its_end_and_no_failure() -> None:
    shown = waterfall([vector(100), vector(300)], PROMISED)
    assert shown is not None
    assert [row["pieces"] for row in shown["rows"]] == [[["wait", 0.0, 0.1]], [["slow_wait", 0.0, 0.3]]]
    assert shown["words"].startswith("Timing of the last 2 canaries, newest first: 0 failed, 1 missed an objective.")
    assert "TTFT" not in dict(shown["rows"][0]["facts"])


def test_the_bars_of_vectors_are_of_e2e() -> None:
    bars = strip([vector(100), vector(300)], PROMISED, [{"all": True}, {"all": False}])
    assert bars.words == "E2E of the last 2 canaries: 1 good, 1 slow"
