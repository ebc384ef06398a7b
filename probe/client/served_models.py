"""The answer of /v1/models: names, roots and context lengths of the served models. Pure."""

from dataclasses import dataclass

from probe.core.foreign_json import JsonLimits, read_json

# A server with a thousand adapters lists them in half a megabyte.
MODELS = JsonLimits(max_bytes=2**20, max_values=60_000)
_MAX_NAME = 256
_MAX_LENGTH = 10**9


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as the server lists it. `max_model_len`: the most tokens of a prompt and its answer; None: not listed."""

    root: object
    max_model_len: int | None


def served_models(body: bytes) -> dict[object, ServedModel]:
    """Return the models by name, in the server's order. Raises ValueError, KeyError or TypeError for another answer."""
    listed = read_json(body, MODELS)["data"]
    return {model["id"]: ServedModel(model.get("root"), _length(model.get("max_model_len"))) for model in listed}


def is_name(name: object) -> bool:
    """Return whether a served model's name can be used as a label, in a line of text and in a request."""
    return isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable()


def _length(value: object) -> int | None:
    return value if type(value) is int and 0 < value <= _MAX_LENGTH else None
