"""Where a result comes from, in words."""

from dataclasses import replace

from example_records import result

from probe.core.provenance import Provenance
from probe.report.provenance_text import provenance_lines
from probe.report.result_text import result_words


def test_it_says_what_made_it_what_is_known_of_the_server_and_what_is_not() -> None:
    made = Provenance(
        "0.1.0", "kneewatch ramp --seed 3", 3, "laptop", {"max_model_len": "4096", "rack": "b", "gpu": "2x L4"}
    )
    lines = dict(provenance_lines(replace(result(), provenance=made)))
    assert lines["Facts"] == "GPU 2x L4, max_model_len 4096, rack b"
    assert lines["Made by"] == "kneewatch 0.1.0 on laptop, seed 3: kneewatch ramp --seed 3"
    assert lines["Not known"].startswith("image, commit, node, driver, CUDA, dtype, tensor_parallel_size; --note")
    assert "Made by:     kneewatch 0.1.0" in result_words(replace(result(), provenance=made))


def test_a_result_of_an_older_version_says_nothing() -> None:
    assert provenance_lines(result()) == []
