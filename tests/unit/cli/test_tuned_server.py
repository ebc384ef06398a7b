"""Servers that are changed by commands; that are ready, or are not. Started ones: tests/faults/test_tuning.py."""

import asyncio
import shlex
import socket
import sys
from pathlib import Path

import pytest
from mock_servers import mock_server

from probe.cli.tuned_server import AppliedServer, Readiness, StartedServer, StartError, words_of
from probe.core.errors import ConfigError
from probe.core.redactor import SECRETS
from probe.runtime.kept_program import free_port

pytestmark = pytest.mark.slow

_WRITE = shlex.join([sys.executable, "-c", "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + ';')"])


def test_a_change_is_applied_by_its_commands_without_a_shell(tmp_path: Path) -> None:
    file, log = tmp_path / "applied", tmp_path / "log"

    async def run() -> None:
        async with mock_server() as server:
            commands = [words_of(f"{_WRITE} {file} {words}", "--apply") for words in ("'a={value} $(id)'", "waited")]
            applied = AppliedServer(commands, Readiness(f"{server.url}/health", 20.0))
            async with applied.serving({"max_num_seqs": "32"}, log):
                assert file.read_text() == "a=32 $(id);waited;"
            await applied.restore({"max_num_seqs": "16"}, log)
            assert file.read_text().endswith("a=16 $(id);waited;")

    asyncio.run(run())


def test_a_change_that_fails_or_hangs_is_one_line(tmp_path: Path) -> None:
    SECRETS.add("k3y-of-the-registry")
    for script, within_s, words in (
        (
            "import sys; print('no such release k3y-of-the-registry'); sys.exit(4)",
            20.0,
            r"ended with status 4; .*no such release \(hid",
        ),
        ("import time; time.sleep(600)", 0.3, "did not end within 0.3 s"),
    ):
        ready = Readiness("http://127.0.0.1:9/health", within_s)
        applied = AppliedServer([[sys.executable, "-c", script]], ready)
        with pytest.raises(StartError, match=words):
            asyncio.run(applied.restore({"max_num_seqs": "8"}, tmp_path / "log"))


def test_a_server_that_is_not_ready_in_time_is_stopped(tmp_path: Path) -> None:
    port = free_port()
    script = f"import socket, time; one = socket.create_server(('127.0.0.1', {port})); time.sleep(600)"
    ready = Readiness(f"http://127.0.0.1:{port}/health", 1.0)
    server = StartedServer([sys.executable, "-c", script, "{port}"], port, ready)

    async def run() -> None:
        async with server.serving({"max_num_seqs": "8"}, tmp_path / "log"):
            pytest.fail("it never answers")

    with pytest.raises(StartError, match=r"was not ready within 1 s at .*nothing"):
        asyncio.run(run())
    with socket.create_server(("127.0.0.1", port)):
        pass  # the port is free again


def test_a_command_that_is_not_there_or_has_an_open_quote_is_refused() -> None:
    for text, words in (
        ("/nowhere/vllm serve", "/nowhere/vllm is not a command on this machine"),
        ("vllm 'x", "check its quotes"),
    ):
        with pytest.raises(ConfigError, match=words):
            words_of(text, "--start")
