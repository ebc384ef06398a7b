"""The discovery of a `discover` section.

In: the section. Out: a Discovery (types.py shows how to use it). It opens no connection before its states are read.
"""

from probe.config.discovery import DiscoverConfig
from probe.discovery.dns_sd import DnsSource
from probe.discovery.file_sd import FileSource
from probe.discovery.http_sd import HttpSource
from probe.discovery.kubernetes_sd import KubernetesSource
from probe.discovery.polling import ProblemReporter
from probe.discovery.types import Discovery, OnProblem, OnWell


def _ignore() -> None:
    """Do nothing: the default `on_well`."""


def source(config: DiscoverConfig, on_problem: OnProblem, on_well: OnWell = _ignore) -> Discovery:
    """Return the discovery of a valid section (config/discovery.py).

    `on_problem` is called with one line when servers cannot be listed or some are left out, not twice in a row with the
    same line; `on_well` when that is over.
    """
    reporter, scheme, path = ProblemReporter(on_problem, on_well), config.scheme, config.path
    if (pods := config.kubernetes) is not None:
        return KubernetesSource(pods, scheme, path, reporter)
    if (dns := config.dns) is not None:
        return DnsSource(dns, scheme, path, reporter)
    if (file := config.file) is not None:
        return FileSource(file, scheme, path, reporter)
    if (http := config.http) is not None:
        return HttpSource(http, scheme, path, reporter)
    raise ValueError("the discover section names no kind of discovery")
