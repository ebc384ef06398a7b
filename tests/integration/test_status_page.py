"""The status page of a running monitor, as a browser shows it."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from monitor import Monitor, Sim
from process import eventually

pytestmark = pytest.mark.chromium

# No GPU, no sandbox (CI is root), no QUIC, and nothing that Chromium would ask its maker.
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1280,900",
    # Whatever the page might want from elsewhere does not resolve.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
TARGET = "stand-in-a"


@pytest.fixture(scope="module")
def monitor(sim: Sim, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitor]:
    target = {
        "name": TARGET,
        "base_url": sim.base_url,
        "scrape": "1s",
        "canary": {"every": "1s", "workload": "short"},
    }
    config: dict[str, object] = {
        "workloads": {"short": {"prompt_tokens": 32, "output_tokens": 8}},
        "targets": [target],
    }
    with Monitor(config, tmp_path_factory.mktemp("status")) as running:
        eventually(
            lambda: f'kneewatch_target_up{{target="{TARGET}"}} 1.0' in running.page("/metrics"),
            within_s=30,
            what="a canary that succeeded",
        )
        yield running


def test_a_browser_shows_target_and_outcome(chromium: str, monitor: Monitor, tmp_path: Path) -> None:
    dom = _browse(chromium, tmp_path, "--dump-dom", monitor.base_url)
    text = re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", dom, flags=re.DOTALL)
    assert TARGET in text
    assert re.search(r"\bok\b", text)
    assert "http://127.0.0.1" in text  # the server's address
    elsewhere = re.findall(r'(?:src|href|action)="(?:[a-z]+:)?//[^"]*"', dom)
    assert elsewhere == [], "everything comes from the monitor"


def test_a_browser_paints_the_page(chromium: str, monitor: Monitor, tmp_path: Path) -> None:
    picture = tmp_path / "status.png"
    _browse(chromium, tmp_path, f"--screenshot={picture}", monitor.base_url)
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 8_000, "an empty page compresses to less"


def test_the_page_allows_itself_nothing_from_elsewhere(monitor: Monitor) -> None:
    answer = httpx.get(monitor.base_url, timeout=10, trust_env=False)
    policy = answer.headers["content-security-policy"]
    assert re.search(r"default-src '(none|self)'", policy)
    assert "http:" not in policy
    assert "https:" not in policy
    assert "unsafe" not in policy


def _browse(chromium: str, folder: Path, *arguments: str) -> str:
    command = [chromium, *_FLAGS, f"--user-data-dir={folder / 'profile'}", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
