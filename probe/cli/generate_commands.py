"""Commands that write files for Grafana and Prometheus: dashboards, alerts."""

from typing import Annotated

import typer

from alerts.links import RUNBOOKS, Links
from alerts.output_options import (
    RulesFormat,
    alert_labels,
    check_address,
    check_uid_prefix,
    check_window_scale,
    prometheus_rule,
)
from probe.cli.output import NAME, print_written
from probe.cli.parameters import ConfigFile, MaybeConfigFile, Out


def dashboards(
    config: ConfigFile,
    out: Out,
    uid_prefix: Annotated[
        str, typer.Option(help="Prefix of each dashboard's uid, so that several teams can share one Grafana.")
    ] = "",
    configmap: Annotated[
        bool,
        typer.Option("--configmap", help="Write ConfigMaps for Grafana's sidecar instead."),
    ] = False,
    namespace: Annotated[str | None, typer.Option(help="Namespace of the ConfigMaps.")] = None,
    runbooks: Annotated[str, typer.Option(help="Base URL of the runbooks.")] = RUNBOOKS,
    scrape_interval: Annotated[
        str, typer.Option(help="Longest interval at which Prometheus scrapes Kneewatch, such as 15s for sharper lines.")
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
            help="prometheus: kneewatch.rules.yml; operator: two PrometheusRules, kneewatch.prometheusrule.yml.",
        ),
    ] = RulesFormat.PROMETHEUS,
    namespace: Annotated[str | None, typer.Option(help="Namespace of the PrometheusRules.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<text>",
            help="key=value label of the PrometheusRules, as your ruleSelector requires; can be repeated.",
        ),
    ] = None,
    severity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<text>", help="Your word for a severity, such as page=critical or ticket=warning; can be repeated."
        ),
    ] = None,
    alert_label: Annotated[
        list[str] | None,
        typer.Option(metavar="<text>", help="key=value label of every alert, such as team=ml; can be repeated."),
    ] = None,
    runbooks: Annotated[str, typer.Option(help="Base URL of the runbooks.")] = RUNBOOKS,
    grafana: Annotated[
        str, typer.Option(help="Grafana's base URL, for links to dashboards. Default: links are paths without a host.")
    ] = "",
    uid_prefix: Annotated[str, typer.Option(help="The --uid-prefix given to `kneewatch dashboards`.")] = "",
    window_scale: Annotated[
        float,
        typer.Option(
            help="For tests only: multiplies every window and `for` time. With 0.01, an alert with a one-hour window"
            " fires within half a minute. Thresholds do not change. Do not use it in production."
        ),
    ] = 1.0,
) -> None:
    """Write the Prometheus rules, kneewatch.rules.yml or kneewatch.prometheusrule.yml. They serve every configuration.

    With a configuration, alerts link to the monitor's pages at its web_external_url.
    """
    from alerts.build import write
    from probe.config.config_file import load_config

    pages = load_config(config).web_external_url if config is not None else None
    links = Links(
        runbooks=check_address(runbooks, "--runbooks", "https://example.org/runbooks/"),
        grafana=grafana and check_address(grafana, "--grafana", "https://grafana.example.org"),
        uid_prefix=check_uid_prefix(uid_prefix),
        pages=pages or "",
    )
    manifest = prometheus_rule(written, namespace, label or [])
    scale = check_window_scale(window_scale)
    labels = alert_labels(severity or [], alert_label or [])
    print_written(write(out, window_scale=scale, links=links, manifest=manifest, labels=labels))
    if hint := links.missing():
        typer.echo(f"{NAME}: {hint}", err=True)
