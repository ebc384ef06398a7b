"""The discovery that a configuration asks for.

In: a target's `discover` section. Out: a Source (found.py, which shows how it is used). Nothing is opened, asked or
imported before somebody listens to its states.
"""

from probe.config.discovery import DiscoverConfig
from probe.discovery.dns_sd import DnsSource
from probe.discovery.file_sd import FileSource
from probe.discovery.http_sd import HttpSource
from probe.discovery.kubernetes_sd import KubernetesSource
from probe.discovery.polling import ProblemReporter
from probe.discovery.types import Discovery, OnProblem, OnWell


def _ignore() -> None:
    """For a caller that does not care when a discovery is well again."""


def source(config: DiscoverConfig, on_problem: OnProblem, on_well: OnWell = _ignore) -> Discovery:
    """The source of a section in which nothing is wrong (config_discover.discover_problems).

    `on_problem`: why nobody can be asked now, or what was left out, in one line; the same words once in a row.
    `on_well`: after that, when everything is as it should be again.
    """
    told, scheme, path = ProblemReporter(on_problem, on_well), config.scheme, config.path
    if (pods := config.kubernetes) is not None:
        return KubernetesSource(pods, scheme, path, told)
    if (dns := config.dns) is not None:
        return DnsSource(dns, scheme, path, told)
    if (file := config.file) is not None:
        return FileSource(file, scheme, path, told)
    if (http := config.http) is not None:
        return HttpSource(http, scheme, path, told)
    raise ValueError("a discovery of no kind")
