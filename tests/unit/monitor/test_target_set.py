"""The monitors of a process follow its desired targets; what replaces one is logged. At scale: test_reconcile."""

import asyncio
import re
from pathlib import Path
from typing import Any

import yaml
from structlog.testing import capture_logs

from probe.config.config_file import load_config
from probe.core.clock import SystemClock
from probe.monitor.app import App
from probe.runtime.scheduler import TaskId


def _file(path: Path, *targets: dict[str, Any]) -> Path:
    workloads = {"short": {"prompt_tokens": 8}}
    path.write_text(yaml.safe_dump({"store": {}, "workloads": workloads, "targets": list(targets)}))
    return path


async def _nothing() -> None:
    pass


def test_the_log_names_the_fields_that_replaced_a_monitor_and_not_their_values(tmp_path: Path) -> None:
    async def run() -> None:
        kept = {"name": "kept", "base_url": "http://127.0.0.1:9"}
        changes = {
            "name": "changes",
            "base_url": "http://127.0.0.1:10",
            "api_key": "sesame",
            "canary": {"every": "7s", "workload": "short"},
        }
        file = _file(tmp_path / "kneewatch.yml", kept, changes)
        app = App(load_config(file), SystemClock(), file)
        before = dict(app.monitors)
        canary = {"every": "8s", "workload": "short"}
        _file(file, kept, {**changes, "api_key": "mellon", "canary": canary})
        with capture_logs() as logs:
            assert await app.reload() is None
        assert app.monitors["kept"] is before["kept"]
        assert app.monitors["changes"] is not before["changes"]
        (replaced,) = [line for line in logs if line["event"] == "a target's monitor is replaced"]
        assert replaced["target"] == "changes"
        assert sorted(replaced["changed"]) == ["target.api_key", "target.canary.every"]
        assert not any(secret in str(logs) for secret in ("sesame", "mellon"))
        with capture_logs() as logs:
            assert await app.reload() is None
        assert "a target's monitor is replaced" not in {line["event"] for line in logs}

    asyncio.run(run())


def test_a_target_that_cannot_be_added_is_removed_again_and_the_others_stay(tmp_path: Path) -> None:
    async def run() -> None:
        kept, broken, last = (
            {"name": n, "base_url": f"http://127.0.0.1:{p}"} for n, p in (("a", 9), ("b", 10), ("c", 11))
        )
        file = _file(tmp_path / "kneewatch.yml", kept)
        app = App(load_config(file), SystemClock(), file)
        before = dict(app.monitors)
        taken = TaskId("canary", "b")
        app._schedule.every(taken, 60.0, _nothing)  # the last thing that adding a target does fails
        _file(file, kept, broken, last)
        with capture_logs() as logs:
            assert await app.reload() is None
        assert [(line["target"], str(line["exc_info"])) for line in logs if line["log_level"] == "error"] == [
            ("b", "canary:b is scheduled already")
        ]
        assert app.monitors.keys() == {"a", "c"}
        assert app.monitors["a"] is before["a"]
        assert {task.target for task in app._schedule.tasks} == {"a", "c"}
        assert 'target="b"' not in app.measurements.page.render("")[0].decode()
        assert await app.reload() is None
        assert app.monitors.keys() == {"a", "b", "c"}

    asyncio.run(run())


def test_each_target_shows_how_many_share_its_metrics_page(tmp_path: Path) -> None:
    """Divided by it, the series of users and server of all targets add up to those of all servers."""

    def shown(app: App) -> dict[str, float]:
        page = app.measurements.page.render("")[0].decode()
        return {
            t: float(n) for t, n in re.findall(r'^kneewatch_server_targets{target="(.*)"} (.*)$', page, re.MULTILINE)
        }

    async def run() -> None:
        one, other = {"base_url": "http://127.0.0.1:9"}, {"base_url": "http://127.0.0.1:10"}
        targets = [{"name": "chat", **one}, {"name": "batch", **one}, {"name": "apart", **other}]
        file = _file(tmp_path / "kneewatch.yml", *targets)
        app = App(load_config(file), SystemClock(), file)
        assert shown(app) == {"chat": 2, "batch": 2, "apart": 1}
        _file(file, targets[0], {"name": "new", **other}, targets[2])
        assert await app.reload() is None
        assert shown(app) == {"chat": 1, "new": 2, "apart": 2}

    asyncio.run(run())
