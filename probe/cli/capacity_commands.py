"""`kneewatch forecast`: its options."""

from typing import Annotated

import typer

from probe.cli.parameters import NO_SERVER, BaseUrl, Json, MaybeConfigFile, OneTarget, ServerOptions, grouped


@grouped
def forecast(
    config: MaybeConfigFile = None,
    target: OneTarget = None,
    base_url: BaseUrl = None,
    server: ServerOptions = NO_SERVER,
    seconds: Annotated[float, typer.Option(min=15, max=86400, help="Seconds to watch live traffic.")] = 120.0,
    history: Annotated[
        str | None, typer.Option(help="Use this much history from Prometheus instead, such as 6h; needs -c.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Forecast capacity from live traffic, without adding load.

    Exit status: 0 forecast made, 1 not enough evidence, 2 could not measure.
    """
    from probe.cli.forecasting import forecast_target
    from probe.cli.options import configuration, duration_of
    from probe.cli.targets import one_target
    from probe.core.clock import SystemClock
    from probe.report.forecast_text import forecast_words
    from probe.report.progress import following
    from probe.report.result_json import dumps
    from probe.runtime import event_loop
    from probe.runtime.logs import configure_logs

    configure_logs(quiet=True)
    loaded = configuration(config, base_url, server)
    chosen = one_target(loaded, target)
    past_s = duration_of(history, "--history") if history is not None else None
    with following() as follow:
        result = event_loop.run(
            forecast_target(loaded, chosen, SystemClock(), watch_s=seconds, history_s=past_s, on_phase=follow.phase)
        )
    typer.echo(dumps(result, indent=1) if as_json else forecast_words(result))
    raise typer.Exit(0 if result.capacity.requests_per_second is not None else 1)
