"""Answers that take longer than 30 s, and Kneewatch's own time limit, with the command and a slow mock server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kneewatch_command import kneewatch, start_kneewatch
from process import eventually

from probe.runtime.kept_program import free_port

L4_TPOT_MS = 67


@pytest.fixture(scope="module")
def slow_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a server with a TPOT of 67 ms."""
    port, log = free_port(), Path(tmp_path_factory.mktemp("slow")) / "sim.log"
    process = start_kneewatch("sim", "--port", str(port), "--profile", "8b-l4", log=log)
    eventually(lambda: "http://" in process.tail(), within_s=30, what="the line that says where")
    yield f"http://127.0.0.1:{port}"
    process.terminate()


@pytest.mark.slow
@pytest.mark.fault("CO62")
def test_a_limit_that_is_set_is_named_as_kneewatchs_own_and_the_advice_is_to_raise_it(slow_url: str) -> None:
    named = "no full answer within 1 s, Kneewatch's time limit; --timeout raises it"
    checked = kneewatch("check", "--base-url", slow_url, "--timeout", "1s")
    assert (checked.status, named in checked.out) == (1, True), checked.out + checked.err
    load = ("--concurrency", "1", "--requests-per-step", "2", "--timeout", "1s")
    ran = kneewatch("ramp", "--base-url", slow_url, *load)
    said = " ".join(ran.out.split())
    assert f"Failure: timeout: {named}" in said, ran.out + ran.err
    assert "raise --timeout" in said
    assert "the server's log" not in said
    note = "--timeout: an answer of 128 tokens may take 6.85 s by its objectives, and cannot end within 1 s; raise it"
    assert note in ran.err


@pytest.mark.long
@pytest.mark.fault("CO60")
def test_an_answer_of_1024_tokens_is_measured_on_a_server_that_is_too_slow(slow_url: str) -> None:
    done = kneewatch("check", "--base-url", slow_url, "--prompt-tokens", "256", "--output-tokens", "1024")
    assert ": missed tpot; " in done.out, done.out + done.err
    assert "256 + 1024 tokens" in done.out
    assert done.status == 1
