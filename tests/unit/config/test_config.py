"""The configuration: what is accepted, and the exact words for what is not.

tests/golden/config/refused.yaml has configurations that must be refused, each with the exact messages; test_keys.py
tests what all keys have in common.
"""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from probe.config.config import Config
from probe.config.config_file import config_from, config_hash, load_config, show
from probe.config.path_checks import folder_problem
from probe.config.reference import json_schema
from probe.config.yaml_file import MAX_CONFIG_BYTES
from probe.core.errors import ConfigError
from probe.core.objectives import Objective
from probe.monitor.wiring import endpoint
from probe.scrape import engines

ROOT = Path(__file__).parents[3]
REFUSED = yaml.safe_load((ROOT / "tests/golden/config/refused.yaml").read_text())
OF_OTHERS = {ROOT / "deploy/examples" / name for name in ("alertmanager.yml", "kube-prometheus-stack.yml")}
EXAMPLES = sorted(set((ROOT / "deploy/examples").glob("*.yml")) - OF_OTHERS)
SECRET = "sk-not-to-be-shown"
TARGET = "targets:\n  - name: llama\n    base_url: http://llama:8000\n"

FULL = """\
listen: "[::1]:9876"
prometheus: {url: http://prometheus:9090}
store: {path: /var/lib/kneewatch/results.db}
objectives:
  chat: {window: 30d, availability: 0.999, ttft: {ratio: 0.95, within: 500ms}, tpot: {ratio: 0.9, within: 35ms}}
  batch: {window: 1w, availability: 0.99}
workloads:
  short-chat: {prompt_tokens: 256, output_tokens: 128, prefix: unique}
  talk: {api: chat}
  rag:
    prompt_tokens: {lognormal: {median: 3000, sigma: 0.4, max: 8000}}
    output_tokens: 200
    prefix: {shared_tokens: 1024}
targets:
  - name: llama-8b
    base_url: https://llama-8b:8000/v1/
    model: Qwen/Qwen3-32B
    api_key: ${LLAMA_KEY}
    tls: {verify: false}
    connection: {proxy: "http://proxy:3128", connect_timeout: 2s, between_bytes_timeout: 20s}
    metrics_url: http://llama-8b:9000/metrics
    scrape: 2s
    objectives: chat
    canary: {every: 7s, workload: short-chat, timeout: 1m}
    capacity:
      mode: verify
      workload: rag
      schedule: {cron: "30 4 * * *", timezone: Europe/Berlin}
      concurrency: [1, 2, 3]
      step: 20s
      server: {max_num_seqs: 64, gpu: "NVIDIA H100 80GB HBM3", parameters: 8e9, weight_bits: 8, gpus: 2}
      budget: {tokens_per_run: 2_000_000, seconds: 120, over_objective_seconds: 5}
  - {name: qwen, base_url: "http://qwen:8000", objectives: batch}
"""


def config(text: str, tmp_path: Path, **environ: str) -> Config:
    path = tmp_path / "kneewatch.yaml"
    path.write_text(text)
    return load_config(path, environ)


def refusal(text: str | bytes, tmp_path: Path, **environ: str) -> str:
    """Return the message without the file's path in front of each line."""
    path = tmp_path / "kneewatch.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ)
    lines = str(caught.value).split("\n")
    assert all(line.startswith(f"{path}:") for line in lines), lines
    assert all(line.isprintable() and len(line) < 500 for line in lines), lines
    return "\n".join(line.removeprefix(f"{path}:").strip() for line in lines)


# --- Refused -------------------------------------------------------------------------------------------------


@pytest.mark.fault(
    "SE31",
    "Somebody puts a secret into `request.extra_body`, which is shown in `/config` and in results",
    area="Security",
    users_see="one line, exit 2: send it in `headers`",
    stays="a text under a name like that of a secret is nowhere shown; under an innocent name it is",
)
@pytest.mark.fault(
    "CO1",
    "A configuration with a mistake",
    area="Configuration",
    users_see="each mistake is a line: file, key, what was expected",
    stays="-",
)
@pytest.mark.fault("CO41")
@pytest.mark.fault(
    "CO42",
    "Names of targets, objectives or workloads with quotes, line breaks, markup, braces or 64 characters",
    area="Configuration",
    users_see="one line for each",
    stays="no such name reaches rules, series or pages",
)
def test_an_unknown_engine_is_refused_with_the_names_of_all() -> None:
    known = f"expected auto or one of {', '.join(engines.NAMES)} (did you mean 'vllm'?)"
    with pytest.raises(ConfigError, match=rf"^FILE: targets\[0\]\.engine: {re.escape(known)}, got 'vlm'$"):
        config_from({"targets": [{"name": "a", "base_url": "http://llama:8000", "engine": "vlm"}]}, "FILE")


@for_each(REFUSED, str)
def test_says_what_is_wrong_where_and_the_mend(name: str) -> None:
    given = REFUSED[name]
    target = {"name": "llama", "base_url": "http://llama:8000", **given.get("target", {})}
    raw = given.get("whole", {**given.get("config", {}), "targets": [target]})
    with pytest.raises(ConfigError) as caught:
        config_from(raw, "FILE", given.get("environ", {}))
    assert [line.removeprefix("FILE: ") for line in str(caught.value).split("\n")] == given["says"]
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("targets: []\ntargets: []\n", "2:1: not valid YAML (duplicate key; keep one)"),
        ("a:\n  - b: 1\n    c: 2\n    b: 3\n", "4:5: not valid YAML (duplicate key; keep one)"),
        ("targets: *nobody\n", "1:10: not valid YAML (found undefined alias '...')"),
        ("targets:\n  - name: [\n", "3:1: not valid YAML (expected the node content, but found '<stream end>'); MEND"),
        ("targets: a: b\n", "1:11: not valid YAML (mapping values are not allowed here); MEND"),
        ("a:\n\t- b\n", "2:1: not valid YAML (found character '\\t' that cannot start any token); MEND"),
        ("a: !!python/object/apply:os.system [echo]\n",
         "1:4: not valid YAML (could not determine a constructor for the tag '...')"),
        ("a: 1\n---\na: 1\n", "2:1: not valid YAML (but found another document)"),
    ],
)  # fmt: skip
def test_what_is_no_yaml_is_told_its_place(text: str, said: str, tmp_path: Path) -> None:
    assert refusal(text, tmp_path) == said.replace("MEND", "check the indentation and quotes here")


def test_a_body_that_is_too_large_is_not_shown(tmp_path: Path) -> None:
    text = f"{TARGET}    request: {{extra_body: {{a: {'x' * 9000}}}}}\n"
    said = "targets[0].request.extra_body: expected a smaller JSON object; it is larger than 8 KiB, got a mapping"
    assert refusal(text, tmp_path) == said


@pytest.mark.fault(
    "CO2",
    "The file is missing",
    area="Configuration",
    users_see="one line that names it and the flag, exit 2",
    stays="-",
)
def test_a_missing_file_names_itself_and_the_flag(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == f"{path}: cannot be read (No such file or directory); use an existing file with -c FILE"


@pytest.mark.fault(
    "CO3",
    "A folder instead of the file",
    area="Configuration",
    users_see="one line",
    stays="-",
)
def test_a_folder_is_not_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


@pytest.mark.fault(
    "ME11",
    "A configuration file of megabytes, YAML anchors that unfold",
    area="Memory",
    users_see="refused in one line, not parsed",
    stays="the former configuration",
)
def test_a_file_that_is_too_long_is_not_parsed(tmp_path: Path) -> None:
    assert "expected a configuration of at most" in refusal(TARGET + "#" * MAX_CONFIG_BYTES, tmp_path)


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"targets: \xff\xfe", b"a: \x00", b"\x80", b"a: \x1b[31m"])
@pytest.mark.fault(
    "CO4",
    "Bytes that are no text",
    area="Configuration",
    users_see="one line",
    stays="-",
)
def test_bytes_that_are_no_text_are_refused(data: bytes, tmp_path: Path) -> None:
    assert "not valid YAML" in refusal(data, tmp_path)


@pytest.mark.parametrize("text", ["", "# nothing\n", "null\n", "5\n", "[]\n", "true\n", "--- |\n  text\n"])
def test_a_file_without_a_mapping_is_refused(text: str, tmp_path: Path) -> None:
    assert "expected a mapping with the key 'targets'" in refusal(text, tmp_path)


# Ten lines that would be ten to the tenth keys.
MERGES = "a0: &a0 {x: 1, y: 2}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 11)
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "a: &a {b: *a}\n",
        "a: &a [*a]\n",
        "targets: 2026-13-45\n",
        "targets: !!int many\n",
        "targets: !!float many\n",
        "targets: !!timestamp never\n",
        "targets: !!binary '*'\n",
        f"targets: {'9' * 5000}\n",
        "[" * 1200,
        "{a: " * 1200,
        "? [a, b]\n: c\n",
        "? {a: b}\n: c\n",
        "<<: 5\n",
        "targets: !!set {a, b}\n",
        "targets: !!omap [a: b]\n",
        "targets: !!bool perhaps\n",
        TARGET + '    api_key_file: "a\\0b"\n',
        TARGET + '    tls: {ca_file: "a\\0b"}\n',
        'targets: "\\ud83d"\n',
        MERGES,
    ],
)
@pytest.mark.fault("ME11")
def test_yaml_that_breaks_readers_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    assert refusal(text, tmp_path).count("\n") == 0


@pytest.mark.parametrize("key", ["1", "null", "true", "1.5", "2026-01-01", "~"])
@pytest.mark.parametrize("at", ["{key}: x\n", "workloads: {{w: {{{key}: 5}}}}\n", "objectives: {{{key}: {{}}}}\n"])
def test_a_key_that_is_no_text_is_refused(at: str, key: str, tmp_path: Path) -> None:
    assert refusal(at.format(key=key) + TARGET, tmp_path)


def test_a_key_cannot_break_the_line(tmp_path: Path) -> None:
    message = refusal(f'"a\\n\\e[31mFAKE: all is well": 1\n{TARGET}', tmp_path)
    assert "unknown key" in message
    assert message.count("\n") == 0


def test_the_known_keys_are_those_of_the_place_also_when_a_name_is_spelt_like_a_key(tmp_path: Path) -> None:
    message = refusal("objectives:\n  ttft: {avaliability: 0.9}\n" + TARGET, tmp_path)
    assert "did you mean 'availability'?" in message


def test_a_number_out_of_range_is_not_said_in_powers(tmp_path: Path) -> None:
    message = refusal("workloads: {w: {prompt_tokens: 2000000}}\n" + TARGET, tmp_path)
    assert message == "workloads.w.prompt_tokens: expected a whole number from 1 to 1000000, got 2000000"


# --- Secrets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "targets: {name: llama, base_url: http://llama, api_key: SECRET}\n",
        "targets:\n  - - api_key: SECRET\n",
        "store: {path: {api_key: SECRET}}\ntargets: []\n",
        TARGET + "    tls: [{api_key: SECRET}]\n",
        TARGET + "    connection: me:SECRET@proxy\n",
        TARGET + "    connection: {proxy: 'me:SECRET'}\n",
        TARGET + "    connection: {proxy: [SECRET], proxy_auth_file: [SECRET]}\n",
        TARGET + "    connection: {proxy: 'http://proxy', proxy_auth_file: 'me:SECRET'}\n",
        TARGET + "    connection: {proxy_password: SECRET}\n",
        TARGET + "    canary: [SECRET]\n    api_key: [SECRET]\n",
        TARGET + "    apikey: SECRET\n",
        TARGET + "    api_key: *SECRET\n",
        TARGET + "    api_key: !SECRET x\n",
        "targets: [{name: llama, base_url: 'ftp://me:SECRET@llama:8000'}]\n",
        "targets: [{name: llama, base_url: 'http://me:SECRET@llama:8000/?a'}]\n",
        "targets: [{name: llama, base_url: 'http://me:SECRET x@llama:8000'}]\n",
        "prometheus: {url: 'me:SECRET@prometheus:9090'}\n" + TARGET,
        TARGET + "    metrics_url: 'https//me:SECRET@llama/metrics'\n",
    ],
)
@pytest.mark.fault(
    "SE23",
    "A secret written in the wrong place of the configuration",
    area="Security",
    users_see="the message does not show it",
    stays="-",
)
def test_a_message_never_shows_a_secret_written_in_the_wrong_place(text: str, tmp_path: Path) -> None:
    assert SECRET not in refusal(text.replace("SECRET", SECRET), tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "api_key_file: ${KEY}",
        "tls: {ca_file: '/etc/${KEY}'}",
        "objectives: ${KEY}",
        "objectives: '${KEY} ${KEY}'",
        "canary: {workload: ${KEY}}",
        "canary: {every: ${KEY}}",
        "canary: {every: ['${KEY}']}",
        "metrics_url: 'ftp://" + "a" * 60 + "/${KEY}'",
        "capacity: {schedule: {cron: '" + " " * 60 + "${KEY}'}}",
        "capacity: {schedule: {cron: '0 4 * * ${KEY}'}}",
        "capacity: {schedule: {cron: '0 4 * * *', timezone: '" + "E" * 60 + "${KEY}'}}",
        "capacity: {mode: ${KEY}}",
        "capacity: {concurrency: ['${KEY}']}",
        "model: '" + "m" * 300 + "${KEY}'",
        "tls: {verify: ${KEY}}",
        "tls: {cert_file: '/etc/${KEY}'}",
        "tls: {cert_file: /dev/null, key_file: '/etc/${KEY}'}",
        "connection: {unix_socket: 'unix:${KEY}'}",
        "connection: {proxy: 'http://me:${KEY}@proxy'}",
        "connection: {proxy: 'http://proxy', proxy_auth_file: 'me:${KEY}'}",
        "connection: {http2: ${KEY}}",
        "connection: {connect_timeout: ${KEY}}",
    ],
)
def test_a_message_shows_the_variable_and_never_its_value(line: str, tmp_path: Path) -> None:
    assert SECRET not in refusal(f"{TARGET}    {line}\n", tmp_path, KEY=SECRET)


def test_a_name_from_the_environment_given_twice_is_not_shown(tmp_path: Path) -> None:
    text = "targets:\n" + "  - {name: '${KEY}', base_url: http://llama}\n" * 2
    assert SECRET not in refusal(text, tmp_path, KEY=SECRET)


def test_credentials_in_an_address_are_refused_whatever_they_contain(tmp_path: Path) -> None:
    message = refusal(f"targets: [{{name: llama, base_url: 'http://me:{SECRET}/x@llama:8000'}}]\n", tmp_path)
    assert SECRET not in message


def test_a_value_cannot_change_the_structure(tmp_path: Path) -> None:
    loaded = config(TARGET + "    model: ${MODEL}\n", tmp_path, MODEL="x\n    api_key: y\n  - {name: other}")
    assert loaded.targets[0].model.startswith("x\n")
    assert loaded.targets[0].api_key is None
    assert len(loaded.targets) == 1


def test_a_value_is_not_expanded_again(tmp_path: Path) -> None:
    assert config(TARGET + "    model: ${A}\n", tmp_path, A="${B}", B="no").targets[0].model == "${B}"


def test_the_printed_configuration_hides_the_api_key(tmp_path: Path) -> None:
    loaded = config(FULL, tmp_path, LLAMA_KEY=SECRET)
    assert loaded.targets[0].secret() == SECRET
    for text in (show(loaded), repr(loaded), str(loaded), loaded.model_dump_json(), str(loaded.model_dump())):
        assert SECRET not in text


def test_the_hash_does_not_depend_on_the_secret_but_on_the_rest(tmp_path: Path) -> None:
    one, other = (config(FULL, tmp_path, LLAMA_KEY=key) for key in (SECRET, "sk-rotated"))
    assert config_hash(one) == config_hash(other)
    assert config_hash(config(FULL.replace("0.95", "0.96"), tmp_path, LLAMA_KEY=SECRET)) != config_hash(one)


@pytest.mark.fault(
    "CO24",
    "An API key that is rotated",
    area="Configuration",
    users_see="nothing",
    stays="the file is read for each request",
)
def test_a_key_file_is_read_again_so_that_rotation_works(tmp_path: Path) -> None:
    key = tmp_path / "llama.key"
    key.write_text("first\n")
    loaded = config(f"{TARGET}    api_key_file: {key}\n", tmp_path)
    assert loaded.targets[0].secret() == "first"
    key.write_text("rotated\r\n")
    assert loaded.targets[0].secret() == "rotated"
    assert "rotated" not in show(loaded)


def test_a_folder_is_not_a_key_file(tmp_path: Path) -> None:
    assert "api_key_file" in refusal(f"{TARGET}    api_key_file: {tmp_path}\n", tmp_path)


def test_a_file_without_certificates_is_not_a_ca_file(tmp_path: Path) -> None:
    """Found at `config check`, and not when the first connection is made."""
    ca = tmp_path / "ca.pem"
    ca.write_text("not a certificate\n")
    assert "tls.ca_file" in refusal(f"{TARGET}    tls: {{ca_file: {ca}}}\n", tmp_path)


# --- Accepted ------------------------------------------------------------------------------------------------


def test_the_hosts_of_the_pages_are_that_of_the_external_url_too(tmp_path: Path) -> None:
    hosts = "web_external_url: https://K.example:8443/vllm/\nweb_allowed_hosts: [.b.example]\n"
    loaded = config(f"{hosts}targets: [{{name: a, base_url: 'http://a'}}]\n", tmp_path)
    assert loaded.web_external_url == "https://K.example:8443/vllm"
    assert loaded.page_hosts == ("127.0.0.1", "k.example", ".b.example")


def test_everything_at_once_arrives(tmp_path: Path) -> None:
    loaded = config(FULL, tmp_path, LLAMA_KEY=SECRET)
    llama = loaded.target("llama-8b")
    assert loaded.listen_address == ("::1", 9876)
    assert llama.base_url == "https://llama-8b:8000"
    assert llama.canary.timeout == 60.0
    assert (llama.connection.proxy, llama.connection.connect_timeout) == ("http://proxy:3128", 2.0)
    assert llama.capacity.concurrency == (1, 2, 3)
    assert llama.capacity.budget.tokens_per_run == 2_000_000
    objectives = loaded.objectives_of(llama)
    assert (objectives.name, objectives.window_s, objectives.availability) == ("chat", 2592000.0, 0.999)
    assert objectives.latencies() == {"ttft": Objective(0.95, 0.5), "tpot": Objective(0.9, 0.035)}
    assert loaded.objectives_of(loaded.target("qwen")).latencies() == {}


@pytest.mark.parametrize(
    ("written", "count"),
    [
        ("8B", 8e9),
        ("700M", 7e8),
        ("1.5b", 1.5e9),
        ("1T", 1e12),
        ("8e9", 8e9),
        ("8.0e+9", 8e9),
        ("8_030_261_248", 8030261248),
    ],
)
def test_parameters_are_read_as_people_write_them(written: str, count: float, tmp_path: Path) -> None:
    loaded = config(f"{TARGET}    capacity: {{server: {{gpu: NVIDIA L4, parameters: {written}}}}}\n", tmp_path)
    assert loaded.targets[0].capacity.server.parameters == count


@pytest.mark.parametrize("written", ["0", "-8B", "B", ".inf", ".nan", "infB", "true", "[8]", "{}", "1e30", "8 GB"])
def test_an_invalid_number_of_parameters_is_refused_in_one_line(written: str, tmp_path: Path) -> None:
    text = f"{TARGET}    capacity: {{server: {{gpu: NVIDIA L4, parameters: {written}}}}}\n"
    assert "capacity.server.parameters: expected a number of parameters" in refusal(text, tmp_path)


def test_one_target_is_enough_and_gets_no_step_up_load(tmp_path: Path) -> None:
    loaded = config(TARGET, tmp_path)
    assert loaded.targets[0].capacity.mode == "forecast"
    assert loaded.objectives_of(loaded.targets[0]).name == "default"
    assert loaded.workload("default").prompt_tokens == 256


def test_an_unknown_target_of_the_command_line_is_named_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--target lama: .*did you mean 'llama'\?.*expected one of llama"):
        config(TARGET, tmp_path).target("lama")


def test_a_merge_key_is_no_duplicate(tmp_path: Path) -> None:
    text = "workloads:\n  a: &a {prompt_tokens: 5}\n  b: {<<: *a, output_tokens: 6}\n  c: {<<: *a, prompt_tokens: 7}\n"
    loaded = config(text + TARGET, tmp_path)
    assert (loaded.workload("b").prompt_tokens, loaded.workload("c").prompt_tokens) == (5, 7)


@pytest.mark.parametrize("word", ["off", "'off'", "Off"])
def test_capacity_can_be_off_without_quotes(word: str, tmp_path: Path) -> None:
    """YAML 1.1 reads a bare `off` as false."""
    assert config(f"{TARGET}    capacity: {{mode: {word}}}\n", tmp_path).targets[0].capacity.mode == "off"


@pytest.mark.parametrize(
    ("written", "effective"),
    [
        ("http://llama:8000/", "http://llama:8000"),
        ("http://llama:8000/v1", "http://llama:8000"),
        ("http://llama:8000/v1/", "http://llama:8000"),
        ("http://gateway/llama/v1", "http://gateway/llama"),
        ("http://v1", "http://v1"),
        ("https://[::1]:8000", "https://[::1]:8000"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
    ],
)
def test_an_address_may_end_in_v1(written: str, effective: str, tmp_path: Path) -> None:
    assert config(f"targets: [{{name: a, base_url: '{written}'}}]\n", tmp_path).targets[0].base_url == effective


@pytest.mark.parametrize(
    "url",
    ["http://llama:port", "http://llama:99999", "http://[::1", "http://:8000", "http://llama:8000:9000", "http://ll\x01ma",
     "http://", "http:///v1", "http://llama:0x50", "http://..", "http://" + "l" * 64 + ".example.com", "http://[lama]:80"],
)  # fmt: skip
def test_an_address_that_no_client_can_use_is_refused(url: str, tmp_path: Path) -> None:
    assert "base_url" in refusal(f"targets: [{{name: a, base_url: {json.dumps(url)}}}]\n", tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "workloads: {w: {prompt_tokens: true}}\n",
        "workloads: {w: {prompt_tokens: {lognormal: {median: 100, sigma: yes, max: 200}}}}\n",
        "workloads: {w: {prompt_tokens: {lognormal: {median: 200, sigma: 1, max: 100}}}}\n",
        "listen: 127.0.0.1:99999\n",
        f"objectives: {{o: {{window: {'9' * 400}s}}}}\n",
    ],
)
def test_nonsense_that_looks_like_a_number_is_refused(text: str, tmp_path: Path) -> None:
    assert refusal(text + TARGET, tmp_path)


@pytest.mark.parametrize(
    "budget", ["seconds: .inf", "over_objective_seconds: .inf", "tokens_per_run: .inf", "seconds: .nan"]
)
def test_a_budget_is_finite(budget: str, tmp_path: Path) -> None:
    assert "budget" in refusal(f"{TARGET}    capacity: {{budget: {{{budget}}}}}\n", tmp_path)


def test_the_printed_configuration_parses_to_the_same_configuration(tmp_path: Path) -> None:
    loaded = config(FULL, tmp_path, LLAMA_KEY=SECRET)
    again = config_from(yaml.safe_load(show(loaded)), "shown", {})
    without_key = [c.model_dump(exclude={"targets": {"__all__": {"api_key"}}}) for c in (loaded, again)]
    assert without_key[0] == without_key[1]
    assert config_hash(again) == config_hash(loaded)


def test_no_promise_of_availability_survives_being_shown(tmp_path: Path) -> None:
    """Its default is a promise, so leaving out "none" would promise again."""
    loaded = config("objectives: {default: {availability: null}}\n" + TARGET, tmp_path)
    assert loaded.objectives_of(loaded.targets[0]).availability is None
    again = config_from(yaml.safe_load(show(loaded)), "shown", {})
    assert again.objectives_of(again.targets[0]).availability is None
    promised = config("objectives: {default: {}}\n" + TARGET, tmp_path)
    assert config_hash(loaded) != config_hash(promised)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_shipped_examples_are_valid_by_the_code_and_by_the_schema(path: Path) -> None:
    raw = yaml.safe_load(path.read_text())
    jsonschema.validate(raw, json_schema())
    loaded = config_from(raw, str(path), {"LLAMA_KEY": "x"})
    assert show(config_from(yaml.safe_load(show(loaded)), "shown", {})) == show(loaded)


@pytest.mark.slow
def test_the_schema_is_one_and_accepts_a_full_configuration() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(FULL), schema)


@pytest.mark.parametrize(
    "text",
    [
        TARGET + "    canary: {every: 15}\n",
        TARGET + "    canary: {evry: 15s}\n",
        TARGET + "    capacity: {mode: verfy}\n",
        TARGET + "    capacity: {server: {parameters: 8}}\n",
        TARGET + "    capacity: {server: {parameters: eight}}\n",
        TARGET + "    capacity: {server: {weight_bits: 6}}\n",
        "targets: []\n",
        "objectives: {a: {availability: 99}}\n" + TARGET,
        "zzz: 1\n" + TARGET,
        "workloads: {w: {prompt_tokens: 0}}\n" + TARGET,
        "workloads: {w: {prompt_tokens: {lognormal: {median: 9, max: 9, sigma: 4}}}}\n" + TARGET,
        "load: {ray: {address: auto, workers: 257}}\n" + TARGET,
        TARGET + "    canary: {known_answer: {max_tokens: 4097}}\n",
    ],
)
def test_the_schema_refuses_what_the_code_refuses(text: str) -> None:
    assert not jsonschema.Draft202012Validator(json_schema()).is_valid(yaml.safe_load(text))


def test_the_defaults_in_the_schema_fit_the_schema() -> None:
    schema = json_schema()
    for model in (schema, *schema["$defs"].values()):
        for name, part in model.get("properties", {}).items():
            fits = jsonschema.Draft202012Validator({**part, "$defs": schema["$defs"]}).is_valid
            assert "default" not in part or fits(part["default"]), f"{name}: {part['default']!r}"


# --- Anything at all -----------------------------------------------------------------------------------------

KEYS = [
    *(
        "targets",
        "name",
        "base_url",
        "objectives",
        "workloads",
        "ttft",
        "ratio",
        "within",
        "prompt_tokens",
        "lognormal",
    ),
    *("prefix", "canary", "every", "capacity", "schedule", "cron", "api_key", "[key]", "plain", "mapping", "zzz"),
    *("tls", "cert_file", "key_file", "connection", "unix_socket", "proxy", "proxy_auth_file", "http2"),
]
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("abc $-{}é", max_size=5) | st.dates()
    | st.sampled_from(["15s", "a", "http://a", "0 4 * * *", "${KEY}", SECRET, "", "x" * 300, "unique", "auto"])
)  # fmt: skip
TREES = st.recursive(
    LEAVES,
    lambda deeper: st.lists(deeper, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | LEAVES, deeper, max_size=4),
    max_leaves=12,
)


def is_refused_in_words(raw: object, start: str) -> bool:
    """Whether `raw` is refused; what is accepted can be shown."""
    try:
        show(config_from(raw, "FILE", {"KEY": "k"}))
    except ConfigError as error:
        bad = [line for line in str(error).split("\n") if not (line.startswith(start) and line.isprintable())]
        return bad == [] or pytest.fail(f"{bad}")
    return False


@examples(60)
@given(st.sampled_from(["targets", "objectives", "workloads", "store", "prometheus", "listen", "zzz", None]), TREES)
@pytest.mark.fault(
    "CO5",
    "Any tree of YAML",
    area="Configuration",
    users_see="a configuration, or lines that say why not",
    stays="-",
)
def test_any_tree_is_a_configuration_or_lines_that_say_why_not(key: str | None, tree: Any) -> None:
    raw = tree if key is None else {**yaml.safe_load(TARGET), key: tree}
    assert is_refused_in_words(raw, "FILE: ") or "targets" in raw


@examples(60)
@given(TREES)
def test_any_target_is_accepted_or_refused_in_words(tree: Any) -> None:
    base = {"name": "a", "base_url": "http://a"}
    target = {**base, **tree} if isinstance(tree, dict) else {**base, "canary": tree, "tls": tree, "connection": tree}
    assert is_refused_in_words({"targets": [target]}, "FILE: targets") or isinstance(tree, dict)


def test_the_web_configuration_is_judged_with_it_and_its_passwords_are_not_repeated(tmp_path: Path) -> None:
    web = tmp_path / "web.yml"
    text = f"web_config_file: {web}\n{TARGET}"
    assert refusal(text, tmp_path).endswith("cannot be read; create it, or fix the path")
    web.write_text("basic_auth_users: {anna: sesame}\n")
    said = refusal(text, tmp_path)
    assert f"web_config_file: {web}: basic_auth_users.anna: expected a bcrypt hash" in said
    assert "sesame" not in said
    web.write_text("{}\n")
    assert config(text, tmp_path).web_config_file == web


@pytest.mark.parametrize("name", ["x" * 300, "file/below", "missing", "nul\0"])
def test_a_folder_that_cannot_even_be_looked_at_is_a_line_of_the_refusal(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / name
    raw = {"lock_dir": str(folder), "targets": [{"name": "a", "base_url": "http://a"}]}
    with pytest.raises(ConfigError) as refused:
        config_from(raw, "FILE")
    (said,) = str(refused.value).splitlines()
    assert said.startswith("FILE: lock_dir: ")
    assert said.endswith("is not a writable directory; create it, or fix the path")


def test_a_folder_below_one_that_may_not_be_entered_is_no_folder_to_write_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", denied)
    assert folder_problem(Path("/locked/locks")) is not None


HEADERS = """\
    auth_header: api-key
    headers:
      x-tenant: team-a
      x-route: {secret: "${ROUTE}"}
      x-gateway-key: {file: FILE}
"""


@pytest.mark.fault("SH4")
def test_headers_are_plain_or_secret_and_files_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "gateway"
    file.write_text(f"{SECRET}-1\n")
    loaded = config(TARGET + HEADERS.replace("FILE", str(file)), tmp_path, ROUTE=f"{SECRET}-2")
    where = endpoint(loaded.servers[0])
    assert where.plain_headers == {"x-tenant": "team-a"}
    assert where.secret_headers() == {"x-route": f"{SECRET}-2", "x-gateway-key": f"{SECRET}-1"}
    assert where.auth_header.headers("k") == {"api-key": "k"}
    file.write_text(f"{SECRET}-3")
    assert where.secret_headers()["x-gateway-key"] == f"{SECRET}-3"
    assert "team-a" in show(loaded)
    assert SECRET not in show(loaded)
    assert SECRET not in repr(loaded)


@pytest.mark.parametrize(
    ("given", "run"), [("", 5_000_000), ("tokens_per_day: 400_000", 400_000), ("tokens_per_day: 9_000_000", 5_000_000)]
)
def test_a_run_may_spend_no_more_than_a_day_by_default(tmp_path: Path, given: str, run: int) -> None:
    loaded = config(f"{TARGET}    capacity: {{budget: {{{given}}}}}\n", tmp_path)
    assert loaded.targets[0].capacity.budget.tokens_per_run == run
