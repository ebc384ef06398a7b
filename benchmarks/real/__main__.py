"""Kneewatch's capacity on real vLLM servers: `PYTHONPATH=tests/integration python -m benchmarks.real`.

    record NAME ... --vllm-python .vllm/bin/python    runs each server for 12 minutes, into benchmarks/recordings/
    judge [NAME ...]                                  truth, forecasts and searches of the recordings, as a table

Recording needs `make vllm`, two cores and nothing else on the machine.
"""

import argparse
import asyncio
import platform
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.real.recording import Recording, write
from benchmarks.real.servers import SPECS, Spec
from benchmarks.real.session import Say, record
from probe import __version__

FOLDER = Path(__file__).parents[1] / "recordings"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "judge"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--vllm-python", default=".vllm/bin/python")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args()
    unknown = set(options.names) - set(SPECS)
    if unknown:
        parser.error(f"no server {', '.join(sorted(unknown))}; there are {', '.join(SPECS)}")
    names = options.names or list(SPECS)
    if options.what == "judge":
        from benchmarks.real.judge import judge  # noqa: PLC0415 - numpy, which recording is better without

        return judge([options.folder / f"{name}.json.gz" for name in names])
    for name in names:
        _record(SPECS[name], options.vllm_python, options.folder)
    return 0


def _record(spec: Spec, vllm_python: str, folder: Path) -> None:
    from real_vllm import RealVllm  # noqa: PLC0415 - from tests/integration

    with tempfile.TemporaryDirectory() as scratch:
        server = RealVllm(vllm_python, Path(scratch), spec.flags, spec.model)
        server.start()
        try:
            taken = asyncio.run(record(spec, server.base_url, Say(spec.name)))
        finally:
            server.stop()
    recording = Recording(spec.name, _about(spec), spec.workload, spec.objectives, tuple(taken))
    folder.mkdir(parents=True, exist_ok=True)
    write(recording, folder / f"{spec.name}.json.gz")


def _about(spec: Spec) -> dict[str, Any]:
    cpus = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "bound_by": spec.bound_by,
        "flags": spec.flags,
        "model": dict(spec.model),
        "vllm": "0.32.0, CPU, one core; the load on the other",
        "cpu": cpus[0].partition(": ")[2] if cpus else platform.machine(),
        "cores": len(cpus),
        "python": platform.python_version(),
        "kneewatch": __version__,
    }


if __name__ == "__main__":
    sys.exit(main())
