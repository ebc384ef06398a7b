"""Our rows of vLLM's flags, beside the configuration classes of the vLLM that is installed."""

import json
import subprocess
from pathlib import Path

import pytest
from vllm_fields import CLASSES, MEASURED, WITHOUT_EFFECT, fields_of, short_forms, sources_of

from probe.core.server_limits import DEFAULTS
from probe.core.vllm_command import PARTS
from probe.core.vllm_flags import COMPILATION, FLAGS, KV_TRANSFER, SHORT_FORMS, SPECULATIVE, UNREAD

pytestmark = pytest.mark.vllm
_UNREAD = {name for each in UNREAD for name in each.names}
# Other ways to state a row, and the parts of an object that is a row.
_STATED = {
    "cudagraph_capture_sizes", "spec_method", "spec_model", "spec_tokens", "method", "num_speculative_tokens",
    KV_TRANSFER, COMPILATION,
}  # fmt: skip
_PRINT_DEFAULTS = """
import json, types
from vllm.engine import arg_utils
from vllm.usage.usage_lib import UsageContext
def defaults(name, gib, capability=(9, 0), cpu=False):
    arg_utils.current_platform = types.SimpleNamespace(
        get_device_total_memory=lambda: gib * 2**30, get_device_name=lambda: name, is_tpu=lambda: False,
        is_cpu=lambda: cpu, is_device_capability=lambda wanted: wanted == capability)
    return [each[UsageContext.OPENAI_API_SERVER] for each in arg_utils.EngineArgs.get_batch_defaults(1)[::-1]]
print(json.dumps([
    defaults("NVIDIA B200", 179), defaults("NVIDIA H100 80GB HBM3", 79), defaults("NVIDIA A100-SXM4-80GB", 79),
    defaults("NVIDIA L4", 22), defaults("cpu", 500, cpu=True), defaults("NVIDIA GB10", 119, (12, 1)),
]))
"""


@pytest.fixture(scope="module")
def vllm(vllm_python: str) -> Path:
    return sources_of(vllm_python)


def test_each_field_of_vllm_is_read_or_its_effect_is_known(vllm: Path) -> None:
    """A new flag of vLLM fails here: give it a row, or say why it needs none."""
    rows = {flag.name for flag in FLAGS} | {flag.config.rpartition(".")[2] for flag in FLAGS} | set(PARTS)
    known = rows | {flag.label for flag in FLAGS} | _UNREAD | _STATED | WITHOUT_EFFECT | MEASURED
    unknown = {name: fields.keys() - known for name, fields in fields_of(vllm).items()}
    assert {name: fields for name, fields in unknown.items() if fields} == {}


def test_each_row_is_a_flag_of_vllm(vllm: Path) -> None:
    fields, short = fields_of(vllm), short_forms(vllm)
    of_section = {section: fields[name] for names in CLASSES.values() for name, section in names.items()}
    arguments = fields["EngineArgs"].keys() | fields["AsyncEngineArgs"].keys() | set(short.values())
    for flag in FLAGS:
        section, _, name = flag.config.rpartition(".")
        assert not flag.config or name in of_section[section], flag
        assert flag.config or flag.name in arguments | set(PARTS) or flag.label, flag
        assert not flag.label or flag.label in fields["CacheConfig"], flag
        assert not flag.short or short[flag.short] == flag.name, flag
        usual = str(of_section[section][name]).removesuffix(".0") if flag.default else ""
        assert usual in (flag.default, "None"), flag  # None: vLLM decides
    of_rows = {flag.name for flag in FLAGS} | {SPECULATIVE, COMPILATION}
    assert {form for form, name in short.items() if name in of_rows} <= SHORT_FORMS.keys()


@pytest.mark.long
def test_the_defaults_for_each_gpu_are_vllms(vllm: Path, vllm_python: str) -> None:
    done = subprocess.run(
        [vllm_python, "-c", _PRINT_DEFAULTS], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *others, gb10 = json.loads(done.stdout.splitlines()[-1])
    huge, large, small, cpu = ([each.max_num_seqs, each.max_num_batched_tokens] for each in DEFAULTS)
    assert others == [huge, large, small, small, cpu]
    knows_gb10 = "is_gb10" in (vllm / "engine/arg_utils.py").read_text()  # from 0.33 on
    assert gb10 == (small if knows_gb10 else large)
