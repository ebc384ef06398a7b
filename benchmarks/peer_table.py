"""The comparison of README.md, and the sources of its cells for docs/evidence/comparison.md; read in November 2026."""

from collections.abc import Iterator

SOURCES = "docs/evidence/comparison.md"
COLUMNS = (
    "runs all the time",
    "TTFT and ITL at the client",
    "finds the knee",
    "without load",
    "guard for live users",
    "Prometheus, rules, dashboards",
)
_OURS = ("Kneewatch", "yes", "yes", "yes, and follows it", "forecast", "yes", "yes")

_GUIDELLM = "https://github.com/vllm-project/guidellm"
_GOODPUT, _GUIDES = f"{_GUIDELLM}/pull/1086", f"{_GUIDELLM}/blob/main/docs/guides"
_AIPERF = "https://docs.nvidia.com/aiperf"
_RECIPES, _ADAPTIVE = (
    f"{_AIPERF}/sweeping-adaptive-search/search-recipes",
    f"{_AIPERF}/tutorials/metrics-analysis/adaptive-scale",
)
_API = f"{_AIPERF}/v0.13.0/reference/http-api-endpoints"
_INFERENCE_PERF = "https://github.com/kubernetes-sigs/inference-perf/blob/main/docs"
_VLLM = "https://docs.vllm.ai/en/v0.32.0"
_BENCH, _SWEEP = f"{_VLLM}/cli/bench/serve/", f"{_VLLM}/cli/bench/sweep/serve_workload/"
_METRICS, _METRICS_DESIGN = f"{_VLLM}/usage/metrics/", f"{_VLLM}/design/metrics/"
_PREDICTOR = "https://llm-d.ai/docs/architecture/advanced/latency-predictor"
_PLANNER = "https://docs.nvidia.com/dynamo/v1.2.1/components/planner/planner-guide"
_PLANNER_DESIGN = "https://docs.nvidia.com/dynamo/latest/design-docs/component-design/planner-design"
_BLACKBOX = "https://github.com/prometheus/blackbox_exporter#readme"
_CLOUDPROBER = "https://cloudprober.org/docs"

# Tools that do the same job; then for each further column a cell and where that is said.
_PEERS: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    (
        "guidellm 0.8, aiperf 0.13",
        (
            ("no", f"{_GUIDELLM}#readme", _ADAPTIVE),
            ("yes", f"{_GUIDES}/metrics.md", _RECIPES),
            ("yes, of a test server", _GOODPUT, f"{_GUIDELLM}/releases/tag/v0.8.1", _RECIPES, _ADAPTIVE),
            ("no", _GOODPUT, _RECIPES),
            ("no", f"{_GUIDES}/over_saturation_stopping.md", _ADAPTIVE),
            ("no; aiperf: metrics of its run", f"{_GUIDES}/outputs.md", _API),
        ),
    ),
    (
        "`vllm bench`, inference-perf",
        (
            ("no", _BENCH, f"{_INFERENCE_PERF}/loadgen.md"),
            ("yes", _BENCH, f"{_INFERENCE_PERF}/metrics.md"),
            ("sweeps, read by hand", _SWEEP, f"{_INFERENCE_PERF}/loadgen.md"),
            ("no", _SWEEP, f"{_INFERENCE_PERF}/loadgen.md"),
            ("no", _BENCH, f"{_INFERENCE_PERF}/config.md"),
            ("no", _BENCH, f"{_INFERENCE_PERF}/reports.md"),
        ),
    ),
    (
        "Dynamo's Planner, llm-d",
        (
            ("yes", _PLANNER, _PREDICTOR),
            ("no: at their front end", _PLANNER_DESIGN, _PREDICTOR),
            ("no: they scale and route", _PLANNER, _PREDICTOR),
            ("latency, learnt from traffic", _PLANNER, _PREDICTOR),
            ("sends no load", _PLANNER, _PREDICTOR),
            ("metrics", _PLANNER_DESIGN, _PREDICTOR),
        ),
    ),
    (
        "blackbox_exporter, cloudprober",
        (
            ("yes", _BLACKBOX, f"{_CLOUDPROBER}/overview/"),
            ("HTTP timings only", _BLACKBOX, f"{_CLOUDPROBER}/overview/"),
            ("no", _BLACKBOX, f"{_CLOUDPROBER}/overview/"),
            ("no", _BLACKBOX, f"{_CLOUDPROBER}/overview/"),
            ("sends no load", _BLACKBOX, f"{_CLOUDPROBER}/overview/"),
            ("metrics", _BLACKBOX, f"{_CLOUDPROBER}/surfacers/overview/"),
        ),
    ),
    (
        "vLLM's own `/metrics`",
        (
            ("yes", _METRICS),
            ("no: at its front end", _METRICS_DESIGN),
            ("no", _METRICS),
            ("no", _METRICS),
            ("sends no load", _METRICS),
            ("metrics, dashboards", "https://github.com/vllm-project/vllm/tree/main/examples/observability"),
        ),
    ),
)


def rows() -> Iterator[tuple[str, ...]]:
    """Yield README's rows."""
    yield _OURS
    for tool, cells in _PEERS:
        yield (tool, *(cell[0] for cell in cells))


def sourced_rows() -> Iterator[tuple[str, ...]]:
    """Yield the other tools' rows, each cell with links to its sources."""
    for tool, cells in _PEERS:
        yield (
            tool,
            *(
                f"{text} {' '.join(f'[({index})]({link})' for index, link in enumerate(links, 1))}"
                for text, *links in cells
            ),
        )
