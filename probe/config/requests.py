"""The `request` section of a target: how its requests differ from those to vLLM."""

import json
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue

from probe.config.types import ConfigSection, NotASwitch
from probe.core.foreign_json import ForeignJsonError, JsonLimits, check_json
from probe.core.request import Omittable
from probe.core.text import one_line

# Keys of a request's body that Kneewatch sets itself.
_OWN = (
    *(
        "documents",
        "ignore_eos",
        "input",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "messages",
        "model",
    ),
    *("prompt", "query", "stream", "stream_options", "text_1", "text_2"),
)
# Names of texts that are credentials; not eos_token or cache_key.
_SECRET = re.compile(
    r"passw(or)?d|passphrase|secret|credential|authorization|cookie|bearer|(api|access|private|auth|license)[_-]?key"
    r"|(^|[_-])(access|api|auth|hf|refresh|session)[_-]?token|^(token|key)$",
    re.IGNORECASE,
)
_LIMITS = JsonLimits(max_bytes=8 * 1024, max_values=500, max_depth=8)


class PromptForm(StrEnum):
    """How prompts of the completions API are sent."""

    TOKEN_IDS = "token_ids"  # noqa: S105 - no password
    TEXT = "text"


class ChatLimit(StrEnum):
    """The field of chat for the most tokens of an answer."""

    MAX_TOKENS = "max_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"


def _extra_body(body: dict[str, Any]) -> dict[str, Any]:
    if own := sorted(body.keys() & set(_OWN)):
        raise ValueError(f"expected no field that Kneewatch sets itself; remove {', '.join(own)}")
    try:
        check_json(json.dumps(body, allow_nan=False).encode(), _LIMITS)
    except ForeignJsonError as error:
        raise ValueError(f"expected a smaller JSON object; it {error}") from None
    except ValueError:
        raise ValueError("expected JSON, which has no infinite numbers") from None
    if secret := next(_secrets(body), None):
        raise ValueError(f"expected no secret, but {secret} looks like one; send it in headers as {{file: PATH}}")
    return body


def _secrets(value: object, name: str = "") -> Iterator[str]:
    """Yield the names of texts that seem to be secrets, at any depth: bodies are shown on pages and in results."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _secrets(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from _secrets(each, name)
    elif isinstance(value, str) and _SECRET.search(name):
        yield one_line(name)


class RequestConfig(ConfigSection):
    """What servers want that do not take all of vLLM's API."""

    extra_body: Annotated[dict[str, JsonValue], AfterValidator(_extra_body)] = Field(default_factory=dict)
    """Fields that are added to the body of each request, such as `chat_template_kwargs`, `temperature` (default 0) or
    `response_format`. They are shown, so a name like a secret's is refused: send it in `headers`. At most 8 KiB
    as JSON, 8 levels deep; no other field that Kneewatch sets itself.
    """
    omit: tuple[Omittable, ...] = ()
    """Fields to leave out, for servers that refuse them ([engines.md](engines.md#servers-that-do-not-take-all-fields)).
    """
    prompt: PromptForm = PromptForm.TOKEN_IDS
    """`text` sends words instead of token ids in completions and embeddings, for servers that take no ids, such as
    LiteLLM's `hosted_vllm/`; lengths are then approximate.
    """
    expect_done: bool = True
    """`false` accepts streams that end with a finish reason instead of `[DONE]`, or of the last event of their API."""
    chat_limit: ChatLimit = ChatLimit.MAX_TOKENS
    """The field that limits an answer of `api: chat`; newer OpenAI models and Azure refuse `max_tokens`."""
    vector_length: Annotated[int, Field(ge=1, le=65_536), NotASwitch] | None = None
    """Length of the vectors of `api: embeddings`; one of another length makes a canary `corrupt`. Default: any."""
