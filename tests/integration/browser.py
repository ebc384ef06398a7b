"""Chromium without a window, led over a pipe (the DevTools protocol): what a page says, shows and complains of."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

# No GPU, no sandbox (CI is root), no QUIC, and nothing that Chromium would ask its maker.
FLAGS = (
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
    # Whatever a page might want from elsewhere does not resolve.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
_WITHIN_S = 30.0


class Browser:
    """One page in one Chromium. A context manager."""

    def __init__(self, chromium: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="kneewatch-chromium-")
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # Chromium reads from its descriptor 3 and writes to 4.
        shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "bash", "-c", shell, "chromium", chromium, *FLAGS,
             "--remote-debugging-pipe", f"--user-data-dir={self._folder}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=(theirs_in, theirs_out),
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        os.set_blocking(self._in, False)
        self._rest = b""
        self._last = 0
        self._session: str | None = None
        self.complaints: list[str] = []

    def __enter__(self) -> Self:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._folder, ignore_errors=True)

    def screen(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window, and whether its user prefers dark colours."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Load the page. `complaints` has what it complains of from here on."""
        self.complaints.clear()
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page, as JSON. Promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until the expression is true."""
        end = time.monotonic() + _WITHIN_S
        while not self.evaluate(script):
            assert time.monotonic() < end, f"not within {_WITHIN_S:.0f} s: {script}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Press a key, given by its `key` property."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}
        pressed: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **pressed, **({"text": "\r"} if key == "Enter" else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def hover(self, x: float, y: float) -> None:
        """Move the mouse."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, file: Path) -> None:
        """Return a PNG of the whole page, including what is below the window."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command of the DevTools protocol and return its answer."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        rest = memoryview(json.dumps(message).encode() + b"\0")
        while rest:
            rest = rest[os.write(self._out, rest) :]
        end = time.monotonic() + _WITHIN_S
        while True:
            answer = self._read(end)
            if answer.get("id") == self._last:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _read(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert time.monotonic() < end, "Chromium does not answer"
            try:
                piece = os.read(self._in, 1 << 20)
            except BlockingIOError:
                time.sleep(0.005)
                continue
            assert piece, "Chromium has ended"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        read: dict[str, Any] = json.loads(message)
        return read

    def _note(self, event: dict[str, Any]) -> None:
        """Keep what the console shows in red: exceptions, errors, violations of the policy."""
        details = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(details["exceptionDetails"])[:800])
            case "Runtime.consoleAPICalled" if details["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(details["args"])[:800])
            case "Log.entryAdded" if details["entry"]["level"] in ("error", "warning"):
                self.complaints.append(json.dumps(details["entry"])[:800])
