"""Writing generated files to the directory of `-o`."""

from collections.abc import Mapping
from pathlib import Path

from probe.core.errors import ConfigError


def write_files(files: Mapping[str, str], out: Path) -> list[Path]:
    """Write each text to its file name in the directory `out`, which is created if missing. Return the paths.

    Raises ConfigError with one line that names the directory.
    """
    paths = [out / name for name in files]
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, files.values(), strict=True):
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"-o {out}: cannot be written ({error.strerror}); use a directory that can be created"
        ) from None
    return paths
