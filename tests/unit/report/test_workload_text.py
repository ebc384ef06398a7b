"""Words for a workload that was learnt from users."""

from dataclasses import replace

from example_records import result

from probe.report.html import report
from probe.report.result_text import result_words
from probe.report.workload_text import workload_words

_LENGTH = {"tokens": [100, 200, 4000, 8000], "shares": [0.0, 0.9, 0.9, 1.0]}
_USERS = {"name": "users", "prompt_tokens": _LENGTH, "output_tokens": {"tokens": [50, 50], "shares": [0.0, 1.0]}}


def test_a_result_for_users_states_what_was_sent() -> None:
    found = replace(result(), context=replace(result().context, workload=_USERS))
    lines = result_words(found).splitlines()
    assert (
        "Workload:    as users send: prompts of mean 707, p50 147, p95 5,657, p99 7,464 tokens;"
        " answers of mean 50, p50 50, p95 50, p99 50 tokens"
    ) in lines
    assert "mean 707, p50 147, p95 5,657, p99 7,464" in report(found)
    assert "shares" not in report(found)


def test_a_mixture_states_its_parts() -> None:
    mixture = {**_USERS, "name": "any", "parts": [{"name": "chat", "share": 0.75}, {"name": "rag", "share": 0.25}]}
    found = replace(result(), context=replace(result().context, workload=mixture))
    assert "Workload:    75% chat, 25% rag: prompts of mean 707" in result_words(found)
    alone = replace(result(), context=replace(result().context, workload={**mixture, "parts": mixture["parts"][:1]}))
    assert "Workload:    chat: prompts of mean 707" in result_words(alone)


def test_a_configured_workload_needs_no_such_line() -> None:
    assert "as users send" not in result_words(result())


def test_which_workload_a_capacity_is_for_is_its_name_and_its_lengths() -> None:
    assert workload_words(_USERS) == "workload users (707 + 50 tokens on average)"
    assert workload_words({"name": "chat", "prompt_tokens": 256, "output_tokens": 128}) == (
        "workload chat (256 + 128 tokens)"
    )
    varied = {"median": 400, "sigma": 0.9, "maximum": 3000}
    assert workload_words({"name": "varied", "prompt_tokens": varied, "output_tokens": 128}) == (
        "workload varied (median 400 + 128 tokens)"
    )
    assert workload_words({"name": "other"}) == "workload other"
