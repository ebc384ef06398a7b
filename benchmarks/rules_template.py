"""The rules with a token for each threshold, which the chart and the mixin replace: `make generate`."""

from pathlib import Path

from alerts.build import FILE, render
from alerts.thresholds import TOKENS

TEMPLATE = Path(__file__).parents[1] / "alerts/generated/kneewatch.rules.tmpl"


def text() -> str:
    """Return the text of the file, which is no rules file before the tokens are replaced."""
    return render(thresholds=TOKENS)[FILE]


def main() -> None:
    """Write the file."""
    TEMPLATE.write_text(text())


if __name__ == "__main__":
    main()
