"""The tables of the documentation that rows of the code say: `python -m benchmarks.doc_tables`, by `make generate`.

A page has a pair of comments for each of its tables, and what is between them is written here:

    <!-- generated: NAME -->
    <!-- end -->

In a YAML file they are `# generated: NAME` and `# end`, and what is between them has their indentation.
"""

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from alerts import alertmanager, build
from alerts.output_options import SEVERITIES
from alerts.rules import Alert
from alerts.thresholds import THRESHOLDS
from benchmarks import engine_table, flag_table, peer_table, reason_tables
from benchmarks.fault_table import rows_by_area
from exporters.names import CHECKS
from probe.capacity.model.bottleneck import LIMITS
from probe.cli.matrix_rows import COLD, WARM
from probe.cli.matrix_rows import ROWS as MATRIX
from probe.config.workloads import PRESET_ROWS, PRESETS, LognormalTokens, SharedPrefix, TokenCount, WorkloadConfig
from probe.core.reasons import BUDGETS, ERRORS, REFUSALS, TRIPS, Reason
from probe.gpu.peak_specs import NAMES, gpu
from probe.mock_server.profiles import PROFILES

ROOT = Path(__file__).parents[1]
_END = "<!-- end -->"


@dataclass(frozen=True, slots=True)
class Table:
    """A generated part of a page: the page's path, the part's name in it, and a function for its text."""

    page: str
    name: str
    text: Callable[[], str]


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a `|` in a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    ruled = [f"| {' | '.join(line)} |" for line in cells]
    ruled[1] = f"|{'---|' * len(head)}"
    return "\n".join(ruled) + "\n"


def faults() -> str:
    """Return a section for each area of faults, with a line for each fault."""
    head = ("ID", "fault", "what users see", "what stays")
    return "\n".join(f"## {area}\n\n{markdown_table(head, rows)}" for area, rows in rows_by_area())


def gpus() -> str:
    """Return the peaks of every GPU that `kneewatch roofline` knows."""
    head = ("GPU", "memory GB/s", "BF16 TFLOP/s", "FP8 TFLOP/s", "memory GiB")
    rows = [
        (
            each.name if each.sure else f"{each.name} (unconfirmed)",
            f"{each.bandwidth_gb_s:,g}",
            f"{each.bf16_tflop_s:,g}",
            f"{each.fp8_tflop_s:,g}" if each.fp8_tflop_s else "-",
            f"{each.memory_gib:g}" if each.memory_gib else "-",
        )
        for each in filter(None, map(gpu, NAMES))
    ]
    return markdown_table(head, rows)


def alert_table() -> str:
    """Return the number of alerts and a table with a row for each name."""
    of_name: dict[str, list[Alert]] = {}
    for alert in build.alerts():
        of_name.setdefault(alert.name, []).append(alert)
    rows = []
    for name, same in of_name.items():
        severities = sorted({one.severity for one in same}, key=SEVERITIES.index)
        silencing = ", ".join(one.alert for one in same[0].silenced_by)
        rows.append((f"[{name}](runbooks/{name}.md)", " and ".join(severities), same[0].means, silencing))
    table = markdown_table(("alert", "severity", "meaning", "silenced by"), rows)
    return (
        f"There are {len(of_name)} alerts; each name links its runbook. Not in the last column: a page silences the"
        " ticket of its name,\nand KneewatchProbeGone silences every alert of a target that nothing watches."
        f"\n\n{table}"
    )


def threshold_table() -> str:
    """Return the thresholds of alerts: name, default, limits, alert, what is compared, and why."""
    rows = (
        (f"`{row.name}`", f"{row.default:g}", f"{row.least:g} to {row.most:g}", row.alert, row.means, row.why)
        for row in THRESHOLDS
    )
    return markdown_table(("name", "default", "from, to", "alert", "compared", "why"), list(rows))


def engines() -> str:
    """Return what is known of each engine."""
    return markdown_table(engine_table.HEAD, engine_table.rows())


def flags() -> str:
    """Return vLLM's startup flags: what is read, its effect, and the defaults."""
    return "\n".join((
        markdown_table(flag_table.HEAD, flag_table.rows()),
        markdown_table(flag_table.DEFAULTS_HEAD, flag_table.default_rows()),
        markdown_table(flag_table.UNREAD_HEAD, flag_table.unread_rows()),
    ))  # fmt: skip


def cross_checks() -> str:
    """Return what each cross-check means."""
    rows = []
    for check in CHECKS:
        labels = "".join(f"{{{label}}}" for label in check.series.labels[1:])
        rows.append((f"`{check.series.name}{labels}`", check.meaning, check.absent))
    return markdown_table(("series", "meaning", "absent"), rows)


def profiles() -> str:
    """Return the servers that `kneewatch sim` can imitate."""
    return markdown_table(
        ("profile", "description"), [(f"`{each.name}`", each.description) for each in PROFILES.values()]
    )


def _length(tokens: TokenCount) -> str:
    if isinstance(tokens, LognormalTokens):
        return f"log-normal, median {tokens.lognormal.median}, at most {tokens.lognormal.max}"
    return f"{tokens} tokens"


def _prompt(workload: WorkloadConfig) -> str:
    length = _length(workload.prompt_tokens)
    if workload.turns > 1:
        length = f"{workload.turns} turns; each adds {length}"
    if not isinstance(workload.prefix, SharedPrefix):
        return length
    shared = workload.prefix
    sharing = "all" if shared.ratio == 1 else f"{100 * shared.ratio:g} %"
    return f"{length}; {sharing} share the first {shared.shared_tokens}"


def matrix() -> str:
    """Return the rows of `kneewatch matrix`, with the command that measures each alone."""
    head = ("row", "prompt / answer", "command")
    out = {COLD: " -o cold.json", WARM: " -o warm.json"}
    rows = []
    for row in MATRIX:
        lengths = (PRESETS[row.workload].prompt_tokens, PRESETS[row.workload].output_tokens)
        is_fixed = not PRESETS[row.workload].mixture and all(isinstance(length, int) for length in lengths)
        command = f"kneewatch ramp --base-url $URL {row.options}{out.get(row.workload, '')}"
        words = f"{lengths[0]} / {lengths[1]}" if is_fixed else "varied"
        rows.append((f"{row.letter} {row.shows}", words, f"`{command}`"))
    return markdown_table(head, rows)


def presets() -> str:
    """Return the workloads that Kneewatch knows by name."""
    rows = []
    for row in PRESET_ROWS:
        parts, total = row.workload.mixture, sum((row.workload.mixture or {}).values())
        if parts:
            of = ", ".join(f"{100 * weight / total:g} % `{name}`" for name, weight in parts.items())
            rows.append((f"`{row.name}`", of, "as in these", row.shows))
        else:
            rows.append((f"`{row.name}`", _prompt(row.workload), _length(row.workload.output_tokens), row.shows))
    return markdown_table(("name", "prompt", "answer", "what it shows"), rows)


def systems() -> str:
    """Return what worked with each gateway and server, by the newest record of benchmarks/systems.py."""
    newest = max((ROOT / "benchmarks/results").glob("systems-*.json"))
    rows = []
    for row in json.loads(newest.read_text())["rows"]:
        found = [row[part] for part in ("check", "load", "forecast", "users")]
        cells = [each["words"] if each["works"] else f"no: {each['words']}" for each in found]
        rows.append((row["system"], row["version"], row["date"], *cells))
    head = ("system", "version", "run on", "`check`", "load with a guard", "`forecast`", "users' traffic")
    return markdown_table(head, rows)


def reason_table(of: Sequence[Reason]) -> str:
    """Return what each reason means and what to do, and below the exact conditions."""
    table = markdown_table(reason_tables.HEAD, reason_tables.rows(of))
    return f"{table}\n{reason_tables.conditions(of)}" if any(row.condition for row in of) else table


def bottlenecks() -> str:
    """Return what may limit a server, and what to do about each limit."""
    rows = [(f"`{limit.name}`", limit.removed or "-", limit.advice) for limit in LIMITS]
    return markdown_table(("bottleneck", "what is removed", "what to do"), rows)


TABLES = (
    Table("docs/cross-checks.md", "cross-checks", cross_checks),
    Table("docs/engines.md", "engines", engines),
    Table("docs/engines.md", "vllm's startup flags", flags),
    Table("docs/reliability.md", "faults", faults),
    Table("docs/results.md", "gpus", gpus),
    Table("docs/capacity.md", "bottlenecks", bottlenecks),
    Table("docs/workloads.md", "presets", presets),
    Table("docs/workloads.md", "matrix", matrix),
    Table("docs/systems.md", "systems", systems),
    Table("docs/mock-server.md", "profiles", profiles),
    Table("docs/alerts.md", "alerts", alert_table),
    Table("docs/alerts.md", "thresholds", threshold_table),
    *(
        Table(f"deploy/examples/{file}", name, partial(text, build.alerts()))
        for file in ("alertmanager.yml", "kube-prometheus-stack.yml")
        for name, text in (("routes", alertmanager.routes), ("inhibitions", alertmanager.inhibit_rules))
    ),
    Table("docs/guard.md", "refusals", lambda: reason_table(REFUSALS)),
    Table("docs/guard.md", "trips", lambda: reason_table(TRIPS)),
    Table("docs/guard.md", "overloads", reason_tables.overloads),
    Table("docs/guard.md", "seen by the stream", reason_tables.seen_by_stream),
    Table("docs/guard.md", "budgets", lambda: reason_table(BUDGETS)),
    Table("docs/guard.md", "errors", lambda: reason_table(ERRORS)),
    Table(
        "README.md",
        "comparison",
        lambda: markdown_table((f"[sources]({peer_table.SOURCES})", *peer_table.COLUMNS), peer_table.rows()),
    ),
    Table(
        peer_table.SOURCES,
        "comparison with sources",
        lambda: markdown_table(("", *peer_table.COLUMNS), peer_table.sourced_rows()),
    ),
)


def written(text: str, table: Table) -> str:
    """Return the page's text with the table in it. Raises ValueError unless the page has exactly one place for it."""
    is_yaml = table.page.endswith(".yml")
    begins, ends = (f"# generated: {table.name}", "# end") if is_yaml else (f"<!-- generated: {table.name} -->", _END)
    place = re.compile(rf"^( *){re.escape(begins)}\n(?:.*\n)*?\1{ends}$", re.MULTILINE)
    if len(place.findall(text)) != 1:
        raise ValueError(f"{table.page}: expected once {begins} and then {ends}")
    content = table.text().strip("\n")
    block = f"{begins}\n{content}\n{ends}" if is_yaml else f"{begins}\n\n{content}\n\n{ends}"
    return place.sub(lambda found: textwrap.indent(block, found[1]), text)


def main() -> None:
    """Write every table to its page."""
    for table in TABLES:
        page = ROOT / table.page
        page.write_text(written(page.read_text(), table))


if __name__ == "__main__":
    main()
