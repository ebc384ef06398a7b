"""Figures that an alert's text asks Prometheus for while the alert fires. Pure."""

from collections.abc import Sequence


def asked(
    query: str, labels: Sequence[str] = ("target",), *, shown: str = "humanize", before: str = "", none: str = "unknown"
) -> str:
    """A template of what `query` gives, formatted by `shown`, after the words `before`; `none` where it gives nothing.

    `%q` in the query is the value of one of the alert's `labels`, in that order; `%[2]q` is that of the second.
    """
    values = " ".join(f"$labels.{label}" for label in labels)
    return (
        f"{{{{ with printf `{query}` {values} | query }}}}{before}{{{{ . | first | value | {shown} }}}}"
        f"{{{{ else }}}}{none}{{{{ end }}}}"
    )
