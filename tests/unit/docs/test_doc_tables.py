"""Generated tables of the documentation: each is what the code's rows say today."""

import re

import pytest

from benchmarks.doc_tables import ROOT, TABLES, Table, markdown_table, written

_BEGINS = re.compile(r"^ *(?:<!--|#) generated: (.+?)(?: -->)?$", re.MULTILINE)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.page}-{table.name}")
def test_a_page_has_the_table_of_today(table: Table) -> None:
    text = (ROOT / table.page).read_text()
    assert written(text, table) == text, "run `make generate`"


def test_every_place_for_a_table_is_written() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "deploy").rglob("*.yml")]
    places = {(str(page.relative_to(ROOT)), name) for page in pages for name in _BEGINS.findall(page.read_text())}
    assert places == {(table.page, table.name) for table in TABLES}


def test_a_table_replaces_only_what_is_between_its_comments() -> None:
    table = Table("a.md", "reasons", lambda: markdown_table(["word", "why"], [["a|b", "two\nlines"]]))
    text = "before\n\n<!-- generated: reasons -->\n{}<!-- end -->\n\nafter\n"
    rows = "\n| word | why |\n|---|---|\n| a\\|b | two lines |\n\n"
    assert written(text.format("old\n"), table) == text.format(rows)
    with pytest.raises(ValueError, match=r"a\.md: expected once"):
        written("nothing here", table)


def test_what_is_written_into_yaml_has_the_indentation_of_its_place() -> None:
    table = Table("a.yml", "routes", lambda: "- a: 1\n  b: 2\n")
    text = "routes:\n  # generated: routes\n{}  # end\nrest: 1\n"
    assert written(text.format("  - old\n"), table) == text.format("  - a: 1\n    b: 2\n")
