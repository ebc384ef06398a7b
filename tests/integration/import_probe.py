"""A fresh interpreter, for test_timed_imports.py: which modules does the first request of a new client import?

In: a list of endpoints' arguments as JSON. Out: for each, its outcome and the modules, as JSON. Each runs in a fork, so
that none finds what another one has imported.
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from probe.client import tls_files
from probe.client.client import Client
from probe.client.endpoint import Endpoint
from probe.core.clock import SystemClock
from probe.core.request import Api, RequestSpec, Traffic
from probe.runtime import event_loop


def found(arguments: Mapping[str, Any]) -> dict[str, object]:
    """Return the outcome of a first request, and what was imported since its client was made."""

    async def main() -> dict[str, object]:
        spec = RequestSpec("w", Api.COMPLETIONS, tuple(range(1000, 1008)), 8, 3)
        async with Client(Endpoint("llama", **arguments), SystemClock(), 5.0) as client:
            before = set(sys.modules)
            tls_files._make = _refuse  # type: ignore[assignment]
            prepared = client.prepare(spec, "tiny", Traffic.CANARY)
            record = (await prepared.send(SystemClock().monotonic_ns())).record()
            return {"outcome": record.outcome.value, "detail": record.detail, "new": sorted({*sys.modules} - before)}

    return event_loop.run(main())


def _refuse(*_: object, **__: object) -> None:
    raise AssertionError("a TLS context is made while a request is timed")


def _in_a_fork(arguments: Mapping[str, Any]) -> dict[str, Any]:
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, json.dumps(found(arguments)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        told = answer.read()
    os.wait()
    return dict(json.loads(told or '{"outcome": "it died"}'))


if __name__ == "__main__":
    json.dump([_in_a_fork(arguments) for arguments in json.loads(sys.argv[1])], sys.stdout)
