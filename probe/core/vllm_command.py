"""vLLM's startup flags from a command line, such as its container's. Pure.

In: a container's command, arguments and environment. Out: the flags on which a capacity depends, by vLLM's names with
underscores, such as max_num_seqs. All other flags are dropped, because some are secrets.

Whoever may create a pod chooses these, up to a megabyte: words, their length and what variables unfold to are bounded.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

# Those that set how much is computed at once, by how many GPUs, and at what precision.
_WITH_VALUE = frozenset((
    "block_size", "data_parallel_size", "dtype", "gpu_memory_utilization", "kv_cache_dtype",
    "long_prefill_token_threshold", "max_model_len", "max_num_batched_tokens", "max_num_partial_prefills",
    "max_num_seqs", "num_gpu_blocks_override", "pipeline_parallel_size", "quantization", "scheduling_policy",
    "speculative_config", "tensor_parallel_size",
))  # fmt: skip
_SWITCHES = frozenset((
    "async_scheduling", "enable_chunked_prefill", "enable_expert_parallel", "enable_log_requests",
    "enable_prefix_caching", "enable_sleep_mode", "enforce_eager",
))  # fmt: skip
_SHORT = {
    "-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size",
    "-q": "--quantization", "-sc": "--speculative-config",
}  # fmt: skip
_RENAMED = {"disable_log_requests": "no_enable_log_requests"}  # until vLLM 0.10, which logged requests unless told
_SHELLS = frozenset(("sh", "bash", "ash", "dash"))
_SERVER = re.compile(r"vllm\.entrypoints\.(openai|cli)\b")
_COMMAND_END = frozenset((";", "&&", "||", "|", "&", ")"))
MAX_VALUE = 200  # characters of a flag
_MAX_WORD, _MAX_WORDS, _MAX_SCRIPT = 1024, 1000, 16 * 1024
_MAX_NUMBER = 10**9  # more than any server's flag
_DEFAULT_PORT = 8000
DEFAULT = "default"  # the value of max_num_seqs where the command line states none
# Words that state max_num_seqs, which argparse takes abbreviated, or may bring it from elsewhere.
_HIDES_LIMIT = re.compile(r"--(max[-_]num[-_]s|config\b)|.*[$`]", re.DOTALL)
_SPECULATION = ("method", "model", "num_speculative_tokens")  # others may hold a token of Hugging Face
_KV_TRANSFER = ("kv_connector", "kv_role")  # what else is in --kv-transfer-config may be an address with a password
_VARIABLE = re.compile(r"\$(?:\((\w+)\)|\{(\w+)\}|(\w+))")
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)")
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def vllm_flags(command: Sequence[str], args: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the flags of a container's vLLM, {} if it runs another program.

    `command` is empty where the image's own entrypoint runs: then `args` are vLLM's if they are flags. A value that
    is not in the pod, such as a variable from a Secret or a flag in a `--config` file, is left out. max_num_seqs is
    DEFAULT where the whole line is known and does not state it.
    """
    line = [*command, *args][:_MAX_WORDS]
    words = list(_server_words(line, environment))
    if not words and not command and any(word.startswith("--") for word in line):
        words = [_expanded(word, environment) for word in line]
    found = dict(_flags(words))
    if words and len(line) < _MAX_WORDS and not any(map(_HIDES_LIMIT.match, words)):
        found["max_num_seqs"] = DEFAULT
    return found


def served_port(line: Sequence[str]) -> int | None:
    """Return the port on which the vLLM with this command line serves; None if it is another program, such as the shell
    that started it.
    """
    words = [] if _script(line) else list(_server_words(line, {}))
    found = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--port"]
    found += [word.partition("=")[2] for word in words if word.startswith("--port=")]
    return (count(found[-1]) if found else _DEFAULT_PORT) if words else None


def count(text: str) -> int | None:
    """Return the number that vLLM reads, such as 8192 for 8K and 8000 for 8k; None if there is none."""
    found = _NUMBER.fullmatch(text.strip())
    number = float(found[1]) * _FACTORS[found[2]] if found else _MAX_NUMBER + 1
    return round(number) if number <= _MAX_NUMBER else None


def _server_words(line: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the words after the program's name, from within a shell's script too."""
    words = list(line)
    if script := _script(words):
        words = _shell_words(script)[:_MAX_WORDS]
    for i, word in enumerate(words):
        is_served = word.rpartition("/")[2] == "vllm" and words[i + 1 : i + 2] == ["serve"]
        if is_served or _SERVER.search(word[:_MAX_WORD]):
            for following in words[i + 1 :]:
                if following in _COMMAND_END:
                    return
                yield _expanded(following, environment)
            return


def _script(words: Sequence[str]) -> str | None:
    """Return the script of `sh -c SCRIPT`, however the shell is called."""
    if not words or words[0].rpartition("/")[2] not in _SHELLS:
        return None
    options = [i for i, word in enumerate(words) if word.startswith("-") and not word.startswith("--") and "c" in word]
    return words[options[0] + 1] if options and len(words) > options[0] + 1 else None


def _shell_words(script: str) -> list[str]:
    """Split a script into words and the operators between its commands; [] if its quotes do not match."""
    lexer = shlex.shlex(
        script[:_MAX_SCRIPT].replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=";&|()"
    )
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:
        return []


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        name = _SHORT.get(name, name)
        if not name.startswith("--"):
            continue
        flag = name[2:].replace("-", "_")
        flag = _RENAMED.get(flag, flag)
        if flag in _SWITCHES or flag.removeprefix("no_") in _SWITCHES:
            yield flag.removeprefix("no_"), str(not flag.startswith("no_"))
        elif flag in _WITH_VALUE or flag == "kv_transfer_config":
            if not equals:
                value = words[i + 1] if len(words) > i + 1 else ""
            if flag == "kv_transfer_config":
                yield from _kv_transfer(value)
            elif flag == "speculative_config":
                yield from speculation(_object(value))
            # What begins with a dash is the next flag, perhaps with a secret: the value is missing.
            elif value and value.isprintable() and not value.startswith("-") and not _VARIABLE.search(value):
                yield flag, value[:MAX_VALUE]


def _kv_transfer(value: str) -> Iterator[tuple[str, str]]:
    """Yield what --kv-transfer-config, a JSON object, says of the connector."""
    found = _object(value)
    for name in _KV_TRANSFER:
        if isinstance(named := found.get(name), str) and named.isprintable():
            yield name, named[:MAX_VALUE]


def speculation(config: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield what a speculative configuration says that a capacity depends on."""
    known = {name: config[name] for name in _SPECULATION if isinstance(config.get(name), str | int)}
    if known:
        yield "speculative_config", json.dumps(known)[:MAX_VALUE]


def _object(value: str) -> dict[str, object]:
    """Return a JSON object; {} if it is none."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _expanded(word: str, environment: Mapping[str, str]) -> str:
    """Return the word with the variables that the pod states; others stay. Both are cut to a length."""

    def value(found: re.Match[str]) -> str:
        return environment.get(found[1] or found[2] or found[3], found[0])[:MAX_VALUE]

    return _VARIABLE.sub(value, word[:_MAX_WORD])[:_MAX_WORD]
