"""Templates of values that an alert's text queries from Prometheus while the alert fires. Pure."""

from collections.abc import Sequence


def asked(
    query: str, labels: Sequence[str] = ("target",), *, shown: str = "humanize", before: str = "", none: str = "unknown"
) -> str:
    """Return a template of the result of `query`, formatted by `shown`, after the text `before`; without one, `none`.

    `%q` in the query is the value of the next of the alert's `labels`; `%[2]q` is that of the second.
    """
    values = " ".join(f"$labels.{label}" for label in labels)
    return (
        f"{{{{ with printf `{query}` {values} | query }}}}{before}{{{{ . | first | value | {shown} }}}}"
        f"{{{{ else }}}}{none}{{{{ end }}}}"
    )
