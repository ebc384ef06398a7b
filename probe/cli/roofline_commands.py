"""The command that computes what a model can do at most on its GPUs: roofline."""

from pathlib import Path
from typing import Annotated

import typer

from probe.cli.output import print_json
from probe.cli.parameters import Json
from probe.core.errors import ConfigError


def roofline(
    gpu: Annotated[str, typer.Option(help="GPU model, such as H100, L40S or 'NVIDIA A100-SXM4-80GB'.")],
    params: Annotated[str, typer.Option(help="Parameters of the model, such as 8B or 700M.")],
    active_params: Annotated[
        str | None, typer.Option(help="Of a mixture of experts, those used for one token. Default: all.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, max=1024, help="GPUs that share each step (tensor parallel).")] = 1,
    weight_bits: Annotated[int, typer.Option(help="Bits per weight: 4, 8 or 16. 8 implies FP8 compute.")] = 16,
    model_config: Annotated[
        Path | None, typer.Option(help="The model's config.json, for the shape of its KV cache.")
    ] = None,
    layers: Annotated[int | None, typer.Option(min=1, max=10_000, help="Layers, instead of --model-config.")] = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, max=10_000, help="Key-value heads, likewise.")] = None,
    head_dim: Annotated[int | None, typer.Option(min=1, max=100_000, help="Size of a head, likewise.")] = None,
    kv_bits: Annotated[int, typer.Option(help="Bits per element of the KV cache: 8 or 16.")] = 16,
    memory_utilization: Annotated[
        float,
        typer.Option(min=0.01, max=1, help="Share of GPU memory that the server may use: --gpu-memory-utilization."),
    ] = 0.9,
    workload: Annotated[
        str | None, typer.Option(help="Preset with the lengths, such as long-prefill. Default: default, 256 and 128.")
    ] = None,
    prompt_tokens: Annotated[int | None, typer.Option(min=1, max=2_000_000, help="Prompt length instead.")] = None,
    output_tokens: Annotated[int | None, typer.Option(min=1, max=2_000_000, help="Answer length instead.")] = None,
    result: Annotated[
        Path | None,
        typer.Option(
            help="File of `ramp --concurrency ... --json`: its load levels beside the bounds, at its lengths."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute the bounds of a model on its GPUs, before any run: decode, prefill and KV cache.

    Arithmetic from published peaks; no server is asked. What the bounds assume is printed with them.
    Exit status: 0 done, 2 something is missing or wrong.
    """
    from probe.capacity.model.hardware_bounds import ModelShape, hardware_bounds
    from probe.cli.roofline import KvOptions, Lengths, gpu_spec, kv_of, lengths_of, parameters_of, steps_of
    from probe.report.bounds_text import bounds_json, bounds_words

    if weight_bits not in (4, 8, 16) or kv_bits not in (8, 16):
        raise ConfigError("--weight-bits, --kv-bits: expected 4, 8 or 16 bits per weight, and 8 or 16 per KV element")
    kv = kv_of(KvOptions(model_config, layers, kv_heads, head_dim, kv_bits))
    shape = ModelShape(*parameters_of(params, active_params), weight_bits, gpus, kv)
    prompt, output, shared = lengths_of(Lengths(workload, prompt_tokens, output_tokens, result))
    bounds = hardware_bounds(shape, gpu_spec(gpu), prompt, output, memory_utilization, shared_tokens=shared)
    measured = steps_of(result) if result is not None else ()
    if as_json:
        print_json(bounds_json(bounds, measured))
    else:
        typer.echo(bounds_words(bounds, measured))
