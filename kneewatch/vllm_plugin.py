"""The plugin for vLLM (exporters/vllm_plugin), as a package that vLLM imports without the others on its path."""

from pathlib import Path

_HERE = Path(__file__).parent
_PACKAGES = _HERE / "_packages" if (_HERE / "_packages").is_dir() else _HERE.parent

__path__ = [str(_PACKAGES / "exporters/vllm_plugin")]
