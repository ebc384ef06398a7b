"""The tables of docs/engines.md on vLLM's startup flags, by the rows of `probe/core/vllm_flags.py`."""

from collections.abc import Iterator

from probe.capacity.model.unmodelled import QUEUED_REQS, QUEUED_TOKENS, UNMODELLED, WATERMARK
from probe.core.server_limits import DEFAULTS
from probe.core.vllm_command import PARTS
from probe.core.vllm_flags import FLAGS, UNREAD, Flag, Form

HEAD = ("flag", "effect on the capacity", "read from", "forecast")
DEFAULTS_HEAD = ("hardware", "`max_num_seqs`", "`max_num_batched_tokens`")
UNREAD_HEAD = ("effect of flags that are not read", "flags")


# What a forecast makes of the flags that its model does not have.
_FORECAST = {
    **{row.flag: "says so" if row.is_only_said else "none, where it has an effect" for row in UNMODELLED},
    **dict.fromkeys((QUEUED_REQS, QUEUED_TOKENS), "none, where it is reached"),
    WATERMARK: "with less KV cache",
}


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each flag that is read."""
    for flag in FLAGS:
        short = f", `{flag.short}`" if flag.short else ""
        yield f"`{flag.name}`{short}", flag.effect, ", ".join(_sources(flag)), _FORECAST.get(flag.name, "")


def _sources(flag: Flag) -> Iterator[str]:
    if flag.form is not Form.NONE:
        yield "command line"
    if flag.config or flag.name in PARTS:
        yield "server_info"
    if flag.label:
        yield "page"
    if flag.in_plugin:
        yield "plugin"


def default_rows() -> Iterator[tuple[str, str, str]]:
    """Yield vLLM's defaults for each kind of hardware."""
    for each in DEFAULTS:
        yield each.hardware, f"{each.max_num_seqs}", f"{each.max_num_batched_tokens}"


def unread_rows() -> Iterator[tuple[str, str]]:
    """Yield the flags that are not read, by their effect."""
    for each in UNREAD:
        yield each.effect, ", ".join(f"`{name}`" for name in sorted(each.names))
