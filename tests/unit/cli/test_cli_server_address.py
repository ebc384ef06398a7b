"""The server of an argument, of --base-url or of OPENAI_BASE_URL, and whom OPENAI_API_KEY is sent to."""

from pathlib import Path

import pytest

from probe.cli.main import main
from probe.cli.options import configuration
from probe.cli.parameters import ServerOptions
from probe.cli.server_address import server_address, server_key
from probe.core.errors import ConfigError

Capture = pytest.CaptureFixture[str]
URL, OTHER = "http://llama-8b:8000", "http://llama-70b:8000"
KEY = "sk-of-that-server"
HAS_BOTH = {"OPENAI_BASE_URL": f"{URL}/v1", "OPENAI_API_KEY": KEY}


def test_a_url_is_an_argument_or_an_option(capsys: Capture) -> None:
    assert server_address(OTHER, None, None, HAS_BOTH) == OTHER
    assert server_address(None, OTHER, None, HAS_BOTH) == OTHER
    assert capsys.readouterr().err == ""
    with pytest.raises(ConfigError, match="URL, --base-url: both are set; remove one"):
        server_address(URL, OTHER, None, {})


def test_a_variable_names_the_server_where_nothing_else_does(capsys: Capture) -> None:
    assert server_address(None, None, None, HAS_BOTH) == URL
    assert capsys.readouterr().err == f"kneewatch: asks the server of OPENAI_BASE_URL, {URL}\n"
    assert server_address(None, None, Path("kneewatch.yml"), HAS_BOTH) is None
    assert server_address(None, None, None, {"OPENAI_BASE_URL": ""}) is None


@pytest.mark.parametrize(
    ("base_url", "asked", "is_sent"),
    [
        (f"{URL}/v1", URL, True),
        (f"{URL}/v1/", f"{URL}/", True),
        ("http://LLAMA-8B:8000", URL, True),
        ("https://gateway/team-a/v1", "https://gateway:443/team-a", True),
        ("https://gateway/team-a/v1", "https://gateway/team-b", False),
        (f"{URL}/v1", OTHER, False),
        (f"{URL}/v1", "http://llama-8b:8001", False),
        (f"{URL}/v1", "https://llama-8b:8000", False),
        (f"{URL}/v1", "http://llama-8b:8000@evil:80", False),
        ("", URL, False),
        (None, "https://api.openai.com", False),
        ("http://user:secret@llama-8b:8000", URL, False),
    ],
)
def test_a_key_goes_to_the_server_of_its_variable_alone(base_url: str | None, asked: str, *, is_sent: bool) -> None:
    variables = {"OPENAI_API_KEY": KEY} | ({} if base_url is None else {"OPENAI_BASE_URL": base_url})
    assert server_key(asked, variables) == (KEY if is_sent else None)


def test_a_file_with_a_key_comes_before_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HAS_BOTH.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "key"
    file.write_text("sk-of-the-file")
    secrets = [
        configuration(None, url, server).targets[0]
        for url in (URL, OTHER)
        for server in (ServerOptions(), ServerOptions(api_key_file=file))
    ]
    assert [target.secret() for target in secrets] == [KEY, "sk-of-the-file", None, "sk-of-the-file"]
    assert KEY not in repr(secrets)


@pytest.mark.parametrize("value", ["http://user:hunter2@h/v1", "not an address hunter2", "http://h/v1?key=hunter2"])
def test_what_is_no_address_is_not_repeated(value: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", value)
    with pytest.raises(SystemExit) as ended:
        main(["check"])
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.err.startswith("kneewatch: OPENAI_BASE_URL: expected an address such as http://localhost:8000/v1")
    assert "hunter2" not in said.out + said.err
