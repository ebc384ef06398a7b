"""The table of docs/reliability.md: every proof in it is a test, and every test in tests/faults has a row."""

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs/reliability.md"
AREAS = (
    "Time", "Starvation", "Memory", "Foreign answers", "Prometheus", "Names", "Disk", "Signals", "Security", "Truth",
    "Sockets", "Network", "Kubernetes", "Configuration", "Load",
)  # fmt: skip
NODE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)(?:\[([^`]+)\])?`")
HEAD = "| ID | fault | what users see | what stays | proof |"


class Row(NamedTuple):
    """One fault of the table."""

    area: str
    cells: list[str]

    @property
    def proofs(self) -> list[tuple[str, str, str]]:
        """Each proof's file, test and parameter; the parameter may be empty."""
        return NODE.findall(self.cells[-1])


def rows(text: str) -> list[Row]:
    """Return the rows under the headings of the areas."""
    area, found = "", []
    for line in text.splitlines():
        if line.startswith("## "):
            area = line.removeprefix("## ")
        elif area in AREAS and line.startswith("|") and line != HEAD and not line.startswith("|---"):
            found.append(Row(area, [cell.strip() for cell in line.strip("|").split(" | ")]))
    return found


@cache
def source(file: str) -> str:
    path = ROOT / file
    return path.read_text() if path.exists() else ""


@cache
def functions_of(file: str) -> list[str]:
    """Return the names of the file's tests."""
    return re.findall(r"^(?:async )?def (test_\w+)\(", source(file), re.MULTILINE)


def problems(row: Row) -> list[str]:
    """Return what is wrong with the row."""
    wrong = [] if len(row.cells) == 5 and all(row.cells) else [f"{row.cells[0]}: five cells, none empty"]
    if not re.fullmatch(r"[A-Z]{1,2}\d+\w*", row.cells[0]):
        wrong.append(f"{row.cells[0]}: an ID is a letter and a number, such as C20")
    if not row.proofs or NODE.sub("", row.cells[-1]).strip(", "):
        wrong.append(f"{row.cells[0]}: a proof is `tests/FILE.py::test_NAME`, and several are separated by commas")
    for file, name, parameter in row.proofs:
        if name not in functions_of(file):
            wrong.append(f"{row.cells[0]}: there is no {file}::{name}")
        elif parameter and not is_parameter(file, name, parameter):
            wrong.append(f"{row.cells[0]}: {file}::{name} has no parameter {parameter}")
    return wrong


def is_parameter(file: str, name: str, parameter: str) -> bool:
    """Report whether the test has parameters and its file has the words of this one."""
    before, _, _ = source(file).partition(f"def {name}(")
    decorators = before.rpartition("\n\n\n")[2]
    return "parametrize" in decorators and all(part in source(file) for part in parameter.split("-"))


def test_each_row_has_an_id_of_its_own_and_proofs_that_exist() -> None:
    table = rows(TABLE.read_text())
    assert [each for row in table for each in problems(row)] == []
    assert [name for name, count in Counter(row.cells[0] for row in table).items() if count > 1] == []


def test_each_test_in_the_folder_of_faults_has_a_row() -> None:
    proven = {(file, name) for row in rows(TABLE.read_text()) for file, name, _ in row.proofs}
    files = (str(path.relative_to(ROOT)) for path in (ROOT / "tests/faults").glob("test_*.py"))
    assert [f"{file}::{name}" for file in files for name in functions_of(file) if (file, name) not in proven] == []


def test_each_area_has_its_section_once_and_in_order() -> None:
    assert [line for line in re.findall(r"^## (.*)$", TABLE.read_text(), re.MULTILINE) if line in AREAS] == [*AREAS]


def test_a_row_with_a_mistake_is_noticed() -> None:
    here = "tests/unit/test_reliability_table.py"
    good = f"`{here}::test_a_row_with_a_mistake_is_noticed`"
    text = "\n".join(
        [
            "## Time",
            f"| A1 | f | s | k | {good} |",
            f"| A2 | f | s | k | `{here}::test_gone` |",
            f"| A3 | f | s | k | {good}, and by hand |",
            f"| A4 | f | s |  | {good} |",
            f"| x | f | s | k | {good} |",
            f"| A5 | f | s | k | {good.replace('noticed', 'noticed[one]')} |",
        ]
    )
    assert [problem.partition(":")[0] for row in rows(text) for problem in problems(row)] == [
        "A2", "A3", "A4", "x", "A5",
    ]  # fmt: skip
