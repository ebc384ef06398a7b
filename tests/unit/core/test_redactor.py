"""Secrets in text of other programs."""

import base64
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.core.redactor import Redactor

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
