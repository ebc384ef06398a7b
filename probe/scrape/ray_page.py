"""vLLM's series on the metrics page of a Ray node, as Ray Serve exports them (`RayPrometheusStatLogger`). Pure.

Ray replaces the colon in vLLM's names and adds labels, `ReplicaId` among them. The page has all replicas of the node;
each is an engine, as a data-parallel one is. Processes report to the page every ten seconds
(`metrics_report_interval_ms`).
"""

import re

_LINE = re.compile(r"^ray_vllm_(\w+)\{(.*)\} ", re.MULTILINE)
_REPLICA = re.compile(r'(?:^|,)ReplicaId="([^"]*)"')
_ENGINE = re.compile(r'(^|,)engine="[^"]*"')
_SIGN = "ray_vllm_"
DELAY_S = 15.0


def is_of_ray(page: str) -> bool:
    """Return whether a page has vLLM's series by Ray's names."""
    return page.startswith(_SIGN) or f"\n{_SIGN}" in page


def as_vllm(page: str) -> str:
    """Return the page with vLLM's own names. With several replicas, `engine` is the replica's id."""
    labels = {found[2] for found in _LINE.finditer(page)}
    replicas = {found[1] for text in labels if (found := _REPLICA.search(text))}
    new = {text: _with_replica(text) if len(replicas) > 1 else text for text in labels}
    return _LINE.sub(lambda found: f"vllm:{found[1]}{{{new[found[2]]}}} ", page)


def _with_replica(labels: str) -> str:
    found = _REPLICA.search(labels)
    if found is None:
        return labels
    engine = f'engine="{found[1]}"'
    return _ENGINE.sub(lambda before: before[1] + engine, labels) if _ENGINE.search(labels) else f"{labels},{engine}"
