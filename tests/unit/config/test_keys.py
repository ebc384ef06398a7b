"""Every key of the configuration: one line for a wrong value, a suggestion for a wrong name, and no secret in either.

Which words a check of its own has is in tests/golden/config/refused.yaml.
"""

import re
from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from probe.config.canaries import MAX_CANARIES, MAX_KINDS
from probe.config.config_file import config_from
from probe.config.headers import MAX_HEADERS
from probe.config.reference import Key, keys
from probe.config.schema import arms
from probe.config.types import MAX_SOCKET_PATH
from probe.core.errors import ConfigError

SECRET = "sk-not-to-be-shown"
KEYS = {key.path: key for key in keys()}
# A value of each type that required keys have, for the sections of other keys.
VALID = {
    "DNS name": "vllm.example", "address": "http://a", "address of a Ray cluster": "auto", "duration": "1s",
    "label selector": "a=b", "list of paths": ["/a.yml"], "name": "a", "number above 0, at most 100": 1,
    "number above 0, at most 3": 1, "port number or name": 80, "ratio": 0.5, "text": "a", "tokens": 5,
}  # fmt: skip


def paths(*, sections: bool) -> list[str]:
    return [path for path, key in KEYS.items() if sections or key.type != "section"]


def siblings(path: str) -> dict[str, Any]:
    """Return the keys that the section of a key requires, with a valid value each."""
    section = f"{path.rpartition('.')[0]}."
    required = {
        key.path.removeprefix(section): VALID.get(key.type) or whole(key.path)
        for key in KEYS.values()
        if key.is_required and key.path.startswith(section) and "." not in key.path.removeprefix(section)
    }
    return required | ({"base_url": "http://a"} if section == "targets[]." else {})


def whole(path: str) -> dict[str, Any]:
    """Return a section with the keys that it requires."""
    return siblings(f"{path}.")


def file_with(path: str, name: str, value: object) -> dict[str, Any]:
    """Return the smallest configuration that has the value, in the section of the key but under this name."""
    *outer, _ = path.split(".")
    tree: object = {**siblings(path), name: value}
    while outer:
        *outer, step = outer
        key, *lists = re.findall(r"[^\[\]]+|\[\]", step)
        for _ in lists:
            tree = [tree]
        above = ".".join([*outer, key])
        tree = {"a": tree} if key == "NAME" else {**siblings(above), key: tree}
    assert isinstance(tree, dict)
    raw: dict[str, Any] = {"targets": [{"name": "a", "base_url": "http://a"}], **tree}
    for target in raw["targets"] if isinstance(raw["targets"], list) else ():
        if "discover" in target:
            del target["base_url"]
    return raw


def written(path: str) -> str:
    return path.replace("[]", "[0]").replace("NAME", "a")


def problem(path: str, name: str, value: object) -> str:
    """Return the only line about a value, without the key in front of it."""
    with pytest.raises(ConfigError) as refused:
        config_from(file_with(path, name, value), "FILE")
    (line,) = str(refused.value).split("\n")
    at = written(f"{path.rpartition('.')[0]}.{name}".removeprefix("."))
    assert line.startswith(f"FILE: {at}"), line
    assert SECRET not in line
    return line.removeprefix(f"FILE: {at}")


def accepts(key: Key, value: object) -> bool:
    return bool(jsonschema.Draft202012Validator(key.part).is_valid(value))


def out_of_limits(part: dict[str, Any]) -> Iterator[object]:
    """Yield a value just beyond each limit of a key, and a text that no check of a text takes."""
    for arm in arms(part):
        low, high = arm.get("minimum", 0.0) - 1, arm.get("maximum", 0.0) + 1
        beyond = {"minimum": low, "maximum": high, "exclusiveMinimum": arm.get("exclusiveMinimum"),
                  "exclusiveMaximum": arm.get("exclusiveMaximum"), "minItems": [], "minLength": "", "pattern": "(",
                  "maxLength": "x" * (arm.get("maxLength", 0) + 1)}  # fmt: skip
        yield from (value for limit, value in beyond.items() if limit in arm)
        if "enum" in arm or (arm.get("type") == "string" and "title" in arm):
            yield "("


@pytest.mark.parametrize("path", paths(sections=True))
def test_a_value_of_a_wrong_type_is_one_line_that_says_what_was_expected(path: str) -> None:
    for wrong in ([[SECRET]], {"zzz": [SECRET]}, "(", 0.5, True):
        if not accepts(KEYS[path], wrong) and not (isinstance(wrong, dict) and "properties" in str(KEYS[path].part)):
            line = problem(path, path.rpartition(".")[2], wrong)
            assert re.fullmatch(r"(\[0\]|\.\w+)*: expected .+, got (\S.*)", line), line


@pytest.mark.parametrize("path", paths(sections=False))
def test_a_value_out_of_its_limits_is_one_line_that_says_them(path: str) -> None:
    for value in out_of_limits(KEYS[path].part):
        line = problem(path, path.rpartition(".")[2], value)
        assert re.fullmatch(r"(\[0\])?: expected (at least one entry|.+, got .+)", line), line


@pytest.mark.parametrize("path", paths(sections=True))
def test_a_key_that_is_misspelt_is_told_its_name(path: str) -> None:
    name = path.rpartition(".")[2]
    line = problem(path, f"{name}x", SECRET)
    assert line.startswith(f": unknown key (did you mean {name!r}?); expected one of "), line
    assert name in line.partition("expected one of ")[2].split(", ")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("targets[].headers", f"At most {MAX_HEADERS},"),
        ("otlp.headers", f"at most {MAX_HEADERS},"),
        ("targets[].canaries", f"at most {MAX_KINDS},"),
        ("targets[].canary.timeout", f"At most {MAX_CANARIES} times `every`"),
        ("targets[].connection.unix_socket", f"at most {MAX_SOCKET_PATH} bytes"),
    ],
)
def test_a_limit_in_a_text_is_the_real_one(path: str, words: str) -> None:
    assert words in KEYS[path].part["description"]
