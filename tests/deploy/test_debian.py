"""The systemd unit and the Debian package."""

import re
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path

import pytest

from probe.config.config_file import load_config

FOLDER = Path(__file__).parents[2] / "deploy" / "debian"
# Of systemd's own scale from 0 (safe) to 10. What is left open: the network, /tmp and the GPUs' devices.
MOST_EXPOSURE = 2.5


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """Return the unit with a program that every machine has, so that systemd can judge it."""
    file = tmp_path / "kneewatch.service"
    file.write_text((FOLDER / "kneewatch.service").read_text().replace("/usr/bin/kneewatch", "/bin/true"))
    return file


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_knows_every_setting_of_the_unit_and_calls_it_confined(unit: Path) -> None:
    known = subprocess.run(["systemd-analyze", "verify", unit], check=True, capture_output=True, text=True)
    assert not known.stderr
    judge = ["systemd-analyze", "security", "--offline=true", unit]
    told = subprocess.run(judge, check=True, capture_output=True, text=True).stdout
    exposure = re.search(r"Overall exposure level for kneewatch.service: ([0-9.]+)", told)
    assert exposure
    assert float(exposure[1]) <= MOST_EXPOSURE


def test_the_unit_may_write_what_its_configuration_writes() -> None:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(FOLDER / "kneewatch.service")
    service, config = parser["Service"], load_config(FOLDER / "kneewatch.yml")
    assert service["ExecStart"].endswith("-c /etc/kneewatch/kneewatch.yml")
    assert config.store.path is not None
    assert config.store.path.parent == Path("/var/lib") / service["StateDirectory"]
    assert service["ReadWritePaths"] == "/tmp", "lock_dir's default"  # noqa: S108 - shared by all probers
    assert "PrivateTmp" not in service
