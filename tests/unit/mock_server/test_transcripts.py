"""The mock server's bytes against transcripts of the real vLLM 0.32."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sim_running import MockServer, running
from sim_transcripts import exchange, normalised, read

from probe.mock_server.profiles import PROFILES

GOLDEN = Path(__file__).parents[2] / "golden" / "vllm-0.32"
TRANSCRIPTS = sorted(path for path in GOLDEN.glob("*.txt") if path.name != "metrics.txt")
RESULTS = ("embeddings", "score", "rerank")  # of a server with an embedding model
# Base64 is the same vector, which the mock server does not write.
UNKNOWN = ("embeddings-base64",)


@pytest.fixture(scope="module")
def mock_server() -> Iterator[MockServer]:
    with running(PROFILES["tiny"]) as server:
        yield server


@pytest.fixture(scope="module")
def embeddings() -> Iterator[MockServer]:
    with running(PROFILES["tiny"], is_pooling=True) as server:
        yield server


@pytest.mark.parametrize("path", [path for path in TRANSCRIPTS if path.stem not in UNKNOWN], ids=lambda path: path.stem)
def test_answers_with_the_real_servers_bytes(path: Path, mock_server: MockServer, embeddings: MockServer) -> None:
    transcript = read(path)
    server = embeddings if path.stem.startswith(RESULTS) else mock_server
    answer = exchange(transcript.request, "127.0.0.1", server.port)
    assert normalised(answer).rstrip() == normalised(transcript.answer).rstrip()


def test_there_is_something_to_compare_with() -> None:
    assert len(TRANSCRIPTS) > 30
