"""Generated files into a folder."""

from pathlib import Path

import pytest
import yaml

from probe.core.errors import ConfigError
from probe.report.files import check_writable, write_file, write_files


def test_each_text_is_written_under_its_name_into_a_new_folder(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    assert write_files({"x.yml": "≤ 1\n", "y.yml": ""}, out) == [out / "x.yml", out / "y.yml"]
    assert (out / "x.yml").read_text(encoding="utf-8") == "≤ 1\n"
    assert (out / "y.yml").read_text() == ""


def test_a_folder_that_cannot_be_written_is_an_error_that_says_why(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ConfigError) as refused:
        write_files({"x.yml": ""}, file)
    assert str(refused.value) == (f"-o {file}: cannot be written (File exists); use a directory that can be created")
    assert file.read_text() == "mine"
    with pytest.raises(ConfigError, match="-o /proc/x: cannot be written"):
        write_files({"x.yml": ""}, Path("/proc/x"))


@pytest.mark.fault(
    "DI17",
    "A folder stands in the place of an output file",
    area="Disk",
    users_see="one line",
    stays="-",
)
def test_a_folder_in_the_place_of_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.yml").mkdir()
    with pytest.raises(ConfigError, match="Is a directory"):
        write_files({"x.yml": ""}, tmp_path)


@pytest.mark.fault("DI16")
def test_a_result_that_could_not_be_kept_is_known_before_the_load(tmp_path: Path) -> None:
    check_writable(tmp_path / "new.json", "--json")
    with pytest.raises(ConfigError, match=r"--json .*cannot be written \(No such file or directory\); use a file in"):
        check_writable(tmp_path / "missing" / "new.json", "--json")


def test_a_check_leaves_files_as_they_were(tmp_path: Path) -> None:
    """A run that could not measure left an empty result, and `kneewatch table` of the folder failed."""
    old, new, link = (tmp_path / name for name in ("old.json", "new.json", "link.json"))
    old.write_text("{}")
    link.symlink_to(tmp_path / "elsewhere.json")
    for file in (old, new, link):
        check_writable(file, "-o")
    assert (old.read_text(), new.exists(), link.is_symlink()) == ("{}", False, True)


def test_a_full_disk_is_an_error_that_says_nothing_was_changed() -> None:
    with pytest.raises(ConfigError) as refused:
        write_file(Path("/dev/full"), "text", "--html")
    assert str(refused.value) == (
        "--html /dev/full: cannot be written (No space left on device); nothing was changed there; free space,"
        " or write it elsewhere"
    )


def test_a_dash_is_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert write_files({"a.yml": "a: 1\n", "b.yml": "b: 2\n"}, Path("-")) == []
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == [{"a": 1}, {"b": 2}]
    assert write_files({"a.json": '{"a": 1}'}, Path("-")) == []
    assert capsys.readouterr().out == '{"a": 1}\n'
    assert not Path("-").exists()
