"""The command line as a result keeps it: with the variables that set options, and without secrets. Pure.

Secrets are the values of headers, in addresses a login and whatever follows `?` or `#`, and in commands that an option
has (--start, --apply) what follows a name such as --api-key or HF_TOKEN=. The path of a file with a secret is none.
"""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from probe.core.errors import ConfigError
from probe.core.provenance import MAX_FACTS, MAX_VALUE, is_fact_name
from probe.core.text import one_line

_HIDDEN = "(hidden)"
_MAX = 2000
_HEADER = "--header"
_COMMANDS = ("--start", "--apply")
# Names that end like this have a secret as their value; --max-num-batched-tokens and --ssl-keyfile do not.
_SECRET = re.compile(r"(key|password|passwd|secret|credential|token)$", re.IGNORECASE)
_LOGIN = re.compile(r"(\w://)[^/?#@\s]*@")
_QUERY = re.compile(r"(\w://[^?#\s]*[?#])\S+")


def command_line(
    name: str, arguments: Sequence[str], environment: Mapping[str, str], variables: Collection[str]
) -> str:
    """Return the command `name` with these arguments as a shell takes it, cut at 2000 characters.

    `variables` are the names of those that set its options; others are not kept.
    """
    options = sorted((key, value) for key, value in environment.items() if key in variables)
    words = [f"{key}={shlex.quote(_of_variable(key, value))}" for key, value in options]
    return one_line(" ".join([*words, name, *map(shlex.quote, _words(arguments))]), _MAX)


def variables_of(command: Any) -> set[str]:  # noqa: ANN401 - Typer has a Click of its own
    """Return the names of the variables that set options of the command."""
    return {str(option.envvar) for option in command.params if option.envvar}


def facts_of(notes: Sequence[str]) -> dict[str, str]:
    """Return the facts in options of the form NAME=VALUE. Raises ConfigError."""
    found = {}
    for note in notes:
        name, equals, value = note.partition("=")
        if not equals or not is_fact_name(name) or not 0 < len(value) <= MAX_VALUE or not value.isprintable():
            raise ConfigError(
                f"--note {one_line(note, 60)}: expected NAME=VALUE, with a name such as image or commit, in lower case,"
                f" and at most {MAX_VALUE} printable characters"
            )
        found[name] = value
    if len(found) > MAX_FACTS:
        raise ConfigError(f"--note: expected at most {MAX_FACTS} notes, got {len(found)}; leave some out")
    return found


def secrets_in(words: Sequence[str]) -> Iterator[str]:
    """Yield the secrets in the words of another program's command."""
    is_secret = False
    for word in words:
        name, equals, value = word.rpartition("=")
        if equals and _SECRET.search(name) and value:
            yield value
        elif is_secret and not word.startswith("-"):
            yield word
            continue  # --api-key takes several
        is_secret = word.startswith("-") and not equals and _SECRET.search(word) is not None


def without_secrets(command: str) -> str:
    """Return a command of another program without its secrets; nothing of one that cannot be split into words."""
    try:
        words = shlex.split(command)
    except ValueError:
        return _HIDDEN
    secrets = set(secrets_in(words))
    for secret in sorted(secrets, key=len, reverse=True):
        words = [word.replace(secret, _HIDDEN) if word.endswith(secret) else word for word in words]
    return shlex.join(map(_plain, words))


def _of_variable(name: str, value: str) -> str:
    if name.endswith("_HEADER"):
        return _HIDDEN
    return without_secrets(value) if name.endswith(("_START", "_APPLY")) else _plain(value)


def _words(arguments: Sequence[str]) -> Iterator[str]:
    option = ""
    for word in arguments:
        name, equals, value = word.partition("=")
        if option == _HEADER or option in _COMMANDS:
            yield _header(word) if option == _HEADER else without_secrets(word)
        elif equals and (name == _HEADER or name in _COMMANDS):
            yield f"{name}={_header(value) if name == _HEADER else without_secrets(value)}"
        else:
            yield _plain(word)
        option = word if option not in (_HEADER, *_COMMANDS) else ""


def _header(text: str) -> str:
    """Return a header without its value, but for the file that has it."""
    name, colon, value = text.partition(":")
    if not colon:
        return _HIDDEN
    return text if value.strip().startswith("@") else f"{name}: {_HIDDEN}"


def _plain(word: str) -> str:
    return _QUERY.sub(rf"\1{_HIDDEN}", _LOGIN.sub(rf"\1{_HIDDEN}@", word))
