"""YAML of file_sd: what would unfold is refused before it is composed, and all else is read as yaml reads it."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from probe.core.foreign_json import JsonLimits
from probe.discovery.documents import read_yaml

TIGHT = JsonLimits(max_bytes=2**20, max_values=50, max_depth=5)
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "it holds more than 50 values"),
        (MERGES, "it holds more than 50 values"),
        ("- x\n" * 51, "it holds more than 50 values"),
        ("[" * 6 + "]" * 6, "it is nested deeper than 5"),
        ("[" * 100_000, "it is nested deeper than 5"),
        ("1" + ":1" * 10_000, "it holds a text of more than 16 KiB"),
        ("x" * 2**20 + "x", "it is larger than 1 MiB"),
        ("!!timestamp x", "a value in it cannot be read (AttributeError)"),
    ],
)
@pytest.mark.fault("E12")
def test_what_is_over_a_limit_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"^(it|a value) ") as refused:
        read_yaml(text.encode(), TIGHT)

    assert str(refused.value) == words


def test_an_alias_stands_for_what_it_names() -> None:
    text = (
        b"- {targets: [a], labels: &l {team: chat}}\n- {targets: [b], labels: *l}\n- {targets: [c], labels: {<<: *l}}"
    )

    assert read_yaml(text, TIGHT) == [{"targets": [name], "labels": {"team": "chat"}} for name in "abc"]


@given(
    st.recursive(st.integers() | st.text("ab:", max_size=3), lambda inner: st.lists(inner, max_size=4), max_leaves=9)
)
def test_a_small_document_is_read_as_yaml_reads_it(value: object) -> None:
    assert read_yaml(yaml.safe_dump(value).encode(), JsonLimits(2**20, 1000)) == value
