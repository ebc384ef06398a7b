"""The chart and the kustomizations of a release: `python -m benchmarks.release_files FOLDER VERSION [IMAGE]`.

They are those of the repository, but with the released image, where one is named, in place of one that was built here.
`make dist` runs it.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import helm_python

from benchmarks.chart_readme import readme

ROOT = Path(__file__).parents[1]
_CHART, _KUSTOMIZE = "deploy/helm/kneewatch", "deploy/kustomize"
_PARTS = (_CHART, _KUSTOMIZE, "deploy/helm/values", "dashboards/generated")
_REGISTRY, _REPOSITORY = 'registry: ""        ', "repository: kneewatch"
_NEW_NAME = "newName: kneewatch     # REGISTRY/kneewatch, where you pushed the image"


def write(destination: Path, version: str, image: str = "") -> None:
    """Write both archives. `image`: such as ghcr.io/kneewatch/kneewatch, whose tag is the chart's appVersion."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in _PARTS:
            shutil.copytree(ROOT / part, copy / part)
        if image:
            _name_image(copy, image)
        helm_python.package(copy / _CHART, destination=destination)
        archive = destination.resolve() / f"kneewatch-kustomize-{version}.tar.gz"
        subprocess.run(["tar", "-czf", archive, *_PARTS[1:]], cwd=copy, check=True)


def _name_image(folder: Path, image: str) -> None:
    registry, _, repository = image.partition("/")
    chart = folder / _CHART
    _replace(chart / "values.yaml", _REGISTRY, f"registry: {registry}")
    _replace(chart / "values.yaml", _REPOSITORY, f"repository: {repository}")
    page = chart / "README.md"
    page.write_text(readme(page.read_text(), chart))
    for name in ("base", "sidecar"):
        _replace(folder / _KUSTOMIZE / name / "kustomization.yaml", _NEW_NAME, f"newName: {image}")


def _replace(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    if text.count(before) != 1:
        raise ValueError(f"{file.name}: expected {before!r} once, to name the released image")
    file.write_text(text.replace(before, after))


if __name__ == "__main__":
    write(Path(sys.argv[1]), *sys.argv[2:])
