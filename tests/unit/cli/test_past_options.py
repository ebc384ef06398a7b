"""`kneewatch doctor --prometheus`: which options go together, and one line where Prometheus does not answer."""

import pytest
from typer.testing import CliRunner

from probe.cli.main import app
from probe.core.errors import KneewatchError

URL = "http://127.0.0.1:9090"
NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("http://x:8000", "--prometheus", URL), "URL, --prometheus: a server, or all in a Prometheus; remove one"),
        (("--prometheus", URL, "--api-key-file", __file__), "--api-key-file, --prometheus: "),
        (("--prometheus", URL, "--markdown"), "--markdown, --prometheus: "),
        (("--prometheus", URL, "--since", "30m"), "--since 30m: expected a duration of 1h to 7d"),
        (("--prometheus", URL, "--since", "8d"), "--since 8d: expected a duration of 1h to 7d"),
        (("--prometheus", "prometheus:9090"), "--prometheus"),
        (("http://x:8000", "--since", "2h"), "--since: needs --prometheus URL"),
        (("--prometheus", NOBODY), "Prometheus does not answer"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_one_line(given: tuple[str, ...], words: str) -> None:
    done = CliRunner().invoke(app, ["doctor", *given])
    assert isinstance(done.exception, KneewatchError)
    assert words in str(done.exception)
    assert "\n" not in str(done.exception)
