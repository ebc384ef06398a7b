"""The commands of alerts and runbooks: an alert's works where Kneewatch runs, and `kneewatch` parses all of them."""

import asyncio
import re
import shlex
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest
from mock_servers import mock_server
from typer.main import get_command

from alerts import build, links
from probe.cli.main import app

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs/runbooks").glob("*.md"))
FILE = "/etc/kneewatch/kneewatch.yml"
_COMMAND = re.compile(r"(?:^|[`\s])(kneewatch (?:check|forecast|ramp|compare|config|alerts|dashboards) [^`\n#|]+)")
# Run `kneewatch` without the right to write a file, as on a read-only root file system.
_WRITES_NOTHING = """
import os, sys
def refuse(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)) and arguments[0] != "/dev/null":
        if arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise SystemExit(f"opened for writing: {arguments[0]}")
sys.addaudithook(refuse)
from probe.cli.main import main
main(sys.argv[1:])
"""


def _parse(command: str) -> None:
    """Parse a command line as `kneewatch` does. Raise its usage error."""
    context, arguments = None, shlex.split(command)[1:]
    parser = get_command(app)
    name = "kneewatch"
    while True:
        context = parser.make_context(name, arguments, parent=context)
        if not hasattr(parser, "resolve_command"):
            return
        name, parser, arguments = parser.resolve_command(context, [*context._protected_args, *context.args])


@pytest.mark.parametrize("words", sorted({alert.command for alert in build.alerts()}))
def test_an_alert_s_command_is_one_that_its_image_or_kubectl_has(words: str) -> None:
    if words not in (links.PODS, links.CPU):
        assert f" -c {FILE}" in words
        _parse(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_command_line_takes_every_command_of_a_runbook(page: Path) -> None:
    for command in _COMMAND.findall(page.read_text()):
        _parse(command)


def test_a_runbook_s_command_with_an_unknown_option_would_fail() -> None:
    """Else the test above could not."""
    assert sum(len(_COMMAND.findall(page.read_text())) for page in PAGES) >= 10
    with pytest.raises(Exception, match="No such option"):
        _parse("kneewatch check -c FILE --targets TARGET")


@pytest.mark.parametrize(
    "file",
    [
        "deploy/Dockerfile",
        "deploy/kustomize/base/objects.yaml",
        "deploy/helm/kneewatch/templates/_pod.tpl",
        "deploy/compose/compose.yml",
        "docs/operations.md",
    ],
)
def test_the_configuration_is_where_runbooks_look_for_it(file: str) -> None:
    assert FILE in (ROOT / file).read_text()


@pytest.mark.slow
def test_the_first_command_succeeds_and_writes_no_file(tmp_path: Path) -> None:
    """A configured server, and all of a discovery, by the commands of alerts."""
    asyncio.run(_run_first_commands(tmp_path))


async def _run_first_commands(tmp_path: Path) -> None:
    async with mock_server() as server:
        address = server.url.removeprefix("http://")
        (tmp_path / "servers.json").write_text(f'[{{"targets": ["{address}"]}}]')
        file = tmp_path / "kneewatch.yml"
        file.write_text(
            f"store: {{path: {tmp_path}/kneewatch.db}}\n"
            "objectives: {default: {ttft: {ratio: 0.9, within: 20s}, tpot: {ratio: 0.9, within: 20s}}}\n"
            f"targets: [{{name: TARGET, base_url: '{server.url}'}},"
            f" {{name: DISCOVERY, discover: {{file: {{files: ['{tmp_path}/servers.json']}}}}}}]\n"
        )
        for line in (links.CHECK, links.CHECK_FOUND):
            arguments = shlex.split(line.replace(FILE, str(file)))[1:]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-B", "-c", _WRITES_NOTHING, *arguments, cwd=ROOT, stdout=PIPE, stderr=STDOUT
            )
            out, _ = await process.communicate()
            assert process.returncode == 0, out.decode()
            assert b"TTFT" in out
