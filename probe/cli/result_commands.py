"""Commands that read files and compute, without a server: compare, table, plan, roofline, trace."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probe.cli.output import print_error, print_json
from probe.cli.parameters import Json, MaybeConfigFile, OneTarget, grouped
from probe.core.errors import ConfigError
from probe.core.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from probe.capacity.trend.compare import Comparison
    from probe.capacity.trend.measurement import Measurement


def compare(
    base: Annotated[Path, typer.Argument(help="The measurement to compare with, or a folder of them.", metavar="BASE")],
    new: Annotated[
        Path,
        typer.Argument(
            help="The measurement to judge, or a folder: files with the same name are compared.", metavar="NEW"
        ),
    ],
    tolerance: Annotated[
        str,
        typer.Option(
            help="Changes up to this size count as equal; with 0% only the intervals decide.", metavar="SHARE"
        ),
    ] = "5%",
    show_all: Annotated[bool, typer.Option("--all", help="Show equal metrics too.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Compare even results that are not comparable, and name the differences.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare results of `ramp --json` or of another benchmark, such as vllm bench serve, guidellm or genai-perf.

    A metric is unclear where it has changed by more than the tolerance, but the intervals overlap.
    Exit status: 0 nothing is worse, 1 something is, 2 not comparable.
    """
    from probe.capacity.trend import compare as comparing
    from probe.cli.options import share
    from probe.report.comparison import comparison_json
    from probe.report.measured_file import paired_files, read_measured

    allowed = share(tolerance, "--tolerance")
    files, alone = paired_files(base, new)
    for file in alone:
        typer.echo(f"{file}: not compared, since the other folder has no file of this name", err=True)
    pairs = [(read_measured(one), read_measured(other)) for one, other in files]
    judged = [(before, after, comparing.compare(before, after, allowed)) for before, after in pairs]
    told = [each for each in judged if not each[2].problems or (force and each[2].rows)]
    for _, _, found in judged:
        hint = "; to compare them anyway, use --force" if found.rows else ""
        for problem in () if force and found.rows else found.problems:
            print_error(ConfigError(f"not comparable: {one_line(problem, 400)}{hint}"))
    if as_json and told:
        found_json = [comparison_json(found, before, after, allowed) for before, after, found in told]
        print_json(found_json if base.is_dir() else found_json[0])
    elif told:
        _print_comparisons(told, allowed, with_same=show_all)
    if any(found.has_regressed for _, _, found in told):
        raise typer.Exit(1)
    raise typer.Exit(0 if len(told) == len(judged) else 2)


def _print_comparisons(
    told: "Sequence[tuple[Measurement, Measurement, Comparison]]", tolerance: float, *, with_same: bool
) -> None:
    """Print each comparison: the verdict, what has changed, and notes."""
    from rich.console import Console

    from probe.report.comparison import comparison_table, comparison_verdict, comparison_words

    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    for before, after, found in told:
        if len(told) > 1:
            console.print(f"{one_line(before.name)} -> {one_line(after.name)}", markup=False)
        console.print(comparison_verdict(found, tolerance), markup=False)
        if (changes := comparison_table(found, before, after, with_same=with_same)) is not None:
            console.print(changes)
        if words := comparison_words(found):
            console.print(words, markup=False)


def table(
    results: Annotated[
        list[Path],
        typer.Argument(help="Files of `ramp --json` or of other benchmarks, or folders of them.", metavar="RESULT"),
    ],
    steps: Annotated[bool, typer.Option("--steps", help="Print a row for each step, not for each result.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV in base units instead of Markdown.")] = False,
    as_bench: Annotated[
        bool, typer.Option("--bench-json", help="Print a line for each step, in the JSON of vllm bench serve.")
    ] = False,
    append: Annotated[
        Path | None,
        typer.Option(help="Append the conditions and steps of each result to this Markdown file instead."),
    ] = None,
    gpu_hour_price: Annotated[
        float | None,
        typer.Option(min=0, help="Price of a GPU hour, for the price of accepted output tokens.", metavar="PRICE"),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="GPUs of the server. Default: by the server's flags, or 1.")
    ] = None,
) -> None:
    """Print results as one table, a row for each in the order of the files. Reads what `compare` reads.

    With --steps, what the steps show follows: growth, saturation, the bottleneck, tails.
    Exit status: 0 done, 2 a file is not a result.
    """
    from probe.cli.options import price_of
    from probe.core.result import CapacityResult
    from probe.report import result_table
    from probe.report.bench_json import bench_lines
    from probe.report.files import append_file
    from probe.report.measured_file import read_any, result_files
    from probe.report.result_table import result_section

    if sum((as_csv, as_bench, append is not None)) > 1:
        raise ConfigError("--csv, --bench-json, --append: expected one of them; remove the others")
    price = price_of(gpu_hour_price, gpus)
    read = [read_any(file) for path in results for file in result_files(path)]
    if append is not None:
        append_file(append, "".join(result_section(each, price) for each in read), "--append")
        return
    if as_bench:
        if foreign := [each.name for each in read if not isinstance(each, CapacityResult)]:
            raise ConfigError(f"--bench-json: {one_line(foreign[0])} is of another benchmark; leave it out")
        typer.echo(bench_lines(each for each in read if isinstance(each, CapacityResult)), nl=False)
        return
    rows = (result_table.step_table if steps else result_table.capacity_table)(read, price)
    findings = result_table.sweep_findings(read) if steps else ""
    typer.echo(result_table.as_csv(rows) if as_csv else result_table.as_markdown(rows) + findings, nl=False)


@dataclass(frozen=True, slots=True)
class PeakOptions:
    """The peak that replicas are planned for: one of the first three."""

    peak: Annotated[
        float | None,
        typer.Option(help="Peak in requests/s, for requests like those of the result's workload.", metavar="RATE"),
    ] = None
    peak_output_tokens: Annotated[
        float | None, typer.Option(help="Peak in output tokens/s instead.", metavar="RATE")
    ] = None
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="URL|FILE",
            help="Prometheus to read the users' peak from instead: their highest five minutes in --weeks. An address,"
            " or a file.yml with the section prometheus of a configuration, for credentials.",
        ),
    ] = None
    prometheus_label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Label of its series there, such as cluster=eu; can be repeated."),
    ] = None
    weeks: Annotated[int, typer.Option(min=1, max=12, help="Weeks that --prometheus looks back.")] = 4


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a plan leaves free at the peak, and what a GPU costs."""

    margin: Annotated[
        str,
        typer.Option(
            help="Share of each replica's capacity to keep free at the peak: no balancer divides requests evenly,"
            " and latencies rise steeply at the knee.",
            metavar="SHARE",
        ),
    ] = "20%"
    spare: Annotated[int, typer.Option(min=0, max=1000, help="Replicas that may be lost at the peak.")] = 1
    gpu_hour_price: Annotated[
        float | None, typer.Option(min=0, help="Price of a GPU hour, for the price of output tokens.", metavar="PRICE")
    ] = None
    gpus: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="GPUs of a replica. Default: by the server's flags, or 1.")
    ] = None


@grouped
def plan(
    results: Annotated[
        list[Path] | None, typer.Argument(help="Files of `ramp --json`; each gets a plan.", metavar="RESULT")
    ] = None,
    config: MaybeConfigFile = None,
    target: OneTarget = None,
    peak: PeakOptions = PeakOptions(),
    options: PlanOptions = PlanOptions(),
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a decision record in Markdown, with the server's settings.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Plan replicas for a peak, from measured or forecast capacities, and say what other settings would give.

    Takes result files, or with -c the target's last capacity in the store of the monitor. Adds no load.
    Exit status: 0 done, 2 no plan can be made.
    """
    from probe.cli.planning import check_options, peak_of, plan_replicas, sources
    from probe.core.errors import ConfigError
    from probe.report.progress import following
    from probe.report.replica_plan import plan_json, plan_markdown, plan_words

    if as_markdown and as_json:
        raise ConfigError("--markdown, --json: expected one of them; remove the other")
    check_options(peak, options)
    if target is not None and config is None and peak.prometheus is None:
        raise ConfigError("--target: needs -c FILE or --prometheus URL; give one, or remove it")
    found = sources(results or [], config, target)
    with following() as follow:
        plans = [
            plan_replicas(source, result, peak_of(peak, result, target), options, follow.phase)
            for source, result in found
        ]
    if as_json:
        print_json({"schema": "kneewatch.plan/1", "plans": [plan_json(each) for each in plans]})
    else:
        typer.echo("\n\n".join((plan_markdown if as_markdown else plan_words)(each) for each in plans))


@dataclass(frozen=True, slots=True)
class KvOptions:
    """The shape of the KV cache: by a config.json, or by three numbers."""

    model_config: Annotated[
        Path | None, typer.Option(help="The model's config.json, for the shape of its KV cache.")
    ] = None
    layers: Annotated[int | None, typer.Option(min=1, max=10_000, help="Layers, instead of --model-config.")] = None
    kv_heads: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Key-value heads, instead of --model-config.")
    ] = None
    head_dim: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Size of a head, instead of --model-config.")
    ] = None
    kv_token_bytes: Annotated[
        float | None,
        typer.Option(
            min=1, max=1e9, help="Bytes of a token in the KV cache of all GPUs, instead of --model-config.", metavar="N"
        ),
    ] = None
    kv_bits: Annotated[int, typer.Option(help="Bits per element of the KV cache: 8 or 16.")] = 16
    block_size: Annotated[
        int, typer.Option(min=1, max=1024, help="Tokens in a block of the KV cache: --block-size.")
    ] = 16


@dataclass(frozen=True, slots=True)
class GpuPeaks:
    """A GPU by its name, or by its peaks; these also replace those of a name."""

    gpu: Annotated[
        str | None,
        typer.Option(help="GPU model, such as H100, L40S or 'NVIDIA A100-SXM4-80GB'.", metavar="NAME"),
    ] = None
    bandwidth: Annotated[
        float | None,
        typer.Option(min=1, max=1e6, help="Memory bandwidth of a GPU in GB/s, such as a measured one.", metavar="GB/S"),
    ] = None
    flops: Annotated[
        float | None,
        typer.Option(min=0.1, max=1e6, help="TFLOP/s of a GPU at the precision it computes in.", metavar="TFLOP/S"),
    ] = None
    memory: Annotated[str | None, typer.Option(help="Memory of a GPU, such as 80GB or 80GiB.", metavar="SIZE")] = None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What of a GPU's memory the KV cache does not have."""

    memory_utilization: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=1,
            help="Share of GPU memory that the server may use: --gpu-memory-utilization.",
            metavar="SHARE",
        ),
    ] = 0.9
    weights: Annotated[
        str | None,
        typer.Option(
            help="Weights on each GPU, such as 32.5GB. Default: by --params and --weight-bits.", metavar="SIZE"
        ),
    ] = None
    activations: Annotated[
        str | None,
        typer.Option(help="Activations, CUDA graphs and buffers on each GPU, such as 2GB. Default: 0.", metavar="SIZE"),
    ] = None


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of requests: by a preset, by two numbers, or as in a result."""

    workload: Annotated[
        str | None,
        typer.Option(
            help="Preset with the lengths, such as long-prefill. Default: default, 256 and 128.", metavar="NAME"
        ),
    ] = None
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, max=2_000_000, help="Prompt length in tokens, instead of --workload.")
    ] = None
    output_tokens: Annotated[
        int | None, typer.Option(min=1, max=2_000_000, help="Output length in tokens, instead of --workload.")
    ] = None
    result: Annotated[
        Path | None,
        typer.Option(
            help="File of `ramp --concurrency` or of another benchmark: show its steps with the bounds, at its lengths."
        ),
    ] = None


@grouped
def roofline(
    params: Annotated[str, typer.Option(help="Parameters of the model, such as 8B or 700M.", metavar="COUNT")],
    peaks: GpuPeaks = GpuPeaks(),
    active_params: Annotated[
        str | None,
        typer.Option(help="For a mixture of experts: parameters used for one token. Default: all.", metavar="COUNT"),
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, max=1024, help="GPUs that share each step (tensor parallel).")] = 1,
    weight_bits: Annotated[int, typer.Option(help="Bits per weight: 4, 8 or 16. 8 implies FP8 compute.")] = 16,
    kv: KvOptions = KvOptions(),
    memory: MemoryUse = MemoryUse(),
    lengths: Lengths = Lengths(),
    as_json: Json = False,
) -> None:
    """Compute the bounds of a model on its GPUs, before any run: decode, prefill and KV cache.

    Computes from published or given peaks, and asks no server. The assumptions are printed with the bounds.
    Exit status: 0 done, 2 something is missing or wrong.
    """
    from probe.capacity.model.hardware_bounds import hardware_bounds
    from probe.cli.roofline import gpu_spec, lengths_of, levels_of_file, model_shape
    from probe.report.bounds_text import bounds_json, bounds_words

    shape = model_shape(params, active_params, weight_bits, gpus, kv, memory)
    prompt, output, shared = lengths_of(lengths)
    share = memory.memory_utilization
    bounds = hardware_bounds(shape, gpu_spec(peaks), prompt, output, share, shared_tokens=shared)
    measured = levels_of_file(lengths.result) if lengths.result is not None else ()
    if as_json:
        print_json(bounds_json(bounds, measured))
    else:
        typer.echo(bounds_words(bounds, measured))


def trace(
    file: Annotated[
        Path, typer.Argument(help="The trace to read, in any of the formats of `ramp --trace`.", metavar="FILE")
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write it to this file in Kneewatch's format.")
    ] = None,
) -> None:
    """Describe a recorded trace, and write it as times, lengths and common beginnings, without any text.

    Exit status: 0 done, 2 could not read or write it.
    """
    from probe.load.trace_file import read_trace, trace_lines
    from probe.report.files import write_file
    from probe.report.workload_text import trace_words

    found = read_trace(file, "FILE")
    if out is not None:
        write_file(out, "".join(trace_lines(found)), "-o")
    sys.stdout.write(f"{trace_words(found)}\n")
