"""The schema describes every key, and the tables of docs/configuration.md are those of the schema."""

import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

import probe.config
from probe.config import web_file
from probe.config.objectives import DEFAULT_OBJECTIVES, ObjectivesConfig
from probe.config.reference import json_schema, keys, page
from probe.config.workloads import PRESETS

TEXT = (Path(__file__).parents[3] / "docs/configuration.md").read_text()
KEYS = {key.path: key for key in keys()}


def is_section(value: object) -> bool:
    """Return whether a name of a module is a section of the configuration, with keys."""
    return isinstance(value, type) and issubclass(value, BaseModel) and bool(value.model_fields)


def test_every_section_is_in_the_schema() -> None:
    files = [
        importlib.import_module(f"probe.config.{file.name}") for file in pkgutil.iter_modules(probe.config.__path__)
    ]
    # web_file.py has the sections of another file, the web configuration.
    known = {m for file in files if file is not web_file for m in vars(file).values() if is_section(m)}
    whole = {m.__name__ for m in known if not any(issubclass(other, m) and other is not m for other in known)}
    assert len(whole) > 15
    assert whole - json_schema()["$defs"].keys() == {"Config"}


def test_every_key_is_described_by_sentences() -> None:
    schema = json_schema()
    parts: dict[str, dict[str, Any]] = {
        f"{name}.{key}": part
        for name, model in (("", schema), *schema["$defs"].items())
        for key, part in model.get("properties", {}).items()
    }
    assert len(parts) > 100
    # A section whose key has nothing to add to it is described by its own text.
    own = {f"#/$defs/{name}": model.get("description", "") for name, model in schema["$defs"].items()}
    texts = {path: part.get("description") or own.get(part.get("$ref", ""), "") for path, part in parts.items()}
    assert [path for path, text in texts.items() if not re.fullmatch(r"\S.*[.]", text)] == []


def test_the_schema_names_itself_and_is_valid_without_a_network() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"].startswith("https://github.com/kneewatch/")


def test_descriptions_in_the_schema_have_no_links() -> None:
    assert "](" not in str(json_schema())
    assert "(discovery.md)" in json_schema()["properties"]["lease"]["description"]


def test_the_page_is_up_to_date() -> None:
    assert page(TEXT) == TEXT, "docs/configuration.md: run make generate"


def test_every_key_has_one_row() -> None:
    rows = re.findall(r"^\| `", TEXT, re.MULTILINE)
    assert len(rows) == len(KEYS)


@pytest.mark.parametrize(
    ("path", "type_", "default"),
    [
        ("listen", "HOST:PORT", "`127.0.0.1:9876`"),
        ("store", "section", ""),
        ("prometheus", "section", "none"),
        ("prometheus.url", "address", "required"),
        ("objectives.NAME.availability", "ratio", "`0.999`"),
        ("workloads.NAME.prompt_tokens", "tokens or section", "`256`"),
        ("workloads.NAME.prompt_tokens.lognormal.sigma", "number above 0, at most 3", "required"),
        ("targets[].base_url", "address", "none"),
        ("targets[].name", "name", "required"),
        ("targets[].headers.NAME.secret", "secret", "none"),
        ("targets[].tls.verify", "`true` or `false`", "`true`"),
        ("targets[].gpu.dcgm_urls", "list of addresses", "`[]`"),
        ("targets[].capacity.mode", "`off`, `forecast` or `verify`", "`forecast`"),
        ("targets[].capacity.concurrency", "list of whole numbers from 1 to 1024", "none"),
        ("targets[].capacity.budget.tokens_per_run", "whole number of at least 1", "`5000000`"),
        ("targets[].discover.path", "URL path", '`""`'),
    ],
)
def test_a_key_has_its_type_and_default(path: str, type_: str, default: str) -> None:
    assert (KEYS[path].type, KEYS[path].default) == (type_, default)


def test_a_heading_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^## `targets\[\]`: no table below it$"):
        page("## Top level\n\n| key |\n|---|\n\n## `targets[]`\n\nNo table.\n")


def test_the_default_objectives_are_the_real_ones() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert ObjectivesConfig.model_validate(yaml.safe_load(block)["default"]) == DEFAULT_OBJECTIVES


def test_a_preset_is_in_the_docs_and_in_the_help_of_ramp() -> None:
    root = Path(__file__).parents[3]
    page, help_texts = (
        (root / "docs/workloads.md").read_text(),
        "".join(f.read_text() for f in root.glob("probe/cli/*.py")),
    )
    for name in set(PRESETS) - {"default"}:
        assert f"| `{name}` |" in page, name
        assert name in help_texts, name
