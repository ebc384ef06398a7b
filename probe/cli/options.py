"""Command-line options to a checked configuration, target or file.

Options that were not given are None. Every ConfigError names its option.
"""

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from probe.cli.parameters import (
    NO_GPUS,
    NO_LENGTHS,
    NO_OBJECTIVES,
    NO_SERVER,
    GpuOptions,
    LengthOptions,
    ObjectiveOptions,
    ServerOptions,
    given_options,
)
from probe.cli.server_address import KEY_VARIABLE, server_key
from probe.config.config import Config
from probe.config.config_file import load_config
from probe.config.headers import names_secret
from probe.config.messages import value_at, value_problems
from probe.config.objectives import DEFAULT_OBJECTIVES, RESULT_OBJECTIVES, USUAL_RATIO
from probe.config.path_checks import authorities_problem
from probe.config.types import Url
from probe.config.workloads import PRESETS
from probe.core.durations import parse_duration
from probe.core.errors import ConfigError
from probe.core.objectives import LATENCIES
from probe.core.request import Api
from probe.core.server_address import is_loopback
from probe.core.text import one_line
from probe.gpu.fields import LABELS
from probe.monitor.desired_targets import Shard
from probe.report.result_columns import GpuPrice

# Where an option's value is in the configuration made from it.
_OPTION_AT: Mapping[tuple[str | int, ...], str] = {
    ("targets", 0, "base_url"): "--base-url",
    ("targets", 0, "model"): "--model",
    ("targets", 0, "api_key"): KEY_VARIABLE,
    ("targets", 0, "engine"): "--engine",
    ("targets", 0, "metrics_url"): "--metrics-url",
    ("targets", 0, "metrics_urls"): "--metrics-url",
    ("targets", 0, "gpu", "dcgm_urls"): "--dcgm-url",
    ("prometheus", "url"): "--gpu-prometheus",
    ("workloads", "default", "api"): "--api",
    ("workloads", "default", "prompt_tokens"): "--prompt-tokens",
    ("workloads", "default", "output_tokens"): "--output-tokens",
    **{("objectives", "default", name, "within"): f"--{name}" for name in LATENCIES},
    **{("objectives", "default", name, "ratio"): "--ratio" for name in LATENCIES},
}
_ADDRESS: TypeAdapter[str] = TypeAdapter(Url)
_GPUS_EVERY = "2s"  # a command is short: an exporter may sample each second


def configuration(
    file: Path | None,
    base_url: str | None,
    server: ServerOptions = NO_SERVER,
    lengths: LengthOptions = NO_LENGTHS,
    objectives: ObjectiveOptions = NO_OBJECTIVES,
    gpus: GpuOptions = NO_GPUS,
) -> Config:
    """Return the configuration of the file, or one made from an address and its options. Raises ConfigError."""
    if file is not None and base_url is None:
        if given := given_options(server, lengths, objectives, gpus):
            raise ConfigError(
                "\n".join(f"{name}: requires --base-url; with -c, set it in the configuration" for name in given)
            )
        return load_config(file)
    if file is None and base_url is not None:
        return _one_server(base_url, server, lengths, objectives, gpus)
    raise ConfigError("expected either -c FILE or URL, such as http://localhost:8000; give one of them")


def shard_of(index: int | None, total: int) -> Shard | None:
    """Return this instance's shard; None: all targets. Raises ConfigError."""
    if total == 1:
        if index:
            raise ConfigError(f"--shard {index}: the only shard is 0; set --total-shards, or remove --shard")
        return None
    if index is None:
        # The pods of a StatefulSet are named kneewatch-0, kneewatch-1, ...
        host = socket.gethostname()
        ordinal = re.search(r"-([0-9]{1,4})$", host)
        if ordinal is None:
            raise ConfigError(f"--total-shards {total}: the host name {host} does not end in a number; add --shard")
        index = int(ordinal[1])
    if index >= total:
        raise ConfigError(f"--shard {index}: expected at most {total - 1}; lower it, or raise --total-shards")
    return Shard(index, total)


def share(text: str, option: str) -> float:
    """Parse a share such as 5% or 0.05. Raises ConfigError."""
    try:
        value = float(text.removesuffix("%").strip()) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise ConfigError(f"{option} {one_line(text)}: expected a share from 0% to below 100%, such as 5%")
    return value


def price_of(gpu_hour: float | None, gpus: int | None) -> GpuPrice | None:
    """Return the price that --gpu-hour-price and --gpus give; None without one. Raises ConfigError."""
    if gpus is not None and gpu_hour is None:
        raise ConfigError("--gpus: has no effect without --gpu-hour-price; add it, or remove --gpus")
    return None if gpu_hour is None else GpuPrice(gpu_hour, gpus)


def duration_of(text: str, option: str) -> float:
    """Parse a duration such as 6h or 30m to seconds. Raises ConfigError."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"{option} {one_line(text)}: {error}") from None


def timeout_of(text: str | None) -> float | None:
    """Return the limit of --timeout in seconds; None: not given. Raises ConfigError."""
    if text is None:
        return None
    seconds = duration_of(text, "--timeout")
    if seconds <= 0:
        raise ConfigError(f"--timeout {one_line(text)}: expected a duration above zero")
    return seconds


def check_address(text: str, option: str, example: str) -> None:
    """Raise ConfigError for what is no address, or has credentials, which messages would show."""
    try:
        _ADDRESS.validate_python(text)
    except ValidationError:
        written = _address_words(text)
        raise ConfigError(f"{option} {written}: expected an address such as {example}, without credentials") from None


def _one_server(
    base_url: str, server: ServerOptions, lengths: LengthOptions, objectives: ObjectiveOptions, gpus: GpuOptions
) -> Config:
    target = {
        "name": "target",
        "base_url": base_url,
        "model": server.model,
        "api_key_file": server.api_key_file,
        "api_key": server_key(base_url) if server.api_key_file is None else None,
        "engine": server.engine,
        **_pages(server.metrics_url or ()),
        "headers": _headers(server.header or ()),
        "tls": {"ca_file": server.ca_file} if server.ca_file is not None else None,
        "gpu": _gpu(base_url, gpus),
    }
    workload = _set({"api": server.api, **asdict(lengths)})
    if _has_no_tokens(server):
        _check_without_tokens(server, lengths, objectives)
    if server.api_key_file is not None:
        _check_readable("--api-key-file", server.api_key_file)
    if server.ca_file is not None and (words := authorities_problem(server.ca_file)):
        raise ConfigError(f"--ca-file {server.ca_file}: {words}")
    raw: Mapping[str, Any] = {
        "targets": [_set(target)],
        "workloads": {"default": workload},
        "objectives": {"default": _objectives(server, objectives)},
        **({"prometheus": {"url": gpus.gpu_prometheus}} if gpus.gpu_prometheus is not None else {}),
    }
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigError("\n".join(dict.fromkeys(_problems(error, raw)))) from None
    api = config.workload("default").api
    presets = {name: preset.model_copy(update={"api": api}) for name, preset in PRESETS.items()}
    return config.model_copy(update={"workloads": presets | config.workloads})


def _gpu(base_url: str, gpus: GpuOptions) -> dict[str, object] | None:
    """Return the `gpu` section; None: no GPU is read. Raises ConfigError."""
    given = given_options(gpus)
    if not given:
        return None
    if given == ["--gpu-label"]:
        raise ConfigError("--gpu-label: requires --dcgm-url or --gpu-prometheus")
    if gpus.dcgm_url and gpus.gpu_prometheus is not None:
        raise ConfigError("--dcgm-url, --gpu-prometheus: both are set; keep one")
    labels: dict[str, str] = {}
    for text in gpus.gpu_label or ():
        name, equals, value = text.partition("=")
        if not (equals and value) or name not in LABELS:
            raise ConfigError(f"--gpu-label {one_line(text)}: expected NAME=VALUE with one of {', '.join(LABELS)}")
        labels[name] = value
    host = urlsplit(base_url).hostname or ""
    if gpus.gpu_prometheus is not None and is_loopback(host) and not labels:
        raise ConfigError(f"--gpu-prometheus: {host} names no host; add --gpu-label, such as Hostname=gpu-node-1")
    found: dict[str, object] = {"labels": labels, "every": _GPUS_EVERY}
    return found | ({"dcgm_urls": gpus.dcgm_url} if gpus.dcgm_url else {"prometheus": True})


def _has_no_tokens(server: ServerOptions) -> bool:
    return server.api in {api.value for api in Api if not api.generates}


def _check_without_tokens(server: ServerOptions, lengths: LengthOptions, objectives: ObjectiveOptions) -> None:
    """Raise ConfigError for an option about tokens, since the API generates none."""
    tokens = ("--output-tokens", *(f"--{name}" for name, row in LATENCIES.items() if row.tokens))
    if given := [name for name in given_options(lengths, objectives) if name in tokens]:
        raise ConfigError(
            f"{', '.join(given)}: --api {server.api} generates no tokens; remove it, and set --e2e for an objective"
        )


def _objectives(server: ServerOptions, objectives: ObjectiveOptions) -> dict[str, object]:
    """Return the objectives as the configuration has them: the usual ones, and those that were asked for."""
    usual = (RESULT_OBJECTIVES if _has_no_tokens(server) else DEFAULT_OBJECTIVES).model_dump(mode="json")
    ratio = objectives.ratio or str(USUAL_RATIO)
    return {
        name: _set({"ratio": ratio, **_objective(given, f"--{name}")}, usual[name])
        for name in LATENCIES
        if (given := getattr(objectives, name)) is not None or usual[name] is not None
    }


def _objective(given: str | None, option: str) -> dict[str, object]:
    """Return the keys of an objective such as 2s, or p99=2s for a share of its own. Raises ConfigError."""
    if given is None or "=" not in given:
        return {"within": given}
    percentile, _, within = given.partition("=")
    if not (number := re.fullmatch(r"p(\d{1,2}(?:\.\d{1,6})?)", percentile)) or not float(number[1]):
        raise ConfigError(f"{option} {one_line(given)}: expected a duration such as 2s, or p99=2s")
    return {"within": within, "ratio": float(Decimal(number[1]) / 100)}


def _pages(given: Sequence[str]) -> dict[str, object]:
    """Return the metrics pages as the configuration has them: the server's page, or one for each replica."""
    return {"metrics_urls": given} if len(given) > 1 else {"metrics_url": next(iter(given), None)}


def _headers(given: Sequence[str]) -> dict[str, object]:
    """Return the headers as the configuration has them. Raises ConfigError, without a value."""
    headers: dict[str, object] = {}
    for text in given:
        name, _, value = (part.strip() for part in text.partition(":"))
        if not value:
            raise ConfigError("--header: expected 'NAME: VALUE' or 'NAME: @FILE'")
        if name.lower() in map(str.lower, headers):
            raise ConfigError(f"--header {one_line(name)}: given twice; keep one")
        if name.lower() == "authorization":
            raise ConfigError(f"--header {name}: use --api-key-file")
        if value.startswith("@"):
            _check_readable("--header", Path(value[1:]))
            headers[name] = {"file": value[1:]}
        else:
            headers[name] = {"secret": value} if names_secret(name) else value
    return headers


def _problems(error: ValidationError, raw: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line per problem; --ratio is in two places, so a line may come twice."""
    for problem in value_problems(error, raw, Config):
        path = problem.path
        option = next((_OPTION_AT[path[:n]] for n in (len(path), 4, 3) if path[:n] in _OPTION_AT), None)
        if path[2:3] == ("headers",):
            yield f"--header {one_line(str(path[3]))}: {problem.words}"  # without the value, which may be a secret
            continue
        if option is None:
            yield f"--base-url and the other options: {problem.words}"
            continue
        if option == KEY_VARIABLE:
            yield f"{option}: {problem.words}"
            continue
        value = value_at(path, raw)
        given = ", ".join(value) if isinstance(value, list | tuple) else str(value)
        yield f"{option} {_address_words(given)}: {problem.words}"


def _address_words(given: str) -> str:
    """Return a value that may be an address without what may be secret in it: a password, a query."""
    return "(hidden)" if "@" in given else one_line(re.split(r"[?#]", given, maxsplit=1)[0])


def _set(values: Mapping[str, object], defaults: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return the given values over the defaults."""
    return {**(defaults or {}), **{key: value for key, value in values.items() if value is not None}}


def _check_readable(option: str, file: Path) -> None:
    try:
        file.open("rb").close()
    except OSError as error:
        raise ConfigError(f"{option} {file}: cannot be read ({error.strerror}); create it, or fix the path") from None
