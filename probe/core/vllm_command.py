"""vLLM's startup flags from a command line, such as its container's. Pure.

In: a container's command, arguments and environment. Out: the flags on which a capacity depends, by vLLM's names with
underscores, such as max_num_seqs. All other flags are dropped, because some are secrets.

Whoever may create a pod chooses these, up to a megabyte: words, their length and what variables unfold to are bounded.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from probe.core.vllm_flags import (
    BY_NAME,
    COMPILATION,
    KV_TRANSFER,
    LARGEST_GRAPH,
    MAX_NUM_ACTIVE_SEQS,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    SHORT_FORMS,
    SPECULATIVE,
    Form,
)

_RENAMED = {"disable_log_requests": "no_enable_log_requests"}  # until vLLM 0.10, which logged requests unless told
_SHELLS = frozenset(("sh", "bash", "ash", "dash"))
_PROGRAMS = ("vllm", "vllm-rs")  # the second with the Rust front end; it starts the engine with the same flags
_SERVER = re.compile(r"vllm\.entrypoints\.(openai|cli)\b")
_COMMAND_END = frozenset((";", "&&", "||", "|", "&", ")"))
MAX_VALUE = 200  # characters of a flag
_MAX_WORD, _MAX_WORDS, _MAX_SCRIPT = 1024, 1000, 16 * 1024
_MAX_NUMBER = 10**9  # more than any server's flag
_DEFAULT_PORT = 8000
DEFAULT = "default"  # the value of max_num_seqs where the command line states none
_HIDES = re.compile(r"--config(=|$)|.*[$`]", re.DOTALL)  # a word that may bring flags from elsewhere
# Where the command line has none of these, it has the default; argparse takes abbreviations of them.
_LIMITS = (MAX_NUM_SEQS, MAX_NUM_ACTIVE_SEQS, MAX_NUM_BATCHED_TOKENS, SPECULATIVE)
_SPECULATION = ("method", "model", "num_speculative_tokens")  # others may hold a token of Hugging Face
_MAX_MODEL = 100  # characters of a draft model's name, so that the whole is not cut
_OF_SPECULATION = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
_KV_PARTS = ("kv_connector", "kv_role")  # what else is in --kv-transfer-config may be an address with a password
PARTS = (*_KV_PARTS, SPECULATIVE)  # flags that `parts_of` yields
_GRAPH_SIZES = "cudagraph_capture_sizes"
_OBJECTS = (KV_TRANSFER, SPECULATIVE, COMPILATION)
_VARIABLE = re.compile(r"\$(?:\((\w+)\)|\{(\w+)\}|(\w+))")
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)")
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def vllm_flags(command: Sequence[str], args: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the flags of a container's vLLM, {} if it runs another program.

    `command` is empty where the image's own entrypoint runs: then `args` are vLLM's if they are flags. A value that
    is not in the pod, such as a variable from a Secret or a flag in a `--config` file, is left out. max_num_seqs is
    DEFAULT where the whole line is known and neither states it nor abbreviates a limit.
    """
    line = [*command, *args][:_MAX_WORDS]
    words = list(_server_words(line, environment))
    if not words and not command and any(word.startswith("--") for word in line):
        words = [_expanded(word, environment) for word in line]
    found = dict(_flags(words))
    if words and len(line) < _MAX_WORDS and not any(map(_hides_limit, words)):
        found.setdefault(MAX_NUM_SEQS, DEFAULT)
    return found


def _hides_limit(word: str) -> bool:
    """Return whether a word states max_num_seqs, or may state a limit in a way that is not read."""
    name = _flag_name(word.partition("=")[0])
    is_short = name not in BY_NAME and any(limit.startswith(name) for limit in _LIMITS) if name else False
    return name == MAX_NUM_SEQS or is_short or _HIDES.match(word) is not None


def served_port(line: Sequence[str]) -> int | None:
    """Return the port on which the vLLM with this command line serves; None if it is another program, such as the shell
    that started it, or an engine without front end.
    """
    words = [] if _script(line) else list(_server_words(line, {}))
    words = [] if "--headless" in words else words
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
        is_served = word.rpartition("/")[2] in _PROGRAMS and words[i + 1 : i + 2] == ["serve"]
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
    objects: dict[str, dict[str, object]] = {}
    for i, word in enumerate(words):
        written, equals, value = word.partition("=")
        written, _, key = written.partition(".")
        flag = _flag_name(written)
        if not equals:
            value = words[i + 1] if len(words) > i + 1 else ""
        row = BY_NAME.get(flag.removeprefix("no_"))
        if flag in _OBJECTS:
            objects.setdefault(flag, {}).update({key: _scalar(value)} if key else _object(value))
        elif flag in _OF_SPECULATION:
            objects.setdefault(SPECULATIVE, {})[_OF_SPECULATION[flag]] = _scalar(value)
        elif flag == _GRAPH_SIZES:
            following = [value] if equals else words[i + 1 :]
            objects.setdefault(COMPILATION, {})[flag] = list(_numbers(following))
        elif row is not None and row.form is Form.SWITCH:
            yield row.name, str(not flag.startswith("no_"))
        # What begins with a dash is the next flag, perhaps with a secret: the value is missing.
        elif row is not None and row.form is Form.VALUE and _is_value(value):
            yield row.name, value[:MAX_VALUE]
    for flag, found in objects.items():
        yield from parts_of(flag, found)


def _flag_name(written: str) -> str:
    """Return the long name of a flag with underscores; "" if the word is no flag."""
    if written in SHORT_FORMS:
        return SHORT_FORMS[written]
    name = written[2:].replace("-", "_") if written.startswith("--") else ""
    return _RENAMED.get(name, name)


def _is_value(text: str) -> bool:
    return bool(text) and text.isprintable() and not text.startswith("-") and not _VARIABLE.search(text)


def _scalar(text: str) -> object:
    """Return the value of one key of an object, which a command line states by itself."""
    number = count(text)
    return text if number is None and _is_value(text) else number


def _numbers(words: Sequence[str]) -> Iterator[int]:
    for word in words:
        if (number := count(word)) is None:
            return
        yield number


def parts_of(section: str, config: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield what a part of vLLM's configuration, a JSON object, says that a capacity depends on."""
    if section == KV_TRANSFER:
        for name in _KV_PARTS:
            if isinstance(named := config.get(name), str) and named.isprintable():
                yield name, named[:MAX_VALUE]
    elif section == SPECULATIVE:
        known = {name: config[name] for name in _SPECULATION if isinstance(config.get(name), str | int)}
        if known:
            short = {name: value[:_MAX_MODEL] if isinstance(value, str) else value for name, value in known.items()}
            yield SPECULATIVE, json.dumps(short)[:MAX_VALUE]
    elif section == COMPILATION:
        sizes = config.get(_GRAPH_SIZES)
        numbers = [size for size in sizes if isinstance(size, int)] if isinstance(sizes, list) else []
        largest = config.get(LARGEST_GRAPH)
        numbers += [largest] if isinstance(largest, int) else []
        if numbers:
            yield LARGEST_GRAPH, str(max(numbers))


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
