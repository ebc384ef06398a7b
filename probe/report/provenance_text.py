"""A result's origin and facts about its server, as text."""

from probe.core.provenance import EXPECTED
from probe.core.result import CapacityResult

_TITLES = {"cuda": "CUDA", "gpu": "GPU"}


def provenance_lines(result: CapacityResult) -> list[tuple[str, str]]:
    """Return label and text of each line; none for a result that does not say what made it."""
    made = result.provenance
    if made is None:
        return []
    first = [name for name in EXPECTED if name in made.facts]
    names = [*first, *(name for name in made.facts if name not in first)]
    facts = ", ".join(f"{_title(name)} {made.facts[name]}" for name in names)
    client = f" on {made.client}" if made.client else ""
    seed = f", seed {made.seed}" if made.seed is not None else ""
    command = f": {made.command}" if made.command else ""
    missing = ", ".join(map(_title, result.missing_facts))
    keep = "--note NAME=VALUE or capacity.server.facts keeps them with a result"
    lines = [
        ("Facts", facts),
        ("Made by", f"kneewatch {made.kneewatch or 'of unknown version'}{client}{seed}{command}"),
        ("Not known", f"{missing}; {keep}" if missing else ""),
    ]
    return [(label, words) for label, words in lines if words]


def _title(name: str) -> str:
    return _TITLES.get(name, name)
