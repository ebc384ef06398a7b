"""A first configuration for one server, as YAML. Pure."""

import re
from urllib.parse import urlsplit

import yaml

from probe.config.config import Config
from probe.config.headers import SecretHeader
from probe.config.targets import TargetConfig

_USUAL_PORT = 8000
_LONGEST_NAME = 63


def starter_config(config: Config, target: TargetConfig) -> str:
    """Return the configuration that watches this server; `config` was made from the command line. Has no secret."""
    workload = config.workload(target.canary.workload)
    objectives = config.objectives_of(target)
    latencies = {
        name: {"ratio": one.ratio, "within": f"{one.within_s * 1000:g}ms"}
        for name, one in objectives.latencies().items()
    }
    objective, load = ("chat", "short-chat") if workload.api.generates else (workload.api.value, workload.api.value)
    raw = {
        "objectives": {objective: {"window": "30d", "availability": 0.999, **latencies}},
        "workloads": {
            load: {
                **({"api": workload.api.value} if workload.api.value != "completions" else {}),
                "prompt_tokens": workload.prompt_tokens,
                **({"output_tokens": workload.output_tokens} if workload.api.generates else {}),
            }
        },
        **({"prometheus": {"url": config.prometheus.url}} if config.prometheus is not None else {}),
        "targets": [
            {
                **_server(target),
                "objectives": objective,
                "canary": {"every": "15s", "workload": load},
                "capacity": {"mode": "forecast"},
            }
        ],
    }
    return (
        "# Written by `kneewatch doctor`. Start it with: kneewatch run -c THIS_FILE\n"
        "# Capacity is forecast from live traffic and adds no load. All keys: docs/configuration.md\n"
        f"{yaml.safe_dump(raw, sort_keys=False, default_flow_style=None, width=110)}"
    )


def _server(target: TargetConfig) -> dict[str, object]:
    found: dict[str, object] = {"name": _name(target.base_url)}
    found["base_url"] = target.base_url
    if target.model != "auto":
        found["model"] = target.model
    if target.engine != "auto":
        found["engine"] = target.engine
    if target.metrics_url is not None:
        found["metrics_url"] = target.metrics_url
    if target.metrics_urls:
        found["metrics_urls"] = list(target.metrics_urls)
    if target.api_key_file is not None:
        found["api_key_file"] = str(target.api_key_file.absolute())
    if target.tls.ca_file is not None:
        found["tls"] = {"ca_file": str(target.tls.ca_file.absolute())}
    if target.headers:
        found["headers"] = {name: _header(name, value) for name, value in target.headers.items()}
    if (gpu := target.gpu).is_read:
        of = {"prometheus": True} if gpu.prometheus else {"dcgm_urls": list(gpu.dcgm_urls)}
        found["gpu"] = {**of, **({"labels": dict(gpu.labels)} if gpu.labels else {})}
    return found


def _name(base_url: str) -> str:
    """Return the host's name, and its port unless it is vLLM's own: two servers of one host need two names."""
    parts = urlsplit(base_url)
    port = f"-{parts.port}" if parts.port not in (None, _USUAL_PORT) else ""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", parts.hostname or "")[: _LONGEST_NAME - len(port)].strip(".-")
    return (host or "server") + port


def _header(name: str, value: str | SecretHeader) -> object:
    """Return a header's value; a secret that was on the command line is left to a variable."""
    if isinstance(value, str):
        return value
    if value.file is not None:
        return {"file": str(value.file.absolute())}
    return {"secret": f"${{{re.sub(r'[^A-Z0-9]', '_', name.upper())}}}"}
