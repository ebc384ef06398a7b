"""Installs what the peers need: an environment for each below benchmarks/.peers, and a tokenizer for all.

Output: folders; existing ones are kept. After it, no benchmark uses the internet. `make vllm` makes vLLM's Python.
"""

import subprocess
import sys
from pathlib import Path

from benchmarks.client.peers import PEERS, ROOT, TOKENIZER, TOKENIZER_REF

PINNED = {
    "plain": ("aiohttp==3.14.5", "httpx==0.28.1", "uvloop"),
    "guidellm": ("guidellm==0.8.1",),
    "aiperf": ("aiperf==0.13.0",),
}
_PIP = ("-m", "pip", "install", "-qq", "--disable-pip-version-check")


def install() -> None:
    """Install the environments that are missing, and the tokenizer. Raises CalledProcessError if pip fails."""
    for name, pinned in PINNED.items():
        folder = PEERS / name
        python = folder / "bin" / "python"
        if not (folder / ".installed").exists():
            print(
                f"{folder}: installing {' '.join(pinned)} (some minutes; guidellm brings torch, several GB)", flush=True
            )
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            subprocess.run([python, *_PIP, *pinned], check=True)
            (folder / ".installed").touch()
    if not TOKENIZER.exists():
        _make_tokenizer(PEERS / "guidellm" / "bin" / "python")


def _make_tokenizer(python: Path) -> None:
    """Create the tests' tiny tokenizer in the layout of the Hugging Face cache."""
    subprocess.run([python, ROOT / "tests" / "integration" / "tiny_model.py", TOKENIZER], check=True)
    TOKENIZER_REF.parent.mkdir(parents=True, exist_ok=True)
    TOKENIZER_REF.write_text(TOKENIZER.name)
