"""docs/configuration.md names every key of the configuration, no other, and each with its default.

Its tables have a row a key; a key's full path is the one in the section's heading and the one in the row.
"""

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from for_each import for_each
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import probe.config
from probe.config import web_file
from probe.config.config import Config
from probe.config.objectives import DEFAULT_OBJECTIVES, ObjectivesConfig

TEXT = (Path(__file__).parents[3] / "docs/configuration.md").read_text()
# The steps that a list and a mapping by name add to a path.
STEPS = {tuple: "[]", dict: ".NAME"}


def models(annotation: Any, step: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Return the models that an annotation may hold, each with the path to it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield step, annotation
    step += STEPS.get(get_origin(annotation), "")
    for part in get_args(annotation):
        yield from models(part, step)


def is_plain(annotation: Any) -> bool:
    """Whether something else than one mapping of keys may stand there."""
    parts = [part for part in get_args(annotation) if part is not type(None)]
    return not any(models(annotation)) or any(not any(models(part)) for part in parts)


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo, type[BaseModel]]]:
    """Every key below a model: its path, what is known of it, and whose it is."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        yield path, field, model
        for step, inner in models(field.annotation):
            yield from fields(inner, f"{path}{step}.")


def documented() -> Iterator[tuple[str, str]]:
    """Return every key of a table with the text of its default."""
    for section in TEXT.split("\n## ")[1:]:
        found = re.match(r"`([^`]+)`\n", section)
        prefix = f"{found[1]}." if found else ""
        for row in re.findall(r"^\| (`.*) \|$", section, re.MULTILINE):
            keys, _, default, _ = row.split(" | ")
            for key in re.findall(r"`([^`]+)`", keys):
                yield f"{prefix}{key}", default


def written(field: FieldInfo) -> str:
    """Return the default as the page has it."""
    # A default that depends on another key: what it is without that.
    stated = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    value = stated.get("default", field.default)
    if field.is_required():
        return "required"
    if value is None or (field.default_factory is not None and "default" not in stated):
        return "none"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool | tuple):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


KNOWN = {path: field for path, field, _ in fields(Config)}
DOCUMENTED = dict(documented())


def is_section(value: object) -> bool:
    """Whether a name of a module is a section of the configuration, with keys."""
    return isinstance(value, type) and issubclass(value, BaseModel) and bool(value.model_fields)


def test_every_model_is_reached() -> None:
    files = [
        importlib.import_module(f"probe.config.{file.name}") for file in pkgutil.iter_modules(probe.config.__path__)
    ]
    # web_file.py has the sections of another file, the web configuration.
    known = {m for file in files if file is not web_file for m in vars(file).values() if is_section(m)}
    whole = {m for m in known if not any(issubclass(other, m) and other is not m for other in known)}
    assert len(whole) > 15
    assert whole - {model for _, _, model in fields(Config)} == set()


def test_every_key_is_documented() -> None:
    wanted = {path for path, field in KNOWN.items() if is_plain(field.annotation)}
    assert len(wanted) > 35
    assert wanted - DOCUMENTED.keys() == set()


def test_no_key_is_documented_that_does_not_exist() -> None:
    assert DOCUMENTED.keys() - KNOWN.keys() == set()


def test_no_key_is_documented_twice() -> None:
    paths = [path for path, _ in documented()]
    assert sorted(paths) == sorted(set(paths))


@for_each(sorted(DOCUMENTED.keys() & KNOWN.keys()))
def test_the_default_is_the_real_one(path: str) -> None:
    quoted = re.match(r"`([^`]*)`", DOCUMENTED[path])
    assert (quoted[1] if quoted else DOCUMENTED[path]) == written(KNOWN[path])


def test_the_default_objectives_are_the_real_ones() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert ObjectivesConfig.model_validate(yaml.safe_load(block)["default"]) == DEFAULT_OBJECTIVES
