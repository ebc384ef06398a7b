"""Files of a discovery that are none."""

import os
from pathlib import Path

import pytest

from probe.config.discovery import FileDiscovery
from probe.discovery.file_sd import FileSource
from probe.discovery.polling import ProblemReporter


@pytest.mark.fault("E12")
def test_a_fifo_in_the_place_of_a_file_is_refused_and_nothing_waits_for_a_writer(tmp_path: Path) -> None:
    fifo = tmp_path / "a.yml"
    os.mkfifo(fifo)
    source = FileSource(FileDiscovery(files=(str(fifo),)), "http", "", ProblemReporter(lambda _: None, lambda: None))

    with pytest.raises(ValueError, match="it is not a regular file"):
        source._file(fifo, [])
