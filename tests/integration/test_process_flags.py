"""vLLM's startup flags from the command line of a real process that listens on loopback."""

import subprocess
import sys

from probe.scrape.local_process import flags_of_local_server

# Listens on a free port, then runs itself again with vLLM's arguments and this port.
_SERVER = """
import os, socket, sys
if len(sys.argv) == 1:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.set_inheritable(True)
    port = str(listener.getsockname()[1])
    os.environ["FD"] = str(listener.fileno())
    line = [sys.executable, "-c", os.environ["CODE"], "vllm", "serve", "m", "--port", port, "--max-num-seqs=7"]
    os.execv(sys.executable, line)
print(sys.argv[sys.argv.index("--port") + 1], flush=True)
sys.stdin.read()
"""


def test_the_flags_of_a_process_that_listens_here_until_it_ends() -> None:
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(
        command, env={"CODE": _SERVER}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        assert flags_of_local_server(url) == {"max_num_seqs": "7"}
        server.stdin.close()
    assert flags_of_local_server(url) == {}
