"""Ways to write one server's address, and addresses of other servers."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.core.server_address import server_key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://llama:8000", "HTTP://LLAMA:8000/".lower()),
        ("http://Llama.:8000", "http://llama:8000"),
        ("http://llama", "http://llama:80"),
        ("https://llama/", "https://llama:443"),
        ("http://localhost:8000", "http://127.0.0.1:8000"),
        ("http://[::1]:8000", "http://127.0.0.1:8000"),
        ("http://[fd00:0::1]:8000", "http://[fd00::1]:8000"),
        ("http://gateway/llama/", "http://gateway/llama"),
        ("http://[::ffff:127.0.0.1]:8000", "http://127.0.0.1:8000"),
        ("http://[::ffff:10.0.0.1]:8000", "http://10.0.0.1:8000"),
        ("http://2130706433:8000", "http://127.0.0.1:8000"),
        ("http://0x7f000001:8000", "http://127.0.0.1:8000"),
        ("http://127.1:8000", "http://127.0.0.1:8000"),
        ("http://167772161:8000", "http://10.0.0.1:8000"),
        ("http://0.0.0.0:8000", "http://localhost:8000"),
        ("http://a.localhost:8000", "http://localhost:8000"),
    ],
)
@pytest.mark.fault(
    "NA5",
    "One server under several spellings of its address",
    area="Names",
    users_see="one lock",
    stays="no double load",
)
@pytest.mark.fault("C24m")
def test_ways_to_write_one_server_are_one_lock(one: str, other: str) -> None:
    assert server_key(one) == server_key(other)


def test_other_servers_are_other_locks(tmp_path: Path) -> None:
    addresses = ["http://a:8000", "http://a:8001", "http://b:8000", "http://a:8000/qwen", "http://10.0.0.1:8000"]
    addresses += ["http://127.0.0.1:8000", "http://127.0.1.1:8000", "http://127.0.1.2:8000"]
    keys = {server_key(address) for address in addresses}
    keys |= {server_key("http://a:8000", str(tmp_path / name)) for name in ("one.sock", "two.sock")}
    assert len(keys) == 10


def test_a_unix_socket_is_the_server_whatever_the_address_says(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert server_key("http://a:1", f"{tmp_path}/s.sock") == server_key("http://b:2", f"{tmp_path}/link/s.sock")


@given(st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=20), st.integers(1, 65535))
def test_case_and_a_trailing_slash_never_matter(host: str, port: int) -> None:
    assert server_key(f"http://{host.upper()}:{port}/") == server_key(f"http://{host.lower()}:{port}")
