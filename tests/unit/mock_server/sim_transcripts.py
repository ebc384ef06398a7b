"""Transcripts of a vLLM server: a request, a line of dashes, and the raw bytes of the answer.

    python tests/unit/sim/sim_transcripts.py http://127.0.0.1:8000 tests/golden/vllm-0.32/*.txt

sends each file's request again and writes the new answer into it. The goldens were recorded from
vLLM 0.32.0, with a small model served as "tiny" and --max-model-len 1024. Line ends are stored
without carriage returns, so that no editor or checkout changes them.
"""

import re
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

RULE = "-" * 40 + "\n"


@dataclass(frozen=True, slots=True)
class Transcript:
    """`request` is a line (method and path), header lines, an empty line and a body."""

    request: str
    answer: str


def read(path: Path) -> Transcript:
    return Transcript(*path.read_text().split(RULE))


def exchange(request: str, host: str, port: int) -> str:
    """Return the raw answer to a transcript's request, chunk framing included."""
    head, _, body = request.rstrip("\n").partition("\n\n")
    line, *headers = head.splitlines()
    content = body.encode()
    lines = [f"{line} HTTP/1.1", f"host: {host}:{port}", "connection: close", *headers]
    if body:
        lines.append(f"content-length: {len(content)}")
    with socket.create_connection((host, port), timeout=10) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return answer.decode().replace("\r\n", "\n")


def normalised(answer: str) -> str:
    """Return the answer without what may differ between two correct servers: ids, times, words, sizes, names.

    Also without what uvicorn's two HTTP parsers, one of them optional, do differently: order and case of header
    names.
    """
    head, separator, body = answer.partition("\n\n")
    status, *headers = head.split("\n")
    named = (re.sub(r"^[\w-]+:", lambda name: name[0].lower(), header) for header in headers)
    answer = "\n".join([status, *sorted(named)]) + separator + body
    for pattern, instead in (
        (r"\ndate: [^\n]+", "\ndate: DATE"),
        (r"\ncontent-length: [1-9]\d*", "\ncontent-length: SIZE"),
        (r"(?m)^[1-9a-f][0-9a-f]*$", "CHUNK"),
        (r'"(cmpl|chatcmpl|modelperm|embd|score)-[0-9a-f]{16}"', r'"\1-ID"'),
        (r'"(resp|msg)_[0-9a-f]{16}"', r'"\1-ID"'),
        (r'"(created|created_at)":\d+', r'"\1":TIME'),
        (r'"embedding":\[[^\]]+\]', '"embedding":VECTOR'),
        (r'"(score|relevance_score)":[\d.e-]+', r'"\1":SCORE'),
        (r'"delta":"(?:[^"\\]|\\.)+"', '"delta":"WORDS"'),
        (r'"(text|content)":"(?:[^"\\]|\\.)+"', r'"\1":"WORDS"'),
        (r'"system_fingerprint":"vllm-0\.32\.0-\w+"', '"system_fingerprint":"NAME"'),
        (r'"version":"0\.32\.0[^"]*"', '"version":"VERSION"'),
        (r'"root":"[^"]+"', '"root":"PATH"'),
    ):
        answer = re.sub(pattern, instead, answer)
    if '"embedding":' not in answer and '"object":"text_completion"' not in answer:
        # The length of text is the tokenizer's business.
        answer = re.sub(r'"(prompt_tokens|total_tokens|input_tokens)":\d+', r'"\1":TOKENS', answer)
    return answer


def _record(url: str, paths: list[str]) -> None:
    address = urlsplit(url)
    for path in map(Path, paths):
        request = path.read_text().split(RULE)[0]
        path.write_text(request + RULE + exchange(request, address.hostname or "", address.port or 80))


if __name__ == "__main__":
    _record(sys.argv[1], sys.argv[2:])
