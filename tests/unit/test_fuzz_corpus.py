"""The inputs that fuzzing has found for each parser of foreign bytes, again."""

import pytest
from fuzz.fuzz_parsers import CORPUS, MAX_BYTES, PARSERS, inputs

NAMES = [
    "stream", "metrics", "gpus", "http_sd", "file_sd", "prometheus", "kubernetes", "authorization",
    "command_line", "startup_flags", "request_times",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.fault(
    "FA100",
    "Inputs that coverage-guided fuzzing has found for event streams",
    area="Foreign answers",
    users_see="a value or an expected error",
    stays="no exception reaches the caller",
    case="stream",
)
@pytest.mark.fault(
    "FA101",
    "Inputs that coverage-guided fuzzing has found for metrics pages of all engines",
    area="Foreign answers",
    users_see="a value or an expected error",
    stays="no exception reaches the caller",
    case="metrics",
)
@pytest.mark.fault(
    "FA102",
    "Inputs that coverage-guided fuzzing has found for pages of dcgm-exporter",
    area="Foreign answers",
    users_see="a value or an expected error",
    stays="no exception reaches the caller",
    case="gpus",
)
@pytest.mark.fault(
    "FA103",
    "Inputs that coverage-guided fuzzing has found for registries' answers",
    area="Foreign answers",
    users_see="a value or an expected error",
    stays="no exception reaches the caller",
    case="http_sd",
)
@pytest.mark.fault(
    "FA104",
    "Inputs that coverage-guided fuzzing has found for files of target groups",
    area="Foreign answers",
    users_see="a value or an expected error",
    stays="no exception reaches the caller",
    case="file_sd",
)
@pytest.mark.fault(
    "FA105",
    "Inputs that coverage-guided fuzzing has found for Prometheus' answers",
    area="Foreign answers",
    users_see="a value or an expected error",
    stays="no exception reaches the caller",
    case="prometheus",
)
@pytest.mark.fault(
    "FA106",
    "Inputs that coverage-guided fuzzing has found for watches of pods and EndpointSlices",
    area="Foreign answers",
    users_see="a value or an expected error",
    stays="no exception reaches the caller",
    case="kubernetes",
)
@pytest.mark.fault(
    "FA107",
    "Inputs that coverage-guided fuzzing has found for Authorization headers",
    area="Foreign answers",
    users_see="a value or an expected error",
    stays="no exception reaches the caller",
    case="authorization",
)
@pytest.mark.fault(
    "FA108",
    "Inputs that coverage-guided fuzzing has found for command lines of vLLM, of processes and pods",
    area="Foreign answers",
    users_see="flags, each short and printable",
    stays="no exception reaches the caller",
    case="command_line",
)
@pytest.mark.fault(
    "FA109",
    "Inputs that coverage-guided fuzzing has found for vLLM's `/server_info`",
    area="Foreign answers",
    users_see="flags, each short and printable, or an expected error",
    stays="no exception reaches the caller",
    case="startup_flags",
)
@pytest.mark.fault(
    "FA110",
    "Inputs that coverage-guided fuzzing has found for the times of a request in vLLM's answer",
    area="Foreign answers",
    users_see="times that can be, or none",
    stays="no exception reaches the caller",
    case="request_times",
)
def test_each_kept_input_is_a_value_or_an_expected_error(name: str) -> None:
    kept = inputs(name)
    assert kept
    assert all(len(data) <= MAX_BYTES for data in kept)
    for data in kept:
        try:
            PARSERS[name](data)
        except BaseException as error:
            error.add_note(f"with {data!r}")
            raise


def test_each_parser_has_a_corpus_and_each_corpus_a_parser() -> None:
    assert [*PARSERS] == NAMES
    assert {path.stem for path in CORPUS.iterdir()} == PARSERS.keys()
