"""`kneewatch run` behind TLS and a password, and the page of an on-demand probe as Prometheus' own tool reads it."""

import re
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import bcrypt
import httpx
import pytest
import trustme
import yaml
from kneewatch_command import kneewatch, start_kneewatch
from monitor import Sim
from process import eventually, free_port
from real_prometheus import RealPrometheus

DOCS = Path(__file__).parents[2] / "docs/pages.md"
TARGET, WORD = "stand-in-a", "wonderland"


@dataclass
class Secured:
    """A running monitor, what it is reached with, and its files."""

    url: str
    folder: Path

    def get(self, path: str, password: str = WORD, method: str = "GET") -> httpx.Response:
        verify = ssl.create_default_context(cafile=self.folder / "ca.pem")
        with httpx.Client(verify=verify, auth=("alice", password), trust_env=False, timeout=20) as client:
            return client.request(method, self.url + path)

    def answers(self, password: str = WORD) -> bool:
        try:
            return self.get("/-/healthy", password).status_code == 200
        except httpx.HTTPError:
            return False

    def lock(self, password: str) -> None:
        hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(6)).decode()
        tls = {"cert_file": "cert.pem", "key_file": "key.pem"}
        content = {"tls_server_config": tls, "basic_auth_users": {"alice": hashed}}
        (self.folder / "web.yml").write_text(yaml.safe_dump(content))


@pytest.fixture(scope="module")
def secured(sim: Sim, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    port = free_port()
    config = {
        "listen": f"127.0.0.1:{port}",
        "web_config_file": str(folder / "web.yml"),
        "workloads": {"short": {"prompt_tokens": 32, "output_tokens": 8}},
        "targets": [{"name": TARGET, "base_url": sim.base_url, "canary": {"every": "1s", "workload": "short"}}],
    }
    (folder / "kneewatch.yml").write_text(yaml.safe_dump(config))
    running = Secured(f"https://127.0.0.1:{port}", folder)
    running.lock(WORD)
    process = start_kneewatch("run", "-c", folder / "kneewatch.yml", log=folder / "run.log")
    process.ready(running.answers, within_s=60)
    yield running
    assert process.terminate() == 0


def test_nothing_is_served_without_the_password_or_without_tls(secured: Secured) -> None:
    assert secured.get("/metrics", "x").status_code == 401
    assert "kneewatch_build_info" in secured.get("/metrics").text
    with pytest.raises(httpx.TransportError):
        httpx.get(secured.url.replace("https", "http"), timeout=10, trust_env=False)


def test_a_new_password_is_taken_while_it_runs(secured: Secured) -> None:
    secured.lock("looking-glass")
    eventually(lambda: secured.answers("looking-glass"), within_s=15, what="the new password")
    assert secured.get("/", WORD).status_code == 401
    secured.lock(WORD)
    eventually(secured.answers, within_s=15, what="the old password again")


def test_the_configuration_is_taken_anew_when_asked(secured: Secured) -> None:
    taken = secured.get("/-/reload", method="POST")
    assert (taken.status_code, taken.text) == (200, "Kneewatch has taken the configuration.\n")
    file = secured.folder / "kneewatch.yml"
    good = file.read_text()
    file.write_text(good.replace("targets:", "tragets:"))
    refused = secured.get("/-/reload", method="POST")
    assert refused.status_code == 500
    assert "tragets" in refused.text
    file.write_text(good)
    assert secured.get("/-/reload", method="POST").status_code == 200
    assert secured.get(f"/api/v1/targets/{TARGET}").json()["name"] == TARGET


@pytest.mark.prometheus
def test_prometheus_own_tool_finds_nothing_wrong_with_a_probe(secured: Secured, promtool: str) -> None:
    page = secured.get(f"/probe?target={TARGET}").content
    assert b"probe_success 1.0" in page
    checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, timeout=30, check=False)
    assert (checked.returncode, checked.stderr) == (0, b"")


@pytest.mark.prometheus
def test_prometheus_comes_in_and_probes_as_the_documentation_says(
    secured: Secured, prometheus_binary: str, tmp_path: Path
) -> None:
    (written,) = re.findall(r"```yaml\n(scrape_configs:.*?)```", DOCS.read_text(), re.DOTALL)
    address = secured.url.removeprefix("https://")
    filled = written.replace("kneewatch:9876", address).replace("llama-8b", TARGET).replace("[rag]", "[short]")
    (probe,) = yaml.safe_load(filled)["scrape_configs"]
    way = {
        "scheme": "https",
        "basic_auth": {"username": "alice", "password": WORD},
        "tls_config": {"ca_file": str(secured.folder / "ca.pem")},
    }
    pages = {"job_name": "pages", "static_configs": [{"targets": [address]}], **way}
    jobs = [pages, {**probe, **way, "scrape_interval": "5s", "scrape_timeout": "5s"}]
    with RealPrometheus(prometheus_binary, tmp_path / "prometheus", addresses=[], jobs=jobs) as real:
        eventually(lambda: real.value('up{job="pages"}') == 1, within_s=30, what="a scrape behind TLS and a password")
        seen = f'probe_success{{target="{TARGET}"}}'
        eventually(lambda: real.value(seen) == 1, within_s=30, what="a probe")
        assert real.value(f'probe_ttft_seconds{{target="{TARGET}"}}') > 0  # type: ignore[operator]


def test_a_web_configuration_that_locks_nothing_is_no_start(secured: Secured, tmp_path: Path) -> None:
    web = tmp_path / "web.yml"
    web.write_text("basic_auth_users: {alice: wonderland}\n")
    config = yaml.safe_load((secured.folder / "kneewatch.yml").read_text())
    file = tmp_path / "kneewatch.yml"
    file.write_text(yaml.safe_dump({**config, "listen": f"127.0.0.1:{free_port()}", "web_config_file": str(web)}))
    done = kneewatch("run", "-c", file)
    assert done.status == 2
    (line,) = done.err.splitlines()
    assert "basic_auth_users.alice: expected a bcrypt hash" in line
    assert "wonderland" not in line
