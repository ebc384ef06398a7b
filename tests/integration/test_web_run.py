"""`kneewatch run` behind TLS and a password, and the page of an on-demand probe as Prometheus' own tool reads it."""

import json
import re
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import bcrypt
import httpx
import pytest
import trustme
import yaml
from kneewatch_command import kneewatch, start_kneewatch
from monitor import Monitor, Sim
from process import eventually
from real_prometheus import RealPrometheus

from probe.runtime.kept_program import free_port

DOCS = Path(__file__).parents[2] / "docs/pages.md"
TARGET, WORD = "mock-server-a", "wonderland"


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


@dataclass
class Followed:
    """A running monitor of targets that are found, and one that will go; with what it is told to watch."""

    monitor: Monitor
    config: dict[str, object]

    def ask(self, path: str, host: str) -> int:
        """Return the status for a request with this Host header."""
        return httpx.get(self.monitor.base_url + path, headers={"host": host}, timeout=20, trust_env=False).status_code

    def reload(self, **changes: object) -> None:
        """Reload the configuration with these changes."""
        address = {"listen": self.monitor.address}
        self.monitor.config_file.write_text(yaml.safe_dump({**address, **self.config, **changes}))
        answer = httpx.post(f"{self.monitor.base_url}/-/reload", timeout=30, trust_env=False)
        assert answer.status_code == 200, answer.text


@pytest.fixture
def followed(tiny: Sim, tmp_path: Path) -> Iterator[Followed]:
    server, labels = tiny.base_url.removeprefix("http://"), {"zone": "eu-1", "app.kubernetes.io/name": "qwen"}
    (tmp_path / "good.yml").write_text(yaml.safe_dump([{"targets": [server], "labels": labels}]))
    (tmp_path / "bad.yml").write_text("targets: <b>none</b>\n")
    finding = [
        {"name": name, "discover": {"file": {"files": [str(tmp_path / f"{name}.yml")]}}} for name in ("good", "bad")
    ]
    config: dict[str, object] = {
        "web_allowed_hosts": ["kneewatch.example.org"],
        "workloads": {"long": {"prompt_tokens": 32, "output_tokens": 2000}},
        # Its first canary is at once, the next one never.
        "targets": [*finding, {"name": "leaving", "base_url": tiny.base_url, "canary": {"every": "1h"}}],
    }
    with Monitor(config, tmp_path / "run") as monitor:
        yield Followed(monitor, config)


def test_nothing_is_served_without_the_password_or_without_tls(secured: Secured) -> None:
    assert secured.get("/metrics", "x").status_code == 401
    assert "kneewatch_build_info" in secured.get("/metrics").text
    with pytest.raises(httpx.TransportError):
        httpx.get(secured.url.replace("https", "http"), timeout=10, trust_env=False)


@pytest.mark.fault(
    "CO25",
    "A password of the pages is changed",
    area="Configuration",
    users_see="the new one is taken",
    stays="-",
)
def test_a_new_password_is_taken_while_it_runs(secured: Secured) -> None:
    secured.lock("looking-glass")
    eventually(lambda: secured.answers("looking-glass"), within_s=15, what="the new password")
    assert secured.get("/", WORD).status_code == 401
    secured.lock(WORD)
    eventually(secured.answers, within_s=15, what="the old password again")


def test_the_configuration_is_reloaded_on_request(secured: Secured) -> None:
    taken = secured.get("/-/reload", method="POST")
    assert (taken.status_code, taken.text) == (200, "Configuration reloaded.\n")
    file = secured.folder / "kneewatch.yml"
    good = file.read_text()
    file.write_text(good.replace("targets:", "tragets:"))
    refused = secured.get("/-/reload", method="POST")
    assert refused.status_code == 500
    assert "tragets" in refused.text
    file.write_text(good)
    assert secured.get("/-/reload", method="POST").status_code == 200
    assert secured.get(f"/api/v1/targets/{TARGET}").json()["name"] == TARGET


def test_discovered_targets_and_discovery_problems_are_on_the_pages(followed: Followed, tiny: Sim) -> None:
    monitor, name = followed.monitor, f"good/127.0.0.1:{tiny.port}"
    eventually(lambda: name in monitor.page("/api/v1/targets"), within_s=20, what="a target that was found")
    target = json.loads(monitor.page(f"/api/v1/targets/{name}"))
    assert target["discovery"] == "good"
    assert target["labels"]["app.kubernetes.io/name"] == "qwen"
    page = monitor.page(f"/targets/{name}")
    assert "discovered by good" in page
    assert "<dt>zone</dt><dd>eu-1</dd>" in page
    assert "discovered by" not in monitor.page("/targets/leaving")
    eventually(
        lambda: "Discovery has a problem" in monitor.page("/"), within_s=20, what="the other discovery's problem"
    )
    (notice,) = re.findall(r"Discovery has a problem.*?</section>", monitor.page("/"), re.DOTALL)
    assert re.search(r"<strong>bad</strong><div>[^<]*bad\.yml[^<]*</div>", notice)
    followed.reload(targets=followed.config["targets"][2:])  # type: ignore[index]
    assert "Discovery has" not in monitor.page("/")


def test_a_strangers_name_reaches_only_what_probes_ask_for_and_a_name_is_added_by_a_reload(followed: Followed) -> None:
    for path in ("/", "/config", "/api/v1/targets", "/probe?target=leaving"):
        assert followed.ask(path, "evil.example.org") == 421
    for path in ("/metrics", "/-/healthy", "/-/ready"):
        assert followed.ask(path, "evil.example.org") == 200
    for host in ("kneewatch.example.org", "kneewatch.monitoring.svc:9876", followed.monitor.address, "localhost"):
        assert followed.ask("/config", host) == 200
    assert followed.ask("/config", "kneewatch.example.net") == 421
    followed.reload(web_allowed_hosts=[".example.net"])
    assert followed.ask("/config", "kneewatch.example.net") == 200
    assert followed.ask("/config", "kneewatch.example.org") == 421


@pytest.mark.fault(
    "CO12",
    "A target is removed while it is probed by Prometheus",
    area="Configuration",
    users_see="404",
    stays="-",
)
def test_a_target_that_is_removed_while_it_is_probed_is_said_to_be_gone(followed: Followed, tiny: Sim) -> None:
    def running() -> bool:
        page = httpx.get(f"{tiny.base_url}/metrics", timeout=10, trust_env=False).text
        return any(
            float(line.rsplit(" ", 1)[1]) > 0
            for line in page.splitlines()
            if line.startswith("vllm:num_requests_running")
        )

    seen = 'kneewatch_requests_total{target="leaving"'
    eventually(lambda: re.search(seen + ".* 1.0", followed.monitor.page("/metrics")), within_s=30, what="its canary")
    address = f"{followed.monitor.base_url}/probe?target=leaving&workload=long"
    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(httpx.get, address, timeout=60, trust_env=False)
        eventually(running, within_s=20, what="the probe is under way")
        followed.reload(targets=followed.config["targets"][:2])  # type: ignore[index]
        answer = asked.result(60)
    assert (answer.status_code, answer.text) == (404, "the target was removed during the request\n")


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
