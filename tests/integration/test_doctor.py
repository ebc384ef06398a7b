"""`kneewatch doctor` beside the mock server: 15 s, three canaries, and a configuration to go on with."""

import json
import ssl
from pathlib import Path

import pytest
import trustme
from foreign_server import MODELS, stream
from kneewatch_command import kneewatch, measured
from monitor import Sim
from threaded_server import Request, threaded_server

pytestmark = pytest.mark.long


def test_it_examines_a_server_and_writes_a_configuration_for_it(tiny: Sim, tmp_path: Path) -> None:
    file = tmp_path / "kneewatch.yml"
    done = measured("doctor", "--base-url", tiny.base_url, "--seconds", "15", "--write", file)
    assert done.status == 0, done.out + done.err
    assert "serves mock-model with vllm 0.32" in done.out
    assert "Healthy:    yes: 3 of 3 canaries met every objective" in done.out
    assert f"wrote {file}" in done.out
    assert kneewatch("config", "check", "-c", file).status == 0
    again = kneewatch("doctor", "--base-url", tiny.base_url, "--write", file)
    assert (again.status, again.out) == (2, "")
    assert again.err == f"kneewatch: --write {file}: the file exists; remove it, or name another one\n"


def test_json_and_the_status_for_a_pipeline(tiny: Sim) -> None:
    done = kneewatch("doctor", "--base-url", tiny.base_url, "--seconds", "15", "--json", "--fail-on", "never")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert found["engine"] == "vllm"
    assert len(found["canaries"]) == 3
    assert found["flags"]["block_size"] == {"value": "16", "source": "metrics"}


def test_a_server_that_is_not_there_is_one_line() -> None:
    done = kneewatch("doctor", "--base-url", "http://127.0.0.1:9", "--seconds", "15")
    assert done.status == 2
    assert done.err.count("\n") == 1
    assert "check base_url and that the server is up" in done.err


def test_a_server_with_a_certificate_of_ones_own_authority(tmp_path: Path) -> None:
    authority, tls, file = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), tmp_path / "ca.pem"
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(str(file))

    def serve(request: Request, body: bytes) -> None:
        status, kind, pieces = stream(body) if body else (200, "application/json", [MODELS])
        request.answer(status, b"".join(pieces), kind)

    with threaded_server(serve, tls) as url:
        assert kneewatch("check", "--base-url", url).status == 2
        done = measured("check", "--base-url", url, "--ca-file", file)
    assert done.status == 0, done.out + done.err
