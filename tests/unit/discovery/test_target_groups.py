"""Target groups of file_sd and http_sd: every address they may hold, and what is refused."""

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from probe.core.foreign_json import JsonLimits
from probe.discovery.target_groups import MAX_TARGETS, address, read, read_yaml
from probe.discovery.types import DiscoveredServer

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


def test_groups_become_servers_with_their_labels_but_for_those_of_the_reader() -> None:
    groups = [
        {"targets": ["10.0.0.2:8000", "qwen:8000"], "labels": {"team": "chat", "__meta_zone": "a", "rack": 7}},
        {"targets": ["secure"], "labels": {"__scheme__": "https"}},
        {"targets": ["10.0.0.2:8000"], "labels": {"team": "later"}},
        {"labels": None},
    ]
    found, left_out = read(groups, "http", "/llm")
    assert left_out == []
    assert found == (
        DiscoveredServer("10.0.0.2:8000", "http://10.0.0.2:8000/llm", {"team": "chat", "rack": "7"}),
        DiscoveredServer("qwen:8000", "http://qwen:8000/llm", {"team": "chat", "rack": "7"}),
        DiscoveredServer("secure:443", "https://secure:443/llm"),
    )


def test_an_empty_list_has_no_servers_and_an_empty_document_says_nothing() -> None:
    assert read([], "http", "") == ((), [])
    with pytest.raises(ValueError, match=re.escape("it is empty; write [] for no targets")):
        read(None, "http", "")


@pytest.mark.parametrize(
    ("written", "authority"),
    [
        ("10.0.0.1:8000", "10.0.0.1:8000"),
        ("10.0.0.1", "10.0.0.1:80"),
        ("[fd00::1]:8000", "[fd00::1]:8000"),
        ("[FD00::1]", "[fd00::1]:80"),
        ("Qwen-0.serving.svc:8000", "qwen-0.serving.svc:8000"),
        ("qwen:08000", "qwen:8000"),
        ("qwen:0", None),
        ("qwen:65536", None),
        ("fd00::1", None),
        ("http://qwen:8000", None),
        ("qwen:8000/v1", None),
        ("user@qwen:8000", None),
        ("qwen:", None),
        ("", None),
        ("qwen 8000", None),
        ("qwen:8000\n", None),
        ("q\u0660:8000", None),
        (8000, None),
        (None, None),
    ],
)
def test_an_address_is_host_and_port(written: object, authority: str | None) -> None:
    assert address(written, "http") == authority


@pytest.mark.fault(
    "CO22",
    "Addresses that are none, in a list of targets",
    area="Configuration",
    users_see="left out and named",
    stays="the others are found",
)
def test_an_invalid_address_is_left_out_and_named_and_the_others_are_found() -> None:
    found, left_out = read([{"targets": ["http://qwen:8000", "qwen:8000"]}], "http", "")
    assert [one.id for one in found] == ["qwen:8000"]
    assert left_out == ["group 0: 'http://qwen:8000' is not HOST:PORT"]


def test_of_many_that_are_no_address_ten_are_named_each_in_short_and_the_others_counted() -> None:
    found, left_out = read([{"targets": ["x" * 5000, [["y"] * 1000] * 1000, *range(20), "qwen:8000"]}], "http", "")
    assert [one.id for one in found] == ["qwen:8000"]
    assert left_out[2:] == [*(f"group 0: {i} is not HOST:PORT" for i in range(8)), "12 more are not HOST:PORT"]
    assert all(len(words) < 300 for words in left_out)


def test_as_many_as_may_be_are_found() -> None:
    found, left_out = read([{"targets": [f"a:{i + 1}" for i in range(MAX_TARGETS)]}], "http", "")
    assert (len(found), left_out) == (MAX_TARGETS, [])


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"targets": []}, "expected a list of target groups"),
        ("qwen:8000", "expected a list of target groups"),
        (["qwen:8000"], "group 0: expected a mapping with only targets and labels"),
        ([{"targets": []}, {"target": ["qwen:8000"]}], "group 1: expected a mapping with only targets and labels"),
        ([{"targets": "qwen:8000"}], "expected group 0: targets to be a list"),
        ([{"targets": ["a"], "labels": ["b"]}], "group 0: expected labels to be a mapping"),
        ([{"targets": ["a"], "labels": {"__scheme__": "ftp"}}], "group 0: __scheme__ is 'ftp'; expected http or https"),
        ([{"targets": [f"a:{i + 1}" for i in range(MAX_TARGETS + 1)]}], f"more than {MAX_TARGETS} targets"),
        ([{"targets": ["a:1"] * (MAX_TARGETS + 1)}], f"more than {MAX_TARGETS} targets"),
        ([{"targets": ["a:1"]}, {"targets": [0] * MAX_TARGETS}], f"more than {MAX_TARGETS} targets"),
        ([{"targets": ["a"], "labels": {"team": [["x"] * 9] * 9}}], "group 0: the label 'team' is no text"),
        ([{"targets": ["a"], "labels": {"team": "x" * 2**20}}], "group 0: more than 512 KiB of labels"),
        ([{}] * (MAX_TARGETS + 1), f"more than {MAX_TARGETS} target groups"),
    ],
)
def test_invalid_target_groups_are_refused_with_their_position(groups: object, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        read(groups, "http", "")


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["targets", "labels", "x"]), inner),
)


@pytest.mark.slow
@given(_json)
@pytest.mark.fault(
    "CO21",
    "Any JSON from a registry",
    area="Configuration",
    users_see="found, left out or refused",
    stays="-",
)
def test_whatever_a_registry_says_is_found_left_out_or_refused(document: object) -> None:
    try:
        found, _ = read(document, "http", "")
    except ValueError:
        return
    assert all(one.base_url == f"http://{one.id}" and one.id.isprintable() for one in found)
