"""`kneewatch run` whose capacity run of target "a" is due again and again: `python due_run.py CONFIG`.

Until one has ended by itself: two such monitors would else have to wait for luck.
"""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from probe.config.config_file import load_config
from probe.core.clock import SystemClock
from probe.monitor.app import App
from probe.runtime import event_loop
from probe.runtime.logs import configure_logs

_EVERY_S = 1.0


async def main(file: Path) -> None:
    app = App(load_config(file), SystemClock(), file)
    due = asyncio.create_task(_make_due(app))
    await app.run(asyncio.Event())
    due.cancel()


async def _make_due(app: App) -> None:
    while True:
        await asyncio.sleep(_EVERY_S)
        if not app.is_ready:
            continue
        result = app.monitors["a"].last_result
        if result is None or result.stopped.by != "done":
            with suppress(KeyError):
                app.measure_capacity_in("a", 0.0)


if __name__ == "__main__":
    configure_logs()
    event_loop.run(main(Path(sys.argv[1])))
