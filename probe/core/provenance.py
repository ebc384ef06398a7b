"""Where a result comes from: what made it, and the facts about the server that a capacity does not depend on by itself.

No part of a fingerprint: another driver or image is named with a result, and does not begin a new baseline.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from probe.core.mig import computing, model_of
from probe.core.snapshot import GpuSnapshot, ServerSnapshot

# What a reader of an old result asks for, and where Kneewatch looks besides the facts: GPU and flags of the context.
EXPECTED = (
    "image", "commit", "node", "gpu", "driver", "cuda", "dtype", "tensor_parallel_size", "max_model_len",
)  # fmt: skip
MAX_FACTS, MAX_NAME, MAX_VALUE = 32, 64, 300
_NAME = re.compile(rf"[a-z][a-z0-9_]{{0,{MAX_NAME - 1}}}")
_COMMIT = re.compile(r"\+(?:.*\.)?g([0-9a-f]{7,40})\b")  # of a version between releases (setuptools-scm)


@dataclass(frozen=True, slots=True)
class Provenance:
    """What made a result. None: not known. `facts`: about the server, by name, such as image, driver or cuda.

    `command`: the command line without secrets. `client`: the host that sent the load.
    """

    kneewatch: str | None = None
    command: str | None = None
    seed: int | None = None
    client: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


def is_fact_name(name: str) -> bool:
    """Return whether a fact may have this name: lower-case letters, digits and underscores."""
    return _NAME.fullmatch(name) is not None


def version_facts(version: str | None) -> dict[str, str]:
    """Return the commit that a server's version names, such as 4f1c2ab8 in 0.32.1.dev7+g4f1c2ab8."""
    found = _COMMIT.search(version or "")
    return {"commit": found[1]} if found else {}


def kv_facts(server: ServerSnapshot | None) -> dict[str, str]:
    """Return the size of a server's KV cache over all engines, in tokens, as its page showed it."""
    tokens = server.kv_cache_tokens if server is not None else None
    return {} if tokens is None else {"kv_cache_tokens": f"{tokens:.0f}"}


def facts_problem(facts: Mapping[str, str]) -> str | None:
    """Return why these cannot be facts of a result, or None."""
    if len(facts) > MAX_FACTS:
        return f"expected at most {MAX_FACTS} facts"
    if not all(is_fact_name(one) and 0 < len(it) <= MAX_VALUE and it.isprintable() for one, it in facts.items()):
        return f"expected names such as image or commit, in lower case, and at most {MAX_VALUE} printable characters"
    return None


def gpu_facts(snapshot: GpuSnapshot | None) -> dict[str, str]:
    """Return the facts from a server's GPUs: their models, host, driver and CUDA."""
    if snapshot is None:
        return {}
    boards = snapshot.gpus
    models = [model for gpu in computing(boards) if (model := model_of(gpu.labels))]
    found = {
        "gpu": ", ".join(f"{models.count(one)}x {one}" for one in dict.fromkeys(models)),
        "node": _joined(gpu.labels.get("Hostname") for gpu in boards),
        "driver": _joined(gpu.versions.get("driver") for gpu in boards),
        "cuda": _joined(gpu.versions.get("cuda") for gpu in boards),
    }
    return {name: value[:MAX_VALUE] for name, value in found.items() if value}


def with_gpus(made: Provenance | None, snapshot: GpuSnapshot | None) -> Provenance | None:
    """Return the provenance with what the GPUs tell; what was stated counts more."""
    return made and replace(made, facts={**gpu_facts(snapshot), **made.facts})


def cuda_words(number: str) -> str:
    """Return CUDA's version from the number that drivers report: 12.8 for 12080. Another text stays as it is."""
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}" if number.isdecimal() and len(number) < 7 else number  # noqa: PLR2004


def _joined(values: Iterable[str | None]) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value))
