"""What a result says of where it comes from."""

from dataclasses import replace

from example_records import result, snapshot

from probe.core.provenance import Provenance, cuda_words, gpu_facts, kv_facts, version_facts, with_gpus
from probe.core.snapshot import Gpu, GpuSnapshot

H100 = Gpu(
    {"gpu": "0", "modelName": "NVIDIA H100 80GB HBM3", "Hostname": "gpu-node-9"},
    {},
    {"driver": "595.58.03", "cuda": "13.0"},
)


def test_gpus_tell_their_models_host_and_versions() -> None:
    other = replace(H100, labels={**H100.labels, "gpu": "1"})
    assert gpu_facts(GpuSnapshot(0, 0.0, "dcgm", (H100, other))) == {
        "gpu": "2x NVIDIA H100 80GB HBM3", "node": "gpu-node-9", "driver": "595.58.03", "cuda": "13.0",
    }  # fmt: skip
    stated = Provenance(facts={"node": "rack-7"})
    told = with_gpus(stated, GpuSnapshot(0, 0.0, "dcgm", (H100,)))
    assert told is not None
    assert told.facts["node"] == "rack-7", "what was stated counts more"
    assert told.facts["driver"] == "595.58.03"
    assert with_gpus(None, None) is None
    assert gpu_facts(None) == gpu_facts(GpuSnapshot(0, 0.0, "nvml", (Gpu({}, {}),))) == {}


def test_instances_of_a_divided_gpu_are_told_as_parts_of_it() -> None:
    def instance(number: str) -> Gpu:
        return replace(H100, labels=H100.labels | {"UUID": "GPU-a", "GPU_I_ID": number, "GPU_I_PROFILE": "3g.40gb"})

    board = replace(H100, labels=H100.labels | {"UUID": "GPU-a"})
    for gpus in ((board, instance("1"), instance("2")), (instance("1"), instance("2"))):
        found = gpu_facts(GpuSnapshot(0, 0.0, "dcgm", gpus))
        assert (found["gpu"], found["node"]) == ("2x NVIDIA H100 80GB HBM3 MIG 3g.40gb", "gpu-node-9")


def test_cuda_is_a_version_and_not_a_number() -> None:
    assert [cuda_words(text) for text in ("12080", "11040", "13.0", "")] == ["12.8", "11.4", "13.0", ""]


def test_what_a_result_does_not_say_is_named() -> None:
    made = Provenance(kneewatch="0.1.0", facts={"image": "vllm:v0.32", "driver": "595.58.03"})
    told = replace(result(), provenance=made)
    told = replace(told, context=replace(told.context, flags={"dtype": "bfloat16"}, gpu="H100"))
    assert told.missing_facts == ("commit", "node", "cuda", "tensor_parallel_size", "max_model_len")
    assert result().missing_facts == ()


def test_a_version_between_releases_names_its_commit() -> None:
    assert version_facts("0.32.1.dev7+g4f1c2ab8") == {"commit": "4f1c2ab8"}
    assert version_facts("0.32.1.dev7+cu129.g4f1c2ab8.d20261124") == {"commit": "4f1c2ab8"}
    for version in (None, "0.32.0", "0.32.0+cu129", "unknown", "0.32.0+gpu"):
        assert version_facts(version) == {}


def test_the_size_of_a_kv_cache_is_a_fact_where_it_is_known() -> None:
    assert kv_facts(snapshot(kv_cache_tokens=20_496.0)) == {"kv_cache_tokens": "20496"}
    assert kv_facts(snapshot()) == kv_facts(None) == {}
