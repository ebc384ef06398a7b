"""What a completion request to vLLM's API consists of: path, headers and body. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from probe import __version__
from probe.core.request import Api, Omittable, RequestSpec
from probe.core.workload import as_text

PATHS = {Api.COMPLETIONS: "/v1/completions", Api.CHAT: "/v1/chat/completions"}
HEADERS = {
    "accept": "*/*",
    "accept-encoding": "identity",  # compression would hold events back to pack them together
    "content-type": "application/json",
    "user-agent": f"kneewatch/{__version__}",
}


# How servers refuse token ids: LiteLLM and others say that a prompt should be a string.
_NO_IDS = re.compile(r"prompt.{0,80}\bstr(ing)?s?\b|\bstr(ing)?s?\b.{0,80}prompt", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class RequestShape:
    """How the requests to a server differ from those to vLLM.

    `extra`: further fields. `omitted`: those that it refuses. `is_text`: it takes no token ids.
    `expects_done`: its streams end with [DONE]; else with a finish reason.
    """

    extra: Mapping[str, Any] = field(default_factory=dict)
    omitted: frozenset[Omittable] = frozenset()
    is_text: bool = False
    expects_done: bool = True

    @property
    def conditions(self) -> dict[str, object]:
        """Return what a capacity depends on, by configuration key; nothing for requests as vLLM takes them."""
        every = {
            "extra_body": dict(self.extra),
            "omit": ", ".join(sorted(self.omitted)),
            "prompt": "text" if self.is_text else "",
        }
        return {key: value for key, value in every.items() if value}

    def hint(self, api: Api, refusal: str) -> str:
        """Return which key would avoid this refusal, as the end of a sentence; "" where none would."""
        named = [name for name in Omittable if name not in self.omitted and re.search(rf"\b{name}\b", refusal)]
        if named:
            return omit_hint(*named)
        has_ids = api is Api.COMPLETIONS and not self.is_text and _NO_IDS.search(refusal)
        return "; set request.prompt: text if the server takes no token ids" if has_ids else ""


PLAIN_REQUESTS = RequestShape()


def omit_hint(*names: Omittable) -> str:
    """Return how to leave out these fields, as the end of a sentence."""
    them = "it" if len(names) == 1 else "them"
    return f"; set request.omit: [{', '.join(names)}] if the server does not know {them}"


def body_of(spec: RequestSpec, model: str, shape: RequestShape) -> dict[str, Any]:
    """Return the body of a request to vLLM's API. `ignore_eos` makes the output length exact, but for an answer whose
    text is judged; the running usage count gives the number of tokens in each event.
    """
    usage = {"include_usage": True, "continuous_usage_stats": True}
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": spec.output_tokens,
        "temperature": 0,
        "ignore_eos": spec.expects is None,
        "stream": True,
        "stream_options": {name: value for name, value in usage.items() if name not in shape.omitted},
    }
    own = {name: value for name, value in body.items() if name not in shape.omitted}
    body = {**own, **shape.extra}  # which may set the temperature, and nothing else of these
    if spec.expects is not None and "temperature" in own:
        body["temperature"] = 0  # the answer is known only without chance
    if spec.api is Api.CHAT:
        return {**body, "messages": [{"role": "user", "content": spec.prompt}]}
    prompt = as_text(spec.prompt) if shape.is_text and not isinstance(spec.prompt, str) else spec.prompt
    return {**body, "prompt": prompt}
