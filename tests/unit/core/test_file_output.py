"""A file that is replaced has its old content or the new one, and stays what it is."""

import os
import resource
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from probe.core.file_output import append_to_file, check_replaceable, replace_file, replace_files

_MOST = 100


@contextmanager
def _no_room() -> Iterator[None]:
    """Let no file grow beyond 100 bytes, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@pytest.mark.parametrize("has_links", [False, True])
@pytest.mark.fault(
    "SG1",
    "The disk fills while a command writes a file that was there: one, several at once, a record, one with two names",
    area="Disk",
    users_see="one line; status 2",
    stays="the old content of all of them, and no other file",
)
def test_without_room_every_file_is_as_it_was(tmp_path: Path, *, has_links: bool) -> None:
    small, large = tmp_path / "a", tmp_path / "b"
    small.write_text("old a")
    large.write_text("old b")
    if has_links:
        (tmp_path / "c").hardlink_to(large)
    before = _names(tmp_path)
    with _no_room():
        with pytest.raises(OSError, match="File too large"):
            replace_files({large: b"x" * 200, small: b"new"} if has_links else {small: b"new", large: b"x" * 200})
        with pytest.raises(OSError, match="File too large"):
            append_to_file(large, b"y" * 200)
    assert (small.read_text(), large.read_text()) == ("old a", "old b")
    assert _names(tmp_path) == before


def test_what_ends_the_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("old")

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace_file(file, b"new")
    assert file.read_text() == "old"
    assert _names(tmp_path) == ["file"]


def test_links_modes_and_owners_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "folder" / "link"
    link.parent.mkdir()
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to("../real")
    if os.geteuid() == 0:
        os.chown(real, 1234, 1235)
    before = real.stat()
    replace_file(link, b"new")
    after = real.stat()
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_a_link_to_nothing_makes_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("new")
    replace_file(tmp_path / "link", b"text")
    assert (tmp_path / "new").read_text() == "text"


def test_a_new_file_has_the_usual_mode(tmp_path: Path) -> None:
    replace_file(tmp_path / "new", b"")
    (tmp_path / "usual").write_text("")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_file_with_two_names_keeps_both(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("old and long")
    other.hardlink_to(one)
    replace_file(one, b"new")
    assert other.read_text() == "new"


def test_a_pipe_gets_the_text(tmp_path: Path) -> None:
    pipe, found = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    check_replaceable(pipe)  # waits for no reader
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    replace_file(pipe, b"x" * 200_000)
    reader.join()
    assert found == [b"x" * 200_000]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}"])
def test_a_path_of_a_descriptor_is_that_descriptor(tmp_path: Path, name: str) -> None:
    """As /dev/stdout, of a shell's `> file`: what others have written there stays."""
    file = tmp_path / "file"
    opened = os.open(file, os.O_WRONLY | os.O_CREAT)
    try:
        os.write(opened, b"before ")
        replace_file(Path(name.format(opened)), b"text")
        os.write(opened, b" after")
    finally:
        os.close(opened)
    assert file.read_text() == "before text after"


def test_a_folder_and_a_missing_folder_are_refused_before_and_then(tmp_path: Path) -> None:
    for act in (check_replaceable, lambda path: replace_file(path, b"")):
        with pytest.raises(IsADirectoryError):
            act(tmp_path)
        with pytest.raises(FileNotFoundError):
            act(tmp_path / "missing" / "file")


def test_the_check_leaves_nothing(tmp_path: Path) -> None:
    check_replaceable(tmp_path / "new")
    assert _names(tmp_path) == []
