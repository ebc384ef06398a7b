"""The trace of `kneewatch ramp --trace`. Every ConfigError names its option."""

import re
from pathlib import Path

from probe.capacity.run.replay_steps import Replay
from probe.core.errors import ConfigError
from probe.core.trace import NamedTrace
from probe.load.trace_file import read_trace

_MOST_REQUESTS = 1_000_000


def named_trace(file: Path) -> NamedTrace:
    """Read the trace; its workload is named after the file. Raises ConfigError."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", file.name.partition(".")[0])[:63].strip("-_.")
    return NamedTrace(name or "trace", read_trace(file, "--trace"))


def check_budget(replay: Replay, seconds: float, tokens: int) -> None:
    """Check, before any load, that the replay fits into its budget. Raises ConfigError."""
    needed_s = sum(map(replay.step_s, replay.speeds))
    if needed_s > seconds:
        raise ConfigError(
            f"--trace: takes {needed_s:.0f} s, more than the budget's {seconds:.0f} s; raise --max-seconds, or send"
            " only its beginning with --step-seconds"
        )
    if replay.requests > _MOST_REQUESTS:
        raise ConfigError(f"--trace: sends {replay.requests} requests, expected at most {_MOST_REQUESTS}")
    needed = replay.tokens
    if needed > tokens:
        raise ConfigError(
            f"--trace: sends {needed} tokens, more than the budget's {tokens}; raise --max-tokens, or send only its"
            " beginning with --step-seconds"
        )
