"""Commands that need no vLLM server: sim, demo."""

from typing import TYPE_CHECKING, Annotated

import typer

from probe.cli.parameters import duration_option
from probe.core.errors import ConfigError

if TYPE_CHECKING:
    from probe.mock_server.staging import Staging

# No variable: where a Service is named kneewatch-sim, Kubernetes sets KNEEWATCH_SIM_PORT=tcp://...
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.", allow_from_autoenv=False)]


def sim(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Port = 8000,
    profile: Annotated[str, typer.Option(help="Server to simulate; --list shows the choices.")] = "llama-8b",
    model: Annotated[str, typer.Option(help="Model name to serve.")] = "mock-model",
    seed: Annotated[int, typer.Option(help="Seed of the timing noise.")] = 0,
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="Requests that run at once, as in vLLM. Default: the profile's.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens in one scheduler step, as in vLLM. Default: the profile's.")
    ] = None,
    max_num_queued_reqs: Annotated[
        int | None, typer.Option(min=1, help="Requests in the server at most, as in vLLM; it refuses more (503).")
    ] = None,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="Serve embeddings, rankings and scores instead of text.")
    ] = False,
    users: Annotated[
        float, typer.Option(min=0, max=1000, help="Requests a second that users of its own send; 0: none.")
    ] = 0.0,
    fail: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the requests that get HTTP 500, such as 0.3.")
    ] = 0.0,
    slow: Annotated[
        str, typer.Option(metavar="DURATION", help="How much longer each token takes, such as 60ms.")
    ] = "0s",
    stall_after: Annotated[
        str | None, typer.Option(metavar="DURATION", help="When requests begin to hang, after the start, such as 60s.")
    ] = None,
    recover_after: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="When they no longer hang, after --stall-after's moment. Default: never."
        ),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print the servers it can simulate, and exit.")] = False,
) -> None:
    """Run a mock vLLM server: the API and the metrics, with simulated timings."""
    import asyncio
    from dataclasses import replace

    from probe.mock_server.listing import table
    from probe.mock_server.profiles import PROFILES
    from probe.mock_server.server import serve
    from probe.runtime import event_loop

    if listed:
        typer.echo(table(PROFILES.values()))
        return
    if profile not in PROFILES:
        from probe.config.messages import did_you_mean

        hint = did_you_mean(profile, list(PROFILES))
        raise ConfigError(f"--profile {profile}: unknown{hint}; expected one that kneewatch sim --list shows")

    usual = PROFILES[profile]
    try:
        served = replace(
            usual,
            max_num_seqs=max_num_seqs or usual.max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens or usual.max_num_batched_tokens,
            max_num_queued_reqs=max_num_queued_reqs,
        )
    except ValueError as error:
        raise ConfigError(f"--max-num-seqs, --max-num-batched-tokens: {error}; change one of them") from None

    if users and embeddings:
        raise ConfigError("--users with --embeddings: users ask for text; drop one of the two")
    staging = _staging(users, fail, slow, stall_after, recover_after)

    def ready(bound: int) -> None:
        typer.echo(f"mock server {profile} serves {model} on http://{host}:{bound}")
        if staging.words:
            typer.echo(f"on: {staging.words}")

    try:
        serving = serve(
            served, host=host, port=port, model=model, seed=seed, ready=ready, is_pooling=embeddings, staging=staging
        )
        event_loop.run(serving, asyncio.new_event_loop)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (while")[0]  # create_server repeats the address
        raise ConfigError(f"--host {host} --port {port}: cannot listen ({why}); choose another host or port") from None


def _staging(users: float, fail: float, slow: str, stall_after: str | None, recover_after: str | None) -> "Staging":
    """Return what the options ask for. Raises ConfigError."""
    from probe.cli.options import duration_of
    from probe.mock_server.driver import Faults
    from probe.mock_server.staging import Staging

    if recover_after is not None and stall_after is None:
        raise ConfigError(f"--recover-after {recover_after}: needs --stall-after, the moment that it counts from")
    return Staging(
        users_rps=users,
        faults=Faults(extra_step_s=duration_of(slow, "--slow"), error_ratio=fail),
        stall_after_s=None if stall_after is None else duration_of(stall_after, "--stall-after"),
        recover_after_s=None if recover_after is None else duration_of(recover_after, "--recover-after"),
    )


def demo(
    seconds: Annotated[float, duration_option("How long to run.", least="5s", most="1h", default="1m")] = 60.0,
    port: Port = 9876,
    keep: Annotated[bool, typer.Option("--keep", help="Stay until Ctrl-C.")] = False,
) -> None:
    """Run a demo: a mock server, the monitor, canaries and a capacity run. No GPU needed."""
    from probe.cli.demo import run_demo
    from probe.runtime import event_loop

    event_loop.run(run_demo(seconds, port, keep=keep))
