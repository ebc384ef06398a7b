"""Secrets in text of other programs."""

import base64
import json
from html import escape
from pathlib import Path
from textwrap import fill
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.core.errors import KneewatchError
from probe.core.plain_file import read_secret
from probe.core.redactor import SECRETS, Redactor
from probe.core.text import one_line

_KEY = "sk-live/+a?b c=d"
_LOGIN = ("team", "pa:ss/wörd?")


def _redactor() -> Redactor:
    redactor = Redactor()
    redactor.add(_KEY)
    redactor.add_login(*_LOGIN)
    return redactor


@pytest.mark.parametrize("secret", [_KEY, _LOGIN[1], ":".join(_LOGIN)])
@pytest.mark.fault("C41p")
def test_a_secret_is_hidden_in_every_encoding(secret: str) -> None:
    plain = secret.encode()
    encodings = (plain, base64.b64encode(plain), base64.urlsafe_b64encode(plain), quote(secret, safe="").encode())
    for each in encodings:
        shown = _redactor().hide(b"you sent " + each + b" to me")
        assert each.rstrip(b"=") not in shown
        assert shown.startswith(b"you sent (hidden)")
        assert shown.endswith(b" to me")


def test_the_user_of_a_login_is_no_secret_and_neither_is_a_missing_password() -> None:
    redactor = Redactor()
    redactor.add_login("team", "")
    redactor.add("")
    assert redactor.hide_text("team: wrong password") == "team: wrong password"
    assert _redactor().hide_text("team: wrong password") == "team: wrong password"


def test_short_secrets_may_be_left_on_a_page_of_which_they_are_words() -> None:
    redactor = Redactor()
    redactor.add("vllm")
    assert redactor.hide(b"vllm:num_requests_running 1", 8) == b"vllm:num_requests_running 1"
    assert redactor.hide_text("not vllm") == "not (hidden)"


def test_the_last_rotated_secrets_stay_hidden() -> None:
    redactor = Redactor()
    for i in range(40):
        redactor.add(f"secret-{i:02}")
    assert redactor.hide_text("secret-39 secret-09 secret-00") == "(hidden) (hidden) secret-00"


@given(st.text(min_size=4), st.text())
def test_nothing_of_a_secret_is_left_around_others(secret: str, other: str) -> None:
    redactor = Redactor()
    redactor.add(other)
    redactor.add(secret)
    assert redactor.hide_text(secret) in ("(hidden)", redactor.hide_text(secret))


_TOKEN = "sk-KUBE/TOKEN+99-x7Qz&é"
_HALVES = (_TOKEN[:12], _TOKEN[12:])
_BASIC = base64.b64encode(f"joe:{_TOKEN}".encode()).decode()
REPEATED = {
    "plain": f"you sent {_TOKEN} to me",
    "percent-encoded": quote(_TOKEN, safe=""),
    "as a form": quote_plus(_TOKEN),
    "percent-encoded twice": quote(quote(_TOKEN, safe=""), safe=""),
    "JSON": json.dumps({"x": _TOKEN}),
    "JSON in JSON": json.dumps(json.dumps([_TOKEN])),
    "JSON with escaped slashes": json.dumps(_TOKEN).replace("/", "\\/"),
    "HTML": escape(_TOKEN),
    "HTML in numbers": "".join(f"&#{ord(each)};" for each in _TOKEN),
    "Python's bytes": repr(_TOKEN.encode()),
    "base64": base64.b64encode(_TOKEN.encode()).decode(),
    "base64 of more": base64.b64encode(f'{{"token": "{_TOKEN}"}}'.encode()).decode(),
    "base64 for addresses": base64.urlsafe_b64encode(_TOKEN.encode()).decode(),
    "base64, wrapped": fill(base64.b64encode(_TOKEN.encode()).decode(), 9),
    "basic authentication": f"Basic {_BASIC}",
    "wrapped": "\n".join((f"x {_HALVES[0]}", f"{_HALVES[1]} y")),
    "wrapped in JSON": "\\r\\n  ".join(_HALVES),
    "its first half": _HALVES[0],
    "its first half in a sentence": f"the token {_HALVES[0]} is cut",
    "its second half": f"...{_HALVES[1]} was sent",
    "in hexadecimal": _TOKEN.encode().hex(),
    "in hexadecimal with capitals": f"{_TOKEN.encode().hex().upper()}, it said",
    "Go's bytes": f"[{' '.join(str(byte) for byte in _TOKEN.encode())}]",
    "Rust's bytes": str(list(_TOKEN.encode())),
    "cut before an ellipsis": f"got {_TOKEN[:8]}... from you",
    "cut at the end": f'got "{_TOKEN[:8]}',
}


@pytest.mark.parametrize("how", REPEATED)
@pytest.mark.fault(
    "SE50",
    "A peer repeats a secret in any form: percent-encoded, in base64, escaped, wrapped over lines, cut off",
    area="Security",
    users_see="`(hidden)` in its place",
    stays="the rest of the peer's words",
)
def test_a_secret_is_found_in_whatever_form_it_is_repeated(how: str) -> None:
    redactor = Redactor()
    redactor.add(_TOKEN)
    shown = redactor.hide_text(REPEATED[how])
    assert "(hidden)" in shown
    for part in (*(_TOKEN[at : at + 8] for at in range(len(_TOKEN) - 8)), _BASIC[8:-4]):
        assert part not in shown
        assert part not in "".join(shown.split())
        assert base64.b64encode(part.encode()).decode()[:-3] not in "".join(shown.split())


def test_the_login_of_basic_authentication_is_hidden_decoded_too() -> None:
    redactor = Redactor()
    redactor.add(f"Basic {_BASIC}")  # the value of a secret header
    assert redactor.hide_text(f"joe may not come in with {_TOKEN}") == "joe may not come in with (hidden)"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("the headers: Bearer abcdef-1234, more", "the headers: Bearer (hidden), more"),
        ('{"Authorization": "Basic Zm9vYmFyYmF6"}', '{"Authorization": "Basic (hidden)"}'),
        ("x-api-key: 0123456789abcdef", "x-api-key: (hidden)"),
        ('\\"password\\": \\"hunter2hunter2\\"', '\\"password\\": \\"(hidden)\\"'),
        ("GET http://u:p@gw/v1?access_token=abc&n=1", "GET http://(hidden)@gw/v1?access_token=(hidden)&n=1"),
        ("Incorrect API key provided: sk-proj-abcdefgh1234567", "Incorrect API key provided: (hidden)"),
        ("client_secret=abcd1234efgh5678&x", "client_secret=(hidden)&x"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "aws_secret_access_key = (hidden)"),
        ("the key nvapi-abcDEF0123456789abcdef of NVIDIA", "the key (hidden) of NVIDIA"),
        ("glpat-abcdEFGH1234567890ab, AKIAIOSFODNN7EXAMPLE", "(hidden), (hidden)"),
        (
            "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0B\n-----END",
            "-----BEGIN PRIVATE KEY-----\n(hidden)-----END",
        ),
        ("a JWT eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl", "a JWT (hidden)"),
    ],
)
@pytest.mark.fault(
    "SE51",
    "A gateway shows credentials that Kneewatch does not know: its own key to the next server, somebody's token",
    area="Security",
    users_see="`(hidden)` in their place",
    stays="words such as `Bearer authentication required`",
)
def test_credentials_that_nobody_told_are_found_by_what_stands_before_them(words: str, shown: str) -> None:
    assert Redactor().hide_text(words) == shown


@pytest.mark.parametrize(
    "words",
    [
        "Bearer authentication required",
        "expected another header; use api_key_file, with auth_header for another scheme, got 'Authorization'",
        "max_tokens=128000 is larger than 8192; token 128009 is unknown",
        "time_to_first_token: 0.12345678, gsk and npm, next_token=12345678, keys: 12345678",
        "http://llama-8b:8000/v1/models?limit=10: HTTP 401: Basic realm",
        "größe \u2028 & <b>50 %</b>",
    ],
)
def test_other_words_stay(words: str) -> None:
    redactor = Redactor()
    redactor.add(_TOKEN)
    assert redactor.hide_text(words) == words


@given(st.text(min_size=12), st.text(), st.text())
def test_no_secret_of_a_usual_length_is_left_whatever_is_around_it(secret: str, before: str, after: str) -> None:
    redactor = Redactor()
    redactor.add(secret)
    if len(plain := "".join(secret.split())) >= 12:
        assert plain not in "".join(redactor.hide_text(f"{before}{secret}{after}").split())


def test_a_short_key_such_as_none_is_hidden_in_the_words_of_its_server_alone() -> None:
    for key in ("none", "EMPTY", "vllm"):
        SECRETS.add(key)
    SECRETS.add("a1b2")
    assert one_line('the API key "none", Bearer EMPTY') == 'the API key "(hidden)", Bearer (hidden)'
    words = "none of vLLM's vllm; xa1b2x is none of its keys {}"
    assert one_line(words.format("a1b2")) == words.format("(hidden)")


def test_what_is_read_as_a_secret_is_hidden_in_all_words_and_errors(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{_TOKEN}\n")
    read_secret(tmp_path / "key")
    assert one_line(f"you sent\n{_TOKEN}") == "you sent (hidden)"
    assert str(KneewatchError(f"http://a: you sent {_TOKEN}")) == "http://a: you sent (hidden)"
