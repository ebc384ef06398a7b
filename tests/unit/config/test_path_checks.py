"""Files that a configuration names: a wrong one is a problem in words, and nothing waits for it."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from probe.config.path_checks import authorities_problem, credentials_problem, file_problem

CHECKS = [file_problem, authorities_problem, credentials_problem]
PLACES = [
    pytest.param(os.mkfifo, id="fifo"),
    pytest.param(lambda path: path.symlink_to("/dev/zero"), id="endless-device"),
]


@pytest.mark.parametrize("make", PLACES)
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.fault(
    "SE29",
    "A file of a secret, a certificate or authorities is a FIFO, a device or a directory",
    area="Security",
    users_see="one line, exit 2, at the start; a reload is refused",
    stays="nothing waits for a writer, or reads without end",
)
def test_what_is_no_regular_file_is_refused_and_not_waited_for(
    check: Callable[[Path], str | None], make: Callable[[Path], None], tmp_path: Path
) -> None:
    place = tmp_path / "file"
    make(place)
    assert check(place) == "is not a regular file; give the path of one"


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.fault("SE29")
def test_what_cannot_be_opened_is_one_line(check: Callable[[Path], str | None], tmp_path: Path) -> None:
    held = socket.socket(socket.AF_UNIX)
    held.bind(str(tmp_path / "socket"))
    for place in (tmp_path / "socket", tmp_path / "missing", tmp_path, Path("a\0b")):
        assert check(place) == "cannot be read; create it, or fix the path"
    held.close()
