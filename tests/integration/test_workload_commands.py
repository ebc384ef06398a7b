"""Every command of docs/workloads.md, on the mock server, in shortened steps: each is accepted and leaves what it says.

Whether the matrix' levels are long enough to be judged is in tests/slow/test_workload_rows.py, where time is virtual.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from monitor import Sim

pytestmark = [pytest.mark.long, pytest.mark.alone]

PAGE = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
ROWS = re.findall(r"^\| ([A-F] [^|]+?) \| (?:\d+ / \d+|varied) \| `(kneewatch ramp [^`]+)` \|", PAGE, re.MULTILINE)
# Searches end after some seconds, and fixed steps are short: 1 is a run without a capacity.
SHORTER = """
kneewatch() {
  short="--max-seconds 60 --step-seconds 2"
  case "$*" in
    ramp*--trace*) more=$short ;;
    ramp*--concurrency*|ramp*--rates*) more="$short --confirm-seconds 0" ;;
    ramp*) more="--max-seconds 20" ;;
    *) more="" ;;
  esac
  status=0
  command kneewatch "$@" $more || status=$?
  echo "[$status] kneewatch $*" >> statuses
  [ $status -le 1 ] || [ "$1" = compare ]
}
set -e
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("workloads")
    rows = [f"2024-05-10 00:00:{i // 4:02d}.{i % 4 * 25:02d},{100 + i % 7 * 40},{20 + i % 5 * 10}" for i in range(120)]
    (found / "azure.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    asked = [
        {"id": f"{i}", "conversations": [{"from": "human", "value": "why " * 60}, {"from": "gpt", "value": "so " * 40}]}
        for i in range(20)
    ]
    (found / "sharegpt.json").write_text(json.dumps(asked))
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Sim(tmp_path_factory.mktemp("sim"), "8b-h100") as sim:
        yield sim.base_url


def run(script: str, server: str, folder: Path) -> list[str]:
    """Run a script in the folder; return the lines that say how each command ended."""
    (folder / "statuses").unlink(missing_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", SHORTER + script.replace("http://vllm:8000", server)],
        cwd=folder,
        env={**os.environ, "PATH": path, "URL": server},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return (folder / "statuses").read_text().splitlines()


@pytest.mark.parametrize(("row", "command"), ROWS, ids=[f"{i}-{row[0][0]}" for i, row in enumerate(ROWS)])
def test_a_row_of_the_matrix(row: str, command: str, server: str, folder: Path) -> None:
    keeps = "" if "--json" in command else " --json row.json"
    assert run(command + keeps, server, folder), row
    written = re.findall(r"--json (\S+)", command + keeps)[0]
    result = json.loads((folder / written).read_text())
    assert result["context"]["workload"]["name"] == re.findall(r"--workload (\S+)", command)[0]
    levels = re.findall(r"--concurrency (\S+)", command)
    if levels:
        measured = [f"{step['plan']['concurrency']}" for step in result["steps"]]
        assert measured == levels[0].split(",")[: len(measured)]
        assert measured


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_of_commands(block: str, server: str, folder: Path) -> None:
    if "results/" in block and "for workload" not in block:
        (folder / "results").mkdir(exist_ok=True)
        for name in ("prefix-cold", "prefix-warm"):
            row = next(command for _, command in ROWS if name in command)
            run(re.sub(r"--json \S+", f"--json results/{name}.json", row), server, folder)
    assert len(run(block, server, folder)) >= block.count("kneewatch ")
