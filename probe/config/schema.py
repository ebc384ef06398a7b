"""The JSON Schema of the configuration, for editors and for docs/configuration.md (reference.py)."""

import re
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from probe.config.config import Config

_ID = "https://github.com/kneewatch/kneewatch/kneewatch.schema.json"
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


class _Generator(GenerateJsonSchema):
    """Gives a key no title of its own: `title` is the name of a value's type, such as duration."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - pydantic's interface
        return False


def documented_schema() -> dict[str, Any]:
    """Return the schema whose descriptions have the links of docs/."""
    return Config.model_json_schema(schema_generator=_Generator)


def json_schema() -> dict[str, Any]:
    """Return the schema with its dialect and `$id`, and without links."""
    return {"$schema": _Generator.schema_dialect, "$id": _ID, **_without_links(documented_schema())}


def _without_links(part: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(part, dict):
        return {
            key: " ".join(_LINK.sub(r"\1", value).split())
            if key == "description" and isinstance(value, str)
            else _without_links(value)
            for key, value in part.items()
        }
    return [_without_links(item) for item in part] if isinstance(part, list) else part
