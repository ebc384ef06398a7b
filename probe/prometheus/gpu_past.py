"""The GPUs of servers over hours, by dcgm-exporter's series in a Prometheus, by any of their names."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from probe.gpu.dcgm import USERS, names_of
from probe.observe.server_past import GpuPast, ServerPast
from probe.prometheus.loop_adapter import AnswerLimits
from probe.prometheus.queries import Prometheus

_BY = (
    "cluster", "node", "instance", "Hostname", "hostname", "UUID", "gpu", "GPU_I_ID",
    *USERS["pod"], *USERS["namespace"],
)  # fmt: skip
# By the fields of GpuPast: DCGM's fields, a function over the time, and the factor to a share.
_ROWS: Mapping[str, tuple[tuple[str, ...], str, float]] = {
    "busy": (("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"), "avg_over_time", 1.0),
    "throttled_for_heat": (("DCGM_FI_DEV_THERMAL_VIOLATION",), "increase", 1e-9),
    "throttled_for_power": (("DCGM_FI_DEV_POWER_VIOLATION",), "increase", 1e-9),
    "xid": (("DCGM_FI_DEV_XID_ERRORS",), "max_over_time", 1.0),
}
_PERCENT = "DCGM_FI_DEV_GPU_UTIL"
_ID = ("UUID", "gpu", "GPU_I_ID")


async def gpus_of(
    prometheus: Prometheus, servers: Sequence[ServerPast], at_s: float, seconds: float, limits: AnswerLimits
) -> dict[str, Sequence[GpuPast]]:
    """Return the GPUs of each server by its name; absent where Prometheus does not show whose they are."""
    answers = await asyncio.gather(*(prometheus.vector(_query(name, seconds), at_s, limits) for name in _ROWS))
    owners = _Owners(servers)
    found: dict[str, dict[tuple[str, ...], dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for name, rows in zip(_ROWS, answers, strict=True):
        for labels, value in rows:
            if (owner := owners.of(labels)) is not None:
                gpu = tuple(labels.get(part, "") for part in _ID)
                is_share = _ROWS[name][1] == "increase"
                found[owner][gpu][name] = min(value / seconds, 1.0) if is_share else value
    return {
        owner: [GpuPast(gpu[1] or gpu[0], **values) for gpu, values in sorted(gpus.items())]
        for owner, gpus in found.items()
    }


def _query(name: str, seconds: float) -> str:
    fields, function, factor = _ROWS[name]
    return " or ".join(
        f"max by ({', '.join(_BY)}) ({function}({series}[{seconds:.0f}s]))"
        f" * {own * factor * (0.01 if field == _PERCENT else 1.0):g}"
        for field in fields
        for series, own in names_of(field)
    )


class _Owners:
    """Finds whose a GPU is: the pod's that its series name, or else the only server's on its host."""

    def __init__(self, servers: Sequence[ServerPast]) -> None:
        self._pods: dict[tuple[str, str], list[ServerPast]] = defaultdict(list)
        self._hosts: dict[str, list[ServerPast]] = defaultdict(list)
        for one in servers:
            pod, namespace = (_first(one.labels, (f"exported_{name}", name)) for name in ("pod", "namespace"))
            if pod:
                self._pods[pod, namespace].append(one)
            for host in {one.labels.get("node", ""), _host(one.labels.get("instance", ""))} - {""}:
                self._hosts[host].append(one)

    def of(self, gpu: Mapping[str, str]) -> str | None:
        pods = self._pods.get((_first(gpu, USERS["pod"]), _first(gpu, USERS["namespace"])), [])
        its = [one for one in pods if _are_of_one_cluster(gpu, one.labels)]
        if not its and not gpu.get("exported_pod"):
            named = _first(gpu, ("Hostname", "hostname", "node")) or _host(gpu.get("instance", ""))
            its = [one for one in self._hosts.get(named, []) if _are_of_one_cluster(gpu, one.labels)]
        return its[0].name if len(its) == 1 else None


def _first(labels: Mapping[str, str], names: Sequence[str]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def _are_of_one_cluster(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    return one.get("cluster", "") == other.get("cluster", "")


def _host(instance: str) -> str:
    return urlsplit(f"//{instance}").hostname or ""
