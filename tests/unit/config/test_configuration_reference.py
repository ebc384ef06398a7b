"""docs/configuration.md names every key of the configuration, no other, and each with its default.

Its tables have a row a key; a key's full path is the one in the section's heading and the one in the row.
"""

import json
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from for_each import for_each
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from probe.config import models as config
from probe.config.models import DEFAULT_OBJECTIVES, Config, ObjectivesConfig

TEXT = (Path(__file__).parents[3] / "docs/configuration.md").read_text()
# The steps that a list and a mapping by name add to a path.
STEPS = {tuple: "[]", dict: ".NAME"}


def models(annotation: Any, step: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """The models an annotation may hold, each with what leads to it."""
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
    """Every key of a table, with the text of its default."""
    for section in TEXT.split("\n## ")[1:]:
        found = re.match(r"`([^`]+)`\n", section)
        prefix = f"{found[1]}." if found else ""
        for row in re.findall(r"^\| (`.*) \|$", section, re.MULTILINE):
            keys, _, default, _ = row.split(" | ")
            for key in re.findall(r"`([^`]+)`", keys):
                yield f"{prefix}{key}", default


def written(field: FieldInfo) -> str:
    """The default as the page has it."""
    value = field.default
    if field.is_required():
        return "required"
    if value is None or field.default_factory is not None:
        return "none"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool | tuple):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


KNOWN = {path: field for path, field, _ in fields(Config)}
DOCUMENTED = dict(documented())


def test_every_model_is_reached() -> None:
    ours = {m for m in vars(config).values() if isinstance(m, type) and issubclass(m, BaseModel) and m.model_fields}
    whole = {m for m in ours if not any(issubclass(other, m) and other is not m for other in ours)}
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
