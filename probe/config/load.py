"""The `load` section: where step-up load is generated, by default on this machine."""

import importlib.util
import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field

from probe.config.types import ConfigSection, Duration, NotASwitch, default_duration

_AUTO = "auto"
_ADDRESS = re.compile(r"(ray://)?([A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?|\[[0-9A-Fa-f:]+\]):([0-9]{1,5})")
_MAX_PORT = 65535


def _address(text: str) -> str:
    found = _ADDRESS.fullmatch(text)
    if text != _AUTO and (found is None or not 0 < int(found[4]) <= _MAX_PORT):
        raise ValueError(
            "expected HOST:PORT of a Ray cluster, ray://HOST:PORT, or auto for the cluster on this machine"
        )
    return text


RayAddress = Annotated[str, AfterValidator(_address), Field(title="address of a Ray cluster")]
# No run can keep more workers busy.
WorkerCount = Annotated[int, Field(ge=1, le=256), NotASwitch]


class RayConfig(ConfigSection):
    """A Ray cluster whose nodes generate the load."""

    address: RayAddress
    """`HOST:PORT`, or `auto` for the cluster of this node; `ray://HOST:PORT` from elsewhere."""
    workers: WorkerCount | None = None
    """Number of worker processes, one CPU each. Default: one per 128 streams."""
    start_timeout: Duration = default_duration("60s")
    """How long the cluster may take to start them."""


class LoadConfig(ConfigSection):
    """Where the load workers run."""

    ray: RayConfig | None = None
    """A Ray cluster that sends step-up load instead of this machine
    ([integrations.md](integrations.md#load-from-a-ray-cluster)). Without the section this machine sends the load.
    """


def load_problems(load: LoadConfig | None) -> Iterator[str]:
    """Yield problems that begin with the key's path."""
    if load is not None and load.ray is not None and importlib.util.find_spec("ray") is None:
        yield "load.ray: the package ray is not installed; pip install 'kneewatch[ray]'"
