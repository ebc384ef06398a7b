"""Files that are read while Kneewatch runs: none may hold it, or take its memory."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.client.tls_files import client_context
from probe.config.config_file import config_from
from probe.config.headers import SecretHeader
from probe.config.yaml_file import read_yaml
from probe.core.errors import ConfigError
from probe.core.plain_file import SECRET_BYTES, check_plain, read_plain, read_secret
from probe.web.gate import server_context


def test_a_secret_is_read_without_the_space_around_it(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(" sk-1\n")
    assert read_secret(file) == "sk-1"
    file.write_bytes(b"x" * SECRET_BYTES)
    assert len(read_plain(file)) == SECRET_BYTES
    assert read_secret(os.devnull) == ""


def _api_key(file: Path) -> object:
    target = {"name": "a", "base_url": "http://a", "api_key_file": "/dev/null"}
    return config_from({"targets": [target]}, "t").targets[0].model_copy(update={"api_key_file": file}).secret()


def _server_tls(file: Path) -> object:
    from probe.config.web_file import TlsServer  # noqa: PLC0415

    return server_context(TlsServer(cert_file=file, key_file=file))


READERS: dict[str, Callable[[Path], Any]] = {
    "secret": read_secret,
    "checked": check_plain,
    "api_key_file": _api_key,
    "headers.NAME.file": lambda file: SecretHeader(file=file).value(),
    "configuration": read_yaml,
    "client TLS": lambda file: client_context(str(file)),
    "server TLS": _server_tls,
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize("kind", ["fifo", "zero", "huge"])
@pytest.mark.fault(
    "DI30",
    "A configuration, secret or certificate file becomes a FIFO, a link to /dev/zero, or has a gigabyte",
    area="Disk",
    users_see="the error of a file that cannot be read",
    stays="the event loop, and what was read before",
)
def test_no_file_holds_the_reader_or_takes_its_memory(tmp_path: Path, reader: Callable[[Path], Any], kind: str) -> None:
    file = tmp_path / "file"
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "zero":
        file.symlink_to("/dev/zero")
    else:
        file.touch()
        os.truncate(file, 10**9)
    with pytest.raises((OSError, ConfigError)) as raised:
        reader(file)
    if isinstance(raised.value, OSError):
        assert raised.value.errno == (errno.EFBIG if kind == "huge" else errno.EINVAL)
