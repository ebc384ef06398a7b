"""DCGM's series in a Prometheus: the queries for the GPUs of one server, and the answers. Pure.

A Prometheus keeps dcgm-exporter's labels of the pod as they are (`honor_labels`), or as `exported_pod`, beside the
exporter's own as `pod`. What is not certainly the server's is refused: GPUs of several places, or of another node.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.samples import Sample

from probe.core.snapshot import Gpu
from probe.core.text import one_line
from probe.gpu.dcgm import USERS, choose, devices_of, relayed

AGE = "age"  # the label of the row that says when the series were scraped
_OF = "of"
_ALL = '__name__=~"DCGM_FI_(DEV|PROF)_.+"'
# Two of dcgm-exporter's defaults by their older and newer names: each has one series for each GPU.
_ALWAYS = (
    "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED_BYTES",
)  # fmt: skip
_HOSTNAME = ("Hostname", "hostname")
# All GPUs of a server are on one exporter's page. Another cluster may have a node of the same name.
_PLACE = ("cluster", "instance", *_HOSTNAME)
# Labels of Kneewatch's own series that say where it runs itself: DCGM's series have others.
_NOT_SHARED = frozenset({"namespace", "pod", "container", "job", "instance", "service", "endpoint", "target"})

Row = Mapping[str, Any]  # of Prometheus' answer: metric and value


@dataclass(frozen=True, slots=True)
class GpuOwner:
    """Whose GPUs are asked for: those with all of `labels`, or, if these name no pod, host or GPU, of `host`.

    `node`: the node that they must be on; None: not known. `places`: labels that all series of this Prometheus' cluster
    have, from `prometheus.labels`.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    host: str = ""
    node: str | None = None
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_pod(self) -> bool:
        return any(name in self.labels for name in USERS)

    @property
    def is_host(self) -> bool:
        return not self.is_pod and not {"UUID", "Hostname"} & self.labels.keys()

    @property
    def words(self) -> str:
        its = dict(self.labels) | ({"host": self.host} if self.is_host else {})
        return ", ".join(f"{name}={value}" for name, value in its.items())


def owner(labels: Mapping[str, str], base_url: str, node: str | None, places: Mapping[str, str]) -> GpuOwner:
    """Return whose GPUs to ask for. `places`: `prometheus.labels`."""
    shared = {name: value for name, value in places.items() if name not in _NOT_SHARED}
    return GpuOwner(labels, urlsplit(base_url).hostname or "", node, shared)


def pods_gpus(of: GpuOwner) -> str | None:
    """Return a query for the UUIDs of a pod's GPUs; None if it is not about a pod."""
    return f"group by (UUID) ({' or '.join(_selected('', one) for one in _matchers(of))})" if of.is_pod else None


def series(of: GpuOwner, uuids: Iterable[str] = ()) -> str:
    """Return a query for all series of the GPUs with these UUIDs, or else of the owner; and their age.

    By UUID, because of a shared GPU the exporter writes the values of the whole without a pod.
    """
    found = sorted(filter(None, uuids))
    matchers = [[_matcher("UUID", "=~", "|".join(map(re.escape, found))), *_places(of)]] if found else _matchers(of)
    times = (f"timestamp({_selected(name, one)})" for name in _ALWAYS for one in matchers)
    age = f'label_replace(time() - max({" or ".join(times)}), "{_OF}", "{AGE}", "", "")'
    return " or ".join([*(_selected("", one) for one in matchers), age])


def gpus(answer: Sequence[Row], of: GpuOwner) -> tuple[tuple[Gpu, ...], float]:
    """Return the GPUs, and how old their values are in seconds. Raise ValueError, which says why there are none."""
    rows = [row for row in answer if row["metric"].get(_OF) != AGE]
    age_s = max((float(row["value"][1]) for row in answer if row["metric"].get(_OF) == AGE), default=0.0)
    found = devices_of(relayed(Sample(_text(row, "__name__"), _labels(row), float(row["value"][1])) for row in rows))
    chosen = choose(found, of.labels)
    if not chosen:
        raise ValueError(f"no series of DCGM with {one_line(of.words)}")
    if of.is_host and (pods := sorted({f"{user[1]}/{user[0]}" for one in found for user in one.users if user[0]})):
        raise ValueError(
            f"the GPUs of {of.host} are used by pods ({one_line(', '.join(pods[:3]))}); set gpu.labels to this server's"
        )
    _check_place(rows, {gpu.labels.get("UUID", "") for gpu in chosen}, of)
    return chosen, max(age_s, 0.0)


def _check_place(rows: Sequence[Row], uuids: set[str], of: GpuOwner) -> None:
    """Raise ValueError unless one exporter has all of the GPUs, and is on the owner's node."""
    places: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for row in rows:
        if (uuid := _text(row, "UUID")) in uuids:
            places[uuid].add(tuple(_text(row, name) for name in _PLACE))
    every = set().union(*places.values())
    # Two that scrape one exporter, such as a pair of Prometheus, see the same GPUs.
    if not set.intersection(*places.values()) or ("" in uuids and len(every) > 1):
        differ = (
            f"{name}: {', '.join(sorted(values))}"
            for name, values in zip(_PLACE, map(set, zip(*every, strict=True)), strict=True)
            if len(values) > 1
        )
        raise ValueError(f"several exporters have GPUs with {of.words} ({one_line('; '.join(differ))}); {_NARROW}")
    if of.node is None or of.places:
        return
    named = {name for row in rows if (name := _text(row, "Hostname") or _text(row, "hostname"))}
    # Without NODE_NAME an exporter's Hostname is its pod's name, which says nothing.
    if named and not any(_is_node(name, of.node) or _is_of_daemon_set(name) for name in named):
        raise ValueError(
            f"the GPUs with {of.words} are on {one_line(', '.join(sorted(named)))}, and the pod is on {of.node}: it may"
            f" be a pod of another cluster; {_NARROW}"
        )


_NARROW = "set prometheus.labels to those of this cluster"


def _is_node(name: str, node: str) -> bool:
    return name.lower() == node.lower() or name.partition(".")[0].lower() == node.partition(".")[0].lower()


def _is_of_daemon_set(name: str) -> bool:
    return re.fullmatch(r".*dcgm.*-[a-z0-9]{5}", name) is not None


def _matchers(of: GpuOwner) -> list[list[str]]:
    """Return the alternatives of label matchers for the owner's series."""
    places = _places(of)
    if of.is_pod:
        named = {name: value for name, value in of.labels.items() if name in USERS}
        exported = [_matcher(f"exported_{name}", "=", value) for name, value in named.items()]
        first = [_matcher(USERS[name][1], "=", value) for name, value in named.items()]
        own = [_matcher("exported_pod", "=", ""), *(_matcher(name, "=", value) for name, value in named.items())]
        return [[*one, *places] for one in (exported, own, first)]
    if "UUID" in of.labels:
        return [[_matcher("UUID", "=", of.labels["UUID"]), *places]]
    hosts = [[_matcher(name, "=", of.labels.get("Hostname", of.host)), *places] for name in _HOSTNAME]
    if "Hostname" in of.labels:
        return hosts
    host = f"[{of.host}]" if ":" in of.host else of.host
    return [[_matcher("instance", "=~", f"{re.escape(host)}(:[0-9]+)?"), *places], *hosts]


def _places(of: GpuOwner) -> list[str]:
    return [_matcher(name, "=", value) for name, value in of.places.items()]


def _matcher(name: str, operator: str, value: str) -> str:
    return f"{name}{operator}{json.dumps(value, ensure_ascii=False)}"


def _selected(name: str, matchers: Sequence[str]) -> str:
    return f"{name}{{{', '.join([*([] if name else [_ALL]), *matchers])}}}"


def _labels(row: Row) -> dict[str, str]:
    return {str(name): str(value) for name, value in row["metric"].items()}


def _text(row: Row, name: str) -> str:
    return str(row["metric"].get(name, ""))
