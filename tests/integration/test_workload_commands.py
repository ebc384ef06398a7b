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
    ramp*prefix-*--no-guard*) more="--step-seconds 12 --confirm-seconds 0" ;;
    ramp*--concurrency*|ramp*--rates*) more="$short --confirm-seconds 0" ;;
    ramp*) more="--max-seconds 20" ;;
    matrix*) more="--rows A --max-seconds 20" ;;
    *) more="" ;;
  esac
  status=0
  command kneewatch "$@" $more || status=$?
  echo "[$status] kneewatch $*" >> statuses
  [ $status -le 1 ]
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
    keeps = "" if " -o " in command else " -o row.json"
    assert run(command + keeps, server, folder), row
    (written,) = re.findall(r" -o (\S+)", command + keeps)
    result = json.loads((folder / written).read_text())
    assert result["context"]["workload"]["name"] == re.findall(r"--workload (\S+)", command)[0]
    levels = re.findall(r"--concurrency (\S+)", command)
    if levels:
        measured = [f"{step['plan']['concurrency']}" for step in result["steps"]]
        assert measured == levels[0].split(",")[: len(measured)]
        assert measured


@pytest.mark.parametrize("block", [block for block in BLOCKS if "compare" not in block])
def test_a_block_of_commands(block: str, server: str, folder: Path) -> None:
    assert len(run(block, server, folder)) >= block.count("kneewatch ")


def test_the_pair_of_a_cold_and_a_warm_prefix_is_compared(tmp_path: Path) -> None:
    """Of this mock server the prefix cache is what differs; each side has enough answers at the same rate."""
    pair = [command for _, command in ROWS if "--workload prefix-" in command]
    (block,) = [block for block in BLOCKS if "compare" in block]
    (tmp_path / "results").mkdir()
    with Sim(tmp_path / "sim", "prefix") as sim:
        for command in pair:
            kept = re.sub(r" -o (\w+).json", r" -o results/prefix-\1.json --no-guard --ttft 60s --tpot 60s", command)
            assert run(kept, sim.base_url, tmp_path)
        assert run(f"{block.strip()} > compared.txt", sim.base_url, tmp_path)[0].startswith("[0]")
    medians = [line.split() for line in (tmp_path / "compared.txt").read_text().splitlines() if "TTFT p50" in line]
    assert [line[-1] for line in medians] == ["better"]
