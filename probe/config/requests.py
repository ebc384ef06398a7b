"""The `request` section of a target: how its requests differ from those to vLLM."""

import json
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue

from probe.config.types import ConfigSection
from probe.core.foreign_json import ForeignJsonError, JsonLimits, check_json
from probe.core.request import Omittable

# Keys of a request's body that Kneewatch sets itself.
_OWN = ("ignore_eos", "max_tokens", "messages", "model", "prompt", "stream", "stream_options", "temperature")
_LIMITS = JsonLimits(max_bytes=8 * 1024, max_values=500, max_depth=8)


class PromptForm(StrEnum):
    """How prompts of the completions API are sent."""

    TOKEN_IDS = "token_ids"  # noqa: S105 - no password
    TEXT = "text"


def _extra_body(body: dict[str, Any]) -> dict[str, Any]:
    if own := sorted(body.keys() & set(_OWN)):
        raise ValueError(f"expected no field that Kneewatch sets itself; remove {', '.join(own)}")
    try:
        check_json(json.dumps(body, allow_nan=False).encode(), _LIMITS)
    except ForeignJsonError as error:
        raise ValueError(f"expected a smaller JSON object; it {error}") from None
    except ValueError:
        raise ValueError("expected JSON, which has no infinite numbers") from None
    return body


class RequestConfig(ConfigSection):
    """What servers want that do not take all of vLLM's API."""

    extra_body: Annotated[dict[str, JsonValue], AfterValidator(_extra_body)] = Field(default_factory=dict)
    """Fields that are added to the body of each request, such as `chat_template_kwargs`; not for secrets. At most 8 KiB
    as JSON, 8 levels deep; no field that Kneewatch sets itself.
    """
    omit: tuple[Omittable, ...] = ()
    """Fields to leave out, for servers that refuse them ([engines.md](engines.md#servers-that-do-not-take-all-fields)).
    """
    prompt: PromptForm = PromptForm.TOKEN_IDS
    """`text` sends words instead of token ids in completions, for servers that take no ids, such as LiteLLM's
    `hosted_vllm/`; lengths are then approximate.
    """
    expect_done: bool = True
    """`false` accepts streams that end with a finish reason instead of `[DONE]`."""
