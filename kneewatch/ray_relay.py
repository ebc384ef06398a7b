"""The actor of a load worker, under a name that a Ray node with the wheel can import."""

from kneewatch import use_packages

use_packages()

from probe.load import ray_relay  # noqa: E402 - importable only now


class WorkerRelay(ray_relay.WorkerRelay):
    """See probe/load/ray_relay.py. Ray's processes import a class by its module, and know of no other packages."""
