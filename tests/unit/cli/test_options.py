"""Options to what they stand for, and the lines that say which option is wrong."""

import inspect
import socket
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from probe.capacity.run.request import StepSettings
from probe.cli.options import configuration, shard_of, share
from probe.cli.parameters import GpuOptions, LengthOptions, ObjectiveOptions, ServerOptions, given_options, grouped
from probe.cli.ramp_command import RampOptions, concurrency_steps, rate_steps, run_request, steps
from probe.config.capacity import CapacityConfig
from probe.config.config import Config
from probe.config.config_file import config_from
from probe.core.errors import ConfigError
from probe.core.objectives import Objective
from probe.core.request import Api
from probe.core.step import Arrivals, Pattern
from probe.monitor.desired_targets import Shard
from probe.report.starter_config import starter_config
from probe.scrape import engines

URL = "http://127.0.0.1:9"
APIS = "'completions', 'chat', 'responses', 'messages', 'embeddings', 'rerank' or 'score'"


def _config(*names: str) -> Config:
    return config_from({"targets": [{"name": name, "base_url": URL} for name in names]}, "test")


def _refusal(base_url: str = URL, **options: object) -> str:
    groups = [
        kind(**{one.name: options[one.name] for one in fields(kind) if one.name in options})
        for kind in (ServerOptions, LengthOptions, ObjectiveOptions)
    ]
    with pytest.raises(ConfigError) as refused:
        configuration(None, base_url, *groups)  # type: ignore[arg-type]
    return str(refused.value)


def test_an_address_alone_is_a_configuration_with_the_usual_promises() -> None:
    config = configuration(None, f"{URL}/v1/", ServerOptions())
    (target,) = config.targets
    assert (target.name, target.base_url, target.model) == ("target", URL, "auto")
    assert config.objectives_of(target) == _config("a").objectives_of(_config("a").targets[0])
    assert config.workload("default") == _config("a").workload("default")


def test_an_authority_beside_an_address_is_used_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(file))
    (target,) = configuration(None, "https://127.0.0.1:9", ServerOptions(ca_file=file)).servers
    assert target.tls.ca_file == file
    assert f"ca_file: {file}" in starter_config(configuration(None, URL, ServerOptions(ca_file=file)), target)
    file.write_text("none")
    assert _refusal(ca_file=file) == f"--ca-file {file}: holds no certificates; use a PEM file"
    with pytest.raises(ConfigError, match="--ca-file: requires --base-url"):
        configuration(file, None, ServerOptions(ca_file=file))


def test_the_options_beside_an_address_are_used(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-1")
    server = ServerOptions(model="m", api_key_file=key, api="chat")
    config = configuration(
        None, URL, server, LengthOptions(7, 9), ObjectiveOptions(ttft="2s", tpot="80ms", ratio="0.9")
    )
    (target,) = config.targets
    assert (target.model, target.secret()) == ("m", "sk-1")
    workload, promised = config.workload("default"), config.objectives_of(target)
    assert (workload.api, workload.prompt_tokens, workload.output_tokens) == (Api.CHAT, 7, 9)
    assert promised.ttft is not None
    assert promised.tpot is not None
    assert (promised.ttft.ratio, promised.ttft.within_s) == (0.9, 2.0)
    assert (promised.tpot.ratio, promised.tpot.within_s) == (0.9, 0.08)


def test_e2e_and_itl_are_objectives_beside_the_usual_ones() -> None:
    config = configuration(None, URL, objectives=ObjectiveOptions(e2e="8s", itl="100ms"))
    promised = config.objectives_of(config.targets[0])
    assert promised.latencies() == {
        "ttft": Objective(0.95, 0.5),
        "tpot": Objective(0.95, 0.05),
        "e2e": Objective(0.95, 8.0),
        "itl": Objective(0.95, 0.1),
    }
    stricter = configuration(None, URL, objectives=ObjectiveOptions(e2e="8s", ratio="0.99"))
    assert {one.ratio for one in stricter.objectives_of(stricter.targets[0]).latencies().values()} == {0.99}


def test_a_gateway_can_be_described_by_options(tmp_path: Path) -> None:
    file = tmp_path / "tenant-key"
    file.write_text("sk-2\n")
    given = ServerOptions(
        engine="litellm",
        metrics_url=["http://vllm:8000/metrics"],
        header=["x-tenant: team-a", "X-Api-Key: sk-1", f"x-other: @{file}"],
    )
    (target,) = configuration(None, URL, given).servers
    assert (target.engine, target.metrics_url) == ("litellm", "http://vllm:8000/metrics")
    assert target.plain_headers() == {"x-tenant": "team-a"}
    assert target.secret_headers() == {"X-Api-Key": "sk-1", "x-other": "sk-2"}
    assert "sk-1" not in repr(target)


def test_a_metrics_url_for_each_replica_is_the_page_of_each() -> None:
    pages = ("http://vllm-0:8000/metrics", "http://vllm-1:8000/metrics")
    (target,) = configuration(None, URL, ServerOptions(metrics_url=pages)).servers
    assert (target.metrics_url, target.metrics_urls) == (None, pages)
    assert _refusal(metrics_url=(pages[0], pages[0])) == (
        f"--metrics-url {pages[0]}, {pages[0]}: expected the page of each replica once; remove the duplicate"
    )
    assert _refusal(metrics_url=(pages[0], "x")) == "--metrics-url x: expected an address such as http://llama-8b:8000"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"engine": "vlm"},
            f"--engine vlm: expected auto or one of {', '.join(engines.NAMES)}",
        ),
        ({"metrics_url": ("x",)}, "--metrics-url x: expected an address such as http://llama-8b:8000"),
        ({"header": ("sk-not-to-be-shown",)}, "--header: expected 'NAME: VALUE' or 'NAME: @FILE'"),
        ({"header": ("x-a:",)}, "--header: expected 'NAME: VALUE' or 'NAME: @FILE'"),
        ({"header": ("x-a: 1", "X-A: 2")}, "--header X-A: given twice; keep one"),
        ({"header": ("Host: a",)}, "--header Host: expected a header that Kneewatch does not set itself; remove it"),
        ({"header": ("authorization: Bearer sk-not-to-be-shown",)}, "--header authorization: use --api-key-file"),
        ({"header": ("x-a: sk-not-\x00",)}, "--header x-a: expected printable ASCII text of at most 8192 characters"),
        ({"metrics_url": ("http://a/m?code=sk-not-to-be-shown",)}, "--metrics-url http://a/m: expected an address"),
        ({"metrics_url": ("http://a/m#sk-not-to-be-shown",)}, "--metrics-url http://a/m: expected an address"),
        ({"header": ("x-a: @/nonexistent",)}, "--header /nonexistent: cannot be read (No such file or directory)"),
    ],
)
def test_a_bad_option_of_a_gateway_is_one_line_without_the_value(options: dict[str, object], line: str) -> None:
    refusal = _refusal(**options)  # type: ignore[arg-type]
    assert refusal.startswith(line)
    assert "not-to-be-shown" not in refusal
    assert "\n" not in refusal


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"ratio": "2"}, "--ratio 2: expected a number above 0 and below 1"),
        ({"ratio": "most"}, "--ratio most: expected a number above 0 and below 1"),
        ({"ratio": "nan"}, "--ratio nan: expected a number above 0 and below 1"),
        ({"api": "foo"}, f"--api foo: expected {APIS}"),
        ({"ttft": "500"}, "--ttft 500: expected a duration with a unit, such as 500ms, 15s or 1h"),
        ({"e2e": "8"}, "--e2e 8: expected a duration with a unit, such as 500ms, 15s or 1h"),
        ({"e2e": "p99=8"}, "--e2e 8: expected a duration with a unit, such as 500ms, 15s or 1h"),
        ({"e2e": "p100=8s"}, "--e2e p100=8s: expected a duration such as 2s, or p99=2s"),
        ({"ttft": "p0=8s"}, "--ttft p0=8s: expected a duration such as 2s, or p99=2s"),
        ({"ttft": "0.9=8s"}, "--ttft 0.9=8s: expected a duration such as 2s, or p99=2s"),
        ({"itl": "0s"}, "--itl 0s: expected a duration above zero"),
        ({"tpot": "0s"}, "--tpot 0s: expected a duration above zero"),
        ({"prompt_tokens": 0}, "--prompt-tokens 0: expected a whole number from 1 to 1000000"),
        ({"output_tokens": 10**7}, "--output-tokens 10000000: expected a whole number from 1 to 1000000"),
        ({"model": ""}, "--model : expected text of 1 to 256 characters"),
        ({"base_url": "x"}, "--base-url x: expected an address such as http://llama-8b:8000"),
        (
            {"api_key_file": Path("/nonexistent/key")},
            "--api-key-file /nonexistent/key: cannot be read (No such file or directory); create it, or fix the path",
        ),
    ],
)
def test_a_bad_option_is_one_line_that_names_it(options: dict[str, object], line: str) -> None:
    assert _refusal(**options) == line  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["ttft", "tpot", "itl"])
def test_an_objective_about_tokens_is_refused_for_an_api_without_them(option: str) -> None:
    words = "--api rerank generates no tokens; remove it, and set --e2e for an objective"
    assert _refusal(api="rerank", **{option: "1s"}) == f"--{option}: {words}"
    assert _refusal(api="rerank", output_tokens=5) == f"--output-tokens: {words}"


def test_an_api_without_tokens_is_judged_by_e2e() -> None:
    config = configuration(None, URL, ServerOptions(api="embeddings"), objectives=ObjectiveOptions(e2e="2s"))
    (target,) = config.servers
    assert list(config.objectives_of(target).latencies().items()) == [("e2e", Objective(0.95, 2.0))]
    starter = config_from(yaml.safe_load(starter_config(config, target)), "test")
    assert starter.workload("embeddings").api is Api.EMBEDDINGS


def test_an_objective_may_have_a_share_of_its_own() -> None:
    objectives = ObjectiveOptions(ttft="300ms", tpot="p99=80ms", e2e="p99.9=8s", ratio="0.9")
    (target,) = (config := configuration(None, URL, objectives=objectives)).servers
    assert config.objectives_of(target).latencies() == {
        "ttft": Objective(0.9, 0.3),
        "tpot": Objective(0.99, 0.08),
        "e2e": Objective(0.999, 8.0),
    }


def test_each_bad_option_has_its_own_line() -> None:
    lines = _refusal("x", ratio="2", ttft="500").splitlines()
    assert sorted(line.split()[0] for line in lines) == ["--base-url", "--ratio", "--ttft"]


def test_a_password_in_an_address_is_not_repeated() -> None:
    line = _refusal("http://me:hunter2@a")
    assert line.startswith("--base-url (hidden): expected an address without credentials")
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        ({"server": ServerOptions(api_key_file=Path("k"), api="chat")}, ["--api-key-file", "--api"]),
        ({"server": ServerOptions(metrics_url=[URL], header=["x: y"])}, ["--metrics-url", "--header"]),
        ({"lengths": LengthOptions(256, 128)}, ["--prompt-tokens", "--output-tokens"]),
        (
            {"server": ServerOptions(model="m"), "objectives": ObjectiveOptions(e2e="8s", ratio="0.95")},
            ["--model", "--e2e", "--ratio"],
        ),
        ({"gpus": GpuOptions(gpu_prometheus=URL, gpu_label=["pod=a"])}, ["--gpu-prometheus", "--gpu-label"]),
    ],
)
def test_options_that_the_configuration_has_are_refused_beside_it(groups: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        configuration(Path("unread.yml"), None, **groups)
    assert str(refused.value).splitlines() == [
        f"{name}: requires --base-url; with -c, set it in the configuration" for name in names
    ]


def test_the_gpus_of_a_server_are_on_an_exporters_pages_or_in_a_prometheus() -> None:
    of_pages = configuration(None, "http://llama:8000", gpus=GpuOptions(dcgm_url=["http://a:9400/metrics"]))
    assert of_pages.servers[0].gpu.dcgm_urls == ("http://a:9400/metrics",)
    given = GpuOptions(gpu_prometheus="http://prometheus:9090", gpu_label=["pod=llama-0", "namespace=serving"])
    config = configuration(None, URL, gpus=given)
    gpu = config.servers[0].gpu
    assert (gpu.prometheus, gpu.labels) == (True, {"pod": "llama-0", "namespace": "serving"})
    written = config_from(yaml.safe_load(starter_config(config, config.servers[0])), "doctor's")
    assert (written.prometheus, written.servers[0].gpu.labels) == (config.prometheus, gpu.labels)


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (GpuOptions(gpu_label=["pod=a"]), "--gpu-label: requires --dcgm-url or --gpu-prometheus"),
        (
            GpuOptions(dcgm_url=[URL], gpu_prometheus=URL),
            "--dcgm-url, --gpu-prometheus: both are set; keep one",
        ),
        (GpuOptions(dcgm_url=[URL], gpu_label=["pod"]), "--gpu-label pod: expected NAME=VALUE with one of gpu, UUID, "),
        (GpuOptions(dcgm_url=[URL], gpu_label=["Pod=a"]), "--gpu-label Pod=a: expected NAME=VALUE"),
        (GpuOptions(dcgm_url=["node:9400"]), "--dcgm-url node:9400: expected an address"),
        (
            GpuOptions(gpu_prometheus="http://u:hunter2@p", gpu_label=["pod=a"]),
            "--gpu-prometheus (hidden): expected an address",
        ),
        (
            GpuOptions(gpu_prometheus=URL),
            "--gpu-prometheus: 127.0.0.1 names no host; add --gpu-label, such as Hostname=gpu-node-1",
        ),
    ],
)
def test_an_option_about_gpus_that_cannot_be_used_is_named(gpus: GpuOptions, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        configuration(None, "http://127.0.0.1:8000", gpus=gpus)
    assert str(refused.value).startswith(words)


@pytest.mark.parametrize(("file", "base_url"), [(None, None), (Path("a.yml"), URL)])
def test_a_file_or_an_address_and_not_both(file: Path | None, base_url: str | None) -> None:
    with pytest.raises(ConfigError, match="expected either -c FILE or URL"):
        configuration(file, base_url, ServerOptions())


def test_steps_are_rising_whole_numbers() -> None:
    assert concurrency_steps("1,2,1024") == (1, 2, 1024)


@pytest.mark.parametrize("text", ["", "0", "1,1", "2,1", "1,x", "1025", "1.5"])
def test_other_steps_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--concurrency .*: expected rising whole numbers"):
        concurrency_steps(text)


def test_rates_are_rising_numbers() -> None:
    assert rate_steps("0.5,1,2") == (0.5, 1.0, 2.0)
    assert rate_steps("10000") == (10_000.0,)


@pytest.mark.parametrize("text", ["", "0", "-1", "1,1", "2,1", "1,x", "10001", "nan", "inf", "1,nan", "1;2"])
def test_other_rates_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--rates .*: expected rising numbers above 0 and at most 10000, such as"):
        rate_steps(text)


FIXED = CapacityConfig.model_validate({"concurrency": [1, 2], "step": "20s"})
SEARCHED = CapacityConfig()
BURSTS = CapacityConfig.model_validate({"rates": [3], "arrivals": {"burstiness": 0.5}, "max_concurrency": 8})


@pytest.mark.parametrize(
    ("options", "capacity", "expected"),
    [
        (RampOptions(), SEARCHED, StepSettings(confirm_s=180.0)),
        (RampOptions(observe=5.0), SEARCHED, StepSettings(confirm_s=180.0, observe_s=5.0)),
        (RampOptions(observe=0.0), SEARCHED, StepSettings(confirm_s=180.0, observe_s=0.0)),
        (RampOptions(), FIXED, StepSettings(concurrency=(1, 2), seconds=20.0, confirm_s=180.0)),
        (
            RampOptions(step_seconds=3.0, confirm_seconds=0.0),
            FIXED,
            StepSettings(concurrency=(1, 2), seconds=3.0, confirm_s=0.0),
        ),
        (
            RampOptions(concurrency="4,8", requests_per_step=30),
            SEARCHED,
            StepSettings(concurrency=(4, 8), requests=30, confirm_s=180.0),
        ),
        (RampOptions(rates="0.5,1"), FIXED, StepSettings(rates=(0.5, 1.0), seconds=20.0, confirm_s=180.0)),
        (
            RampOptions(rates="1", burstiness=0.25, max_concurrency=16),
            SEARCHED,
            StepSettings(
                rates=(1.0,),
                arrivals=Arrivals(Pattern.GAMMA, burstiness=0.25),
                max_concurrency=16,
                confirm_s=180.0,
            ),
        ),
        (
            RampOptions(arrivals="constant"),
            BURSTS,
            StepSettings(rates=(3.0,), arrivals=Arrivals(Pattern.CONSTANT), max_concurrency=8, confirm_s=180.0),
        ),
        (RampOptions(concurrency="1"), BURSTS, StepSettings(concurrency=(1,), confirm_s=180.0)),
    ],
)
def test_steps_are_as_written_and_else_as_configured(
    options: RampOptions, capacity: CapacityConfig, expected: StepSettings
) -> None:
    assert steps(options, capacity) == expected


@pytest.mark.parametrize(
    ("options", "capacity", "words"),
    [
        (RampOptions(concurrency="1,2", rates="1,2"), SEARCHED, "--concurrency, --rates: both are set; remove one"),
        (RampOptions(step_seconds=5.0), SEARCHED, "--step-seconds: requires --concurrency or --rates"),
        (RampOptions(requests_per_step=30), SEARCHED, "--requests-per-step: requires --concurrency or --rates"),
        (RampOptions(rates="1,2", observe=5.0), SEARCHED, "--observe: works with a search only"),
        (RampOptions(burstiness=0.5), SEARCHED, "--burstiness: works with --rates only; add --rates, or remove it"),
        (RampOptions(concurrency="1", max_concurrency=4), BURSTS, "--max-concurrency: works with --rates only"),
        (RampOptions(rates="1", arrivals="even"), FIXED, "--arrivals even: expected one of poisson, constant, rising"),
        (RampOptions(rates="1", arrivals="rising", burstiness=2.0), FIXED, "--arrivals, --burstiness: both are set"),
        (RampOptions(rates="1", arrivals="rising", requests_per_step=9), FIXED, "--requests-per-step: leaves no time"),
        (RampOptions(observe=5.0), FIXED, "--observe: works with a search only"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    options: RampOptions, capacity: CapacityConfig, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        steps(options, capacity)


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), ("0%", 0.0), ("0.05", 0.05), ("0", 0.0), ("12.5%", 0.125)])
def test_a_share_is_a_percentage_or_a_fraction(text: str, value: float) -> None:
    assert share(text, "--tolerance") == value


@pytest.mark.parametrize("text", ["", "5 %%", "five", "-1%", "100%", "5", "nan", "inf%"])
def test_other_shares_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--tolerance .*: expected a share from 0% to below 100%, such as 5%"):
        share(text, "--tolerance")


def test_a_workload_is_one_of_the_configuration() -> None:
    raw = {"targets": [{"name": "a", "base_url": URL}], "workloads": {"short": {}}}
    config = config_from(raw, "test")
    assert [config.workload_name(name) for name in (None, "short", "default")] == [None, "short", "default"]
    with pytest.raises(ConfigError, match=r"--workload shrt: .*did you mean 'short'.*expected one of short"):
        config.workload_name("shrt")
    with pytest.raises(ConfigError, match="--workload rag: not in the configuration; add it under workloads"):
        config_from({"targets": raw["targets"]}, "test").workload_name("rag")
    with pytest.raises(ConfigError, match=r"--workload long-prefil: .*did you mean 'long-prefill'"):
        config.workload_name("long-prefil")


def test_a_group_of_options_is_filled_from_the_options_of_the_command() -> None:
    taken = []

    @grouped
    def command(base_url: str, server: ServerOptions, lengths: LengthOptions) -> None:
        taken.extend((base_url, server, lengths))

    given = dict.fromkeys(inspect.signature(command).parameters)
    assert list(given) == ["base_url", *(one.name for kind in (ServerOptions, LengthOptions) for one in fields(kind))]
    command(**{**given, "base_url": URL, "model": "m", "header": [], "metrics_url": [URL], "prompt_tokens": 0})
    server, lengths = ServerOptions(model="m", metrics_url=[URL]), LengthOptions(prompt_tokens=0)
    assert taken == [URL, server, lengths], "an empty list was not given"
    assert given_options(server, lengths) == ["--model", "--metrics-url", "--prompt-tokens"]


def test_a_preset_needs_no_configuration_and_one_of_the_configuration_goes_before_it() -> None:
    config = configuration(None, URL, ServerOptions(api="chat"), LengthOptions(prompt_tokens=7))
    assert config.workload_name("long-prefill") == "long-prefill"
    preset = config.workload("long-prefill")
    assert (preset.api, preset.prompt_tokens, preset.output_tokens) == (Api.CHAT, 2048, 128)
    raw = {
        "targets": [{"name": "a", "base_url": URL, "capacity": {"workload": "mixed"}, "canary": {"workload": "mine"}}],
        "workloads": {"mine": {}, "short-chat": {"prompt_tokens": 9}},
    }
    configured = config_from(raw, "test")
    assert configured.workload("short-chat").prompt_tokens == 9
    assert configured.workload("mixed").prompt_tokens == 2048
    warm, cold = (configured.workload(f"prefix-{name}") for name in ("warm", "cold"))
    assert warm.model_copy(update={"prefix": "unique"}) == cold


# Shards.


def test_without_shards_all_targets_are_watched() -> None:
    assert shard_of(None, 1) is None
    assert shard_of(0, 1) is None


@pytest.mark.parametrize(("host", "index"), [("kneewatch-0", 0), ("kneewatch-2", 2), ("team-7-kneewatch-1", 1)])
def test_a_stateful_set_numbers_its_pods(monkeypatch: pytest.MonkeyPatch, host: str, index: int) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert shard_of(None, 3) == Shard(index, 3)
    assert shard_of(1, 3) == Shard(1, 3), "what is said goes first"


@pytest.mark.parametrize(
    ("host", "index", "total", "line"),
    [
        ("laptop", None, 2, "--total-shards 2: the host name laptop does not end in a number; add --shard"),
        (
            "kneewatch-7d9f8b-x2z",
            None,
            2,
            "--total-shards 2: the host name kneewatch-7d9f8b-x2z does not end in a number;",
        ),
        ("kneewatch-3", None, 3, "--shard 3: expected at most 2; lower it, or raise --total-shards"),
        ("laptop", 2, 2, "--shard 2: expected at most 1; lower it, or raise --total-shards"),
        ("laptop", 1, 1, "--shard 1: the only shard is 0; set --total-shards, or remove --shard"),
    ],
)
def test_a_shard_that_there_is_not_is_refused(
    monkeypatch: pytest.MonkeyPatch, host: str, index: int | None, total: int, line: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    with pytest.raises(ConfigError) as refused:
        shard_of(index, total)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("ttft", [None, {"ratio": 0.9, "within": "2s"}])
def test_a_guard_by_the_stream_needs_an_objective_for_the_first_token(ttft: object) -> None:
    slow = {"availability": 0.99, "ttft": ttft, "e2e": {"ratio": 0.9, "within": "20s"}}
    target = {"name": "a", "base_url": URL, "objectives": "slow"}
    config = config_from({"objectives": {"slow": slow}, "targets": [target]}, "test")
    asked = RampOptions(stream_guard=True)
    if ttft is None:
        with pytest.raises(ConfigError, match=r"^--stream-guard: .*add ttft$"):
            run_request(config, config.servers[0], asked)
    else:
        assert run_request(config, config.servers[0], asked).by_stream
