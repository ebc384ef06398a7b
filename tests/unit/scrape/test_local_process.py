"""vLLM's startup flags from a process on this machine, in a copy of /proc."""

from pathlib import Path

import pytest

from probe.scrape.local_process import flags_of_local_server, is_open_to_others

URL = "http://127.0.0.1:8000/"
SERVER = ["/usr/bin/python3", "/usr/local/bin/vllm", "serve", "m", "--max-num-seqs", "64"]
TIMERS = "00000000:00000000 00:00000000 00000000"
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def add_process(proc: Path, pid: str, line: list[str], *, inode: int = 77, table: str = "tcp") -> None:
    """Add a process, in a network where a socket listens on port 8000."""
    (proc / pid / "net").mkdir(parents=True)
    (proc / pid / "cmdline").write_bytes("\0".join([*line, ""]).encode())
    listens = f"   0: 00000000:1F40 00000000:0000 0A {TIMERS}  1000        0 {inode} 1\n"
    is_connected = f"   1: 0100007F:1F40 0100007F:9999 01 {TIMERS}  1000        0 99 1\n"
    (proc / pid / "net" / table).write_text(HEAD + listens + is_connected)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a /proc in which a socket listens on port 8000."""
    add_process(tmp_path, "self", ["kneewatch", "run"])
    (tmp_path / "meminfo").write_text("")
    return tmp_path


@pytest.mark.parametrize("url", [URL, "http://localhost:8000", "http://127.0.0.9:8000", "http://[::1]:8000/v1"])
def test_the_flags_of_the_server_that_listens_on_the_port(proc: Path, url: str) -> None:
    add_process(proc, "12", SERVER)
    assert flags_of_local_server(url, proc) == {"max_num_seqs": "64"}


def test_a_server_that_listens_on_ipv6(tmp_path: Path) -> None:
    add_process(tmp_path, "self", ["kneewatch"], table="tcp6")
    add_process(tmp_path, "12", SERVER, table="tcp6")
    assert flags_of_local_server(URL, tmp_path) == {"max_num_seqs": "64"}


def test_its_shell_and_servers_on_other_ports_are_passed_over(proc: Path) -> None:
    add_process(proc, "7", ["sh", "-c", "vllm serve m --max-num-seqs $SEQS"])
    add_process(proc, "12", SERVER)
    add_process(proc, "13", ["vllm", "serve", "m", "--port", "8001", "--max-num-seqs", "1"])
    add_process(proc, "14", ["vllm", "serve", "m", "--port=8001", "--max-num-seqs", "1"])
    add_process(proc, "15", ["VLLM::EngineCore"])
    assert flags_of_local_server(URL, proc) == {"max_num_seqs": "64"}


def test_a_server_in_another_network_is_another_server(proc: Path) -> None:
    """Containers may each have a port 8000."""
    add_process(proc, "12", SERVER, inode=4711)
    assert flags_of_local_server(URL, proc) == {}


def test_two_servers_with_different_flags_are_ambiguous(proc: Path) -> None:
    """One of them may have failed to bind."""
    add_process(proc, "12", SERVER)
    add_process(proc, "13", [*SERVER[:-1], "32"])
    assert flags_of_local_server(URL, proc) == {}


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.1:8000", "http://llama:8000", "http://127.0.0.1:9000", "https://127.0.0.1", "http://127.0.0.1"],
)
def test_servers_elsewhere_are_not_looked_for(proc: Path, url: str) -> None:
    add_process(proc, "12", SERVER)
    assert flags_of_local_server(url, proc) == {}


def test_what_may_not_be_read_is_absent(proc: Path, tmp_path: Path) -> None:
    (proc / "12").mkdir()
    (proc / "13").write_text("not a folder")
    assert flags_of_local_server(URL, proc) == {}
    assert flags_of_local_server(URL, tmp_path / "nowhere") == {}


@pytest.mark.parametrize(
    ("table", "address", "is_open"),
    [
        ("tcp", "0100007F", False),
        ("tcp", "00000000", True),
        ("tcp", "0A00A8C0", True),
        ("tcp6", "00000000000000000000000001000000", False),
        ("tcp6", "0000000000000000FFFF00000100007F", False),
        ("tcp6", "00000000000000000000000000000000", True),
    ],
)
def test_a_server_is_open_to_others_unless_it_listens_on_loopback(
    tmp_path: Path, table: str, address: str, *, is_open: bool
) -> None:
    """The addresses are as a little-endian machine shows them."""
    (tmp_path / "self/net").mkdir(parents=True)
    line = f"   0: {address}:1F40 00000000:0000 0A {TIMERS}  1000        0 77 1\n"
    (tmp_path / "self/net" / table).write_text(HEAD + line)
    assert is_open_to_others(8000, tmp_path) is is_open
    assert not is_open_to_others(8001, tmp_path)
