"""The configuration that doctor writes is accepted, watches the same server, and holds no secret."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from probe.cli.options import configuration
from probe.cli.parameters import LengthOptions, ObjectiveOptions, ServerOptions
from probe.config.config_file import load_config
from probe.report.starter_config import starter_config


def _written(base_url: str, folder: Path, *options: Any) -> Path:
    config = configuration(None, base_url, *options)
    file = folder / "kneewatch.yml"
    file.write_text(starter_config(config, config.servers[0]))
    return file


@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        ("http://llama-8b.models.svc:8000", "llama-8b.models.svc"),
        ("http://127.0.0.1:8000", "127.0.0.1"),
        ("http://[::1]:8000", "1"),
        (f"http://{'a' * 62}.b.example:8000", "a" * 62),
        ("http://127.0.0.1:8001", "127.0.0.1-8001"),
        ("http://[::]:8001", "server-8001"),
        ("https://gateway.example", "gateway.example"),
        (f"http://{'a' * 62}.b.example:8001", "a" * 58 + "-8001"),
    ],
)
def test_it_is_accepted_with_the_hosts_name(base_url: str, name: str, tmp_path: Path) -> None:
    (target,) = load_config(_written(base_url, tmp_path, ServerOptions())).servers
    assert (target.name, target.base_url) == (name, base_url)
    assert target.capacity.mode == "forecast"


def test_it_has_the_page_of_each_replica(tmp_path: Path) -> None:
    pages = ["http://b:9000/metrics", "http://c:9000/metrics"]
    (target,) = load_config(_written("http://a:8000", tmp_path, ServerOptions(metrics_url=pages))).servers
    assert target.metrics_urls == tuple(pages)


def test_it_has_every_option_and_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key"
    key.write_text("sk-1")
    options = ServerOptions(
        model="m", api_key_file=key, api="chat", engine="vllm", metrics_url=["http://b:9000/metrics"],
        header=["x-tenant: a", "x-api-key: sk-2", f"x-token: @{key}"],
    )  # fmt: skip
    lengths, objectives = LengthOptions(output_tokens=7), ObjectiveOptions(ttft="1s")
    file = _written("http://a:8000", tmp_path, options, lengths, objectives)
    assert "sk-" not in file.read_text()
    assert yaml.safe_load(file.read_text())["targets"][0]["headers"]["x-api-key"] == {"secret": "${X_API_KEY}"}
    monkeypatch.setenv("X_API_KEY", "sk-2")
    config = load_config(file)
    (target,) = config.servers
    assert (target.model, target.api_key_file, target.engine) == ("m", key, "vllm")
    assert target.metrics_url == "http://b:9000/metrics"
    assert target.secret_headers() == {"x-api-key": "sk-2", "x-token": "sk-1"}
    assert target.plain_headers() == {"x-tenant": "a"}
    workload = config.workload(target.canary.workload)
    assert (workload.api.value, workload.output_tokens) == ("chat", 7)
    ttft = config.objectives_of(target).ttft
    assert ttft is not None
    assert ttft.within_s == 1.0
