"""Commands about the configuration, and what is written for Grafana and Prometheus: config check, config show, config
schema, dashboards, alerts.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from alerts.links import RUNBOOKS, Links
from alerts.output_options import (
    RulesFormat,
    alert_labels,
    check_address,
    check_uid_prefix,
    check_window_scale,
    chosen_thresholds,
    prometheus_rule,
)
from probe.cli.output import NAME, print_json, print_written
from probe.cli.parameters import ConfigFile, MaybeConfigFile, Out

if TYPE_CHECKING:
    from probe.config.targets import TargetConfig, TemplateConfig

_INDEX = re.compile(r"^targets\[[0-9]+\]")
_NAMED = 3  # targets that a line about several names


def check(config: ConfigFile) -> None:
    """Check the configuration file. Report on stderr what no alert can cover, late runs, and too short time limits."""
    from alerts.coverage import uncovered
    from probe.config.config_file import load_config
    from probe.config.schedule_checks import crowded, room
    from probe.config.time_limits import too_short

    loaded = load_config(config)
    names = ", ".join(target.known_as for target in loaded.targets)
    typer.echo(f"{config}: valid; {len(loaded.targets)} target(s): {names}")
    remarks: dict[str, list[str]] = {}
    for target in loaded.targets:
        if target.capacity.mode != "off":
            remarks.setdefault(f"startup flags of the server: {_flags(target)}", []).append(target.known_as)
        if target.gpu.is_read:
            remarks.setdefault(f"GPUs: {target.gpu.words}", []).append(target.known_as)
    for remark, targets in remarks.items():
        of = f"{len(targets)} targets" if len(targets) > _NAMED else ", ".join(targets)
        typer.echo(f"{of}: {remark}")
    now, at_once = datetime.now(UTC), loaded.capacity_runs_at_once
    for template in loaded.templates:
        if template.capacity.mode == "verify":
            typer.echo(f"{template.known_as}: each scheduled time has room for {room(template, at_once, now)} run(s)")
    if (line := crowded(loaded.targets, at_once, now)) is not None:
        typer.echo(f"{NAME}: capacity: {line}", err=True)
    for line in _once(too_short(loaded)):
        typer.echo(f"{NAME}: {line}", err=True)
    for line in _once(uncovered(loaded)):
        typer.echo(f"{NAME}: alerts: {line}", err=True)
    typer.echo(f"next: kneewatch check -c {config}")


def _once(lines: Sequence[str]) -> list[str]:
    """Return a line once that is of several targets, and say of how many."""
    same: dict[str, list[str]] = {}
    for line in lines:
        same.setdefault(_INDEX.sub("", line), []).append(line)
    return [
        found[0] if len(found) == 1 else f"{found[0]} (and {len(found) - 1} other targets alike)"
        for found in same.values()
    ]


def _flags(target: "TargetConfig | TemplateConfig") -> str:
    """Return the startup flags that are known without asking the server, and where each is from."""
    from probe.config.capacity import PROCESS
    from probe.config.targets import TargetConfig
    from probe.scrape.local_process import flags_of_local_server

    server = target.capacity.server
    if isinstance(target, TargetConfig):
        server = server.with_flags(flags_of_local_server(target.base_url), PROCESS)
    sources = server.flag_sources
    known = ", ".join(f"{name}={value} ({sources[name]})" for name, value in server.startup_flags.items())
    return known or "none known here; read from /server_info and the pod while it is watched"


def show(config: ConfigFile) -> None:
    """Print the effective configuration, secrets hidden."""
    from probe.config.config_file import load_config
    from probe.config.config_file import show as shown

    typer.echo(shown(load_config(config)), nl=False)


class SchemaOf(StrEnum):
    """What `config schema` prints the schema of."""

    CONFIG = "config"
    RESULT = "result"
    PLAN = "plan"
    TUNE = "tune"


def schema(
    of: Annotated[
        SchemaOf,
        typer.Argument(help="config; or result, plan or tune, for what these commands write as JSON.", metavar="NAME"),
    ] = SchemaOf.CONFIG,
) -> None:
    """Print the JSON Schema of the configuration, or of a result, a plan or a tune record."""
    if of is SchemaOf.CONFIG:
        from probe.config.reference import json_schema

        print_json(json_schema())
    else:
        from probe.report.json_schemas import file_schema

        print_json(file_schema(of.value))


def dashboards(
    config: ConfigFile,
    out: Out,
    uid_prefix: Annotated[
        str,
        typer.Option(
            help="Prefix of each dashboard's uid, so that several teams can share one Grafana.", metavar="PREFIX"
        ),
    ] = "",
    configmap: Annotated[
        bool,
        typer.Option("--configmap", help="Write ConfigMaps for Grafana's sidecar instead."),
    ] = False,
    namespace: Annotated[str | None, typer.Option(help="Namespace of the ConfigMaps.", metavar="NAME")] = None,
    runbooks: Annotated[str, typer.Option(help="Base URL of the runbooks.", metavar="URL")] = RUNBOOKS,
    scrape_interval: Annotated[
        str,
        typer.Option(
            help="Longest interval at which Prometheus scrapes Kneewatch, such as 15s for sharper lines.",
            metavar="DURATION",
        ),
    ] = "60s",
) -> None:
    """Write the Grafana dashboards: kneewatch-fleet.json, -target, -server, -capacity and -probe."""
    from dashboards.build import render
    from probe.cli.options import duration_of
    from probe.config.config_file import load_config
    from probe.report.files import write_files

    address = check_address(runbooks, "--runbooks", "https://example.org/runbooks/")
    texts = render(
        load_config(config),
        uid_prefix=uid_prefix,
        configmap=configmap,
        namespace=namespace,
        runbooks=address,
        scrape_interval_s=duration_of(scrape_interval, "--scrape-interval"),
    )
    print_written(write_files(texts, out))


def alerts(
    out: Out,
    config: MaybeConfigFile = None,
    written: Annotated[
        RulesFormat,
        typer.Option(
            "--format",
            help="prometheus: kneewatch.rules.yml; operator: PrometheusRules, kneewatch.prometheusrule.yml.",
        ),
    ] = RulesFormat.PROMETHEUS,
    namespace: Annotated[str | None, typer.Option(help="Namespace of the PrometheusRules.", metavar="NAME")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="key=value label of the PrometheusRules, as your ruleSelector requires; can be repeated.",
        ),
    ] = None,
    severity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=WORD",
            help="Your word for a severity, such as page=critical or ticket=warning; can be repeated.",
        ),
    ] = None,
    chosen: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="<text>",
            help="NAME=VALUE of a threshold, such as preemption_share=1% or headroom=0.2; can be repeated. Names and"
            " defaults: docs/alerts.md.",
        ),
    ] = None,
    alert_label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="key=value label of every alert, such as team=ml; can be repeated."),
    ] = None,
    runbooks: Annotated[str, typer.Option(help="Base URL of the runbooks.", metavar="URL")] = RUNBOOKS,
    grafana: Annotated[
        str,
        typer.Option(
            help="Grafana's base URL, for links to dashboards. Default: links are paths without a host.", metavar="URL"
        ),
    ] = "",
    uid_prefix: Annotated[
        str, typer.Option(help="The --uid-prefix given to `kneewatch dashboards`.", metavar="PREFIX")
    ] = "",
    window_scale: Annotated[
        float,
        typer.Option(
            help="For tests only: multiplies every window and `for` time. With 0.01, an alert with a one-hour window"
            " fires within half a minute. Thresholds do not change. Do not use it in production."
        ),
    ] = 1.0,
) -> None:
    """Write the Prometheus rules, kneewatch.rules.yml or kneewatch.prometheusrule.yml. They serve every configuration.

    With a configuration, alerts link to the monitor's pages at its web_external_url, and to dashboards at
    its grafana_url.
    """
    from alerts.build import write
    from probe.config.config_file import load_config

    read = load_config(config) if config is not None else None
    own_grafana = (read.grafana_url if read is not None else None) or ""
    links = Links(
        runbooks=check_address(runbooks, "--runbooks", "https://example.org/runbooks/"),
        grafana=check_address(grafana, "--grafana", "https://grafana.example.org") if grafana else own_grafana,
        uid_prefix=check_uid_prefix(uid_prefix),
        pages=(read.web_external_url if read is not None else None) or "",
    )
    manifest = prometheus_rule(written, namespace, label or [])
    scale = check_window_scale(window_scale)
    labels = alert_labels(severity or [], alert_label or [])
    limits = chosen_thresholds(chosen or [])
    print_written(write(out, window_scale=scale, links=links, manifest=manifest, labels=labels, thresholds=limits))
    if hint := links.missing():
        typer.echo(f"{NAME}: {hint}", err=True)
