"""A real Prometheus as people guard theirs: by its web configuration, and by nginx. Each refusal is one line."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from kneewatch_command import kneewatch
from nginx_proxy import nginx_with
from process import eventually
from real_prometheus import RealPrometheus

from probe.config.prometheus import PrometheusConfig
from probe.core.errors import TargetError
from probe.prometheus.queries import Prometheus
from probe.runtime.kept_program import free_port

pytestmark = pytest.mark.prometheus

PASSWORD, TOKEN = "correct horse", "s3cret-of-the-gateway"
# bcrypt of the password, at its lowest cost.
HASH = "$2b$04$LJPixLAExIQaPV.eRI2Cqua0BYqq9E1/xmr7C1PMRmCNkk0F1H9NS"
LOGIN = {"basic_auth": {"username": "kneewatch", "password": PASSWORD}}
TENANT = {"headers": {"X-Scope-OrgID": "serving"}}


@dataclass(frozen=True)
class Files:
    """Certificates of one authority, and of a stranger."""

    folder: Path
    known: trustme.CA = field(default_factory=trustme.CA)
    other: trustme.CA = field(default_factory=trustme.CA)

    def certificate(self, name: str, *hosts: str, of: trustme.CA | None = None, **values: Any) -> Path:
        file = self.folder / f"{name}.pem"
        (of or self.known).issue_cert(*hosts, **values).private_key_and_cert_chain_pem.write_to_path(file)
        return file

    def authority(self, name: str, of: trustme.CA) -> Path:
        of.cert_pem.write_to_path(self.folder / name)
        return self.folder / name


@dataclass(frozen=True)
class Guarded:
    """The addresses by what guards them, and the files that a client needs."""

    urls: Mapping[str, str]
    ca_file: Path
    other_ca_file: Path
    client: Path
    stranger: Path

    def ask(self, where: str, path: str = "", **values: Any) -> str:
        """Return "answered", or what is said of the refusal without the address, which comes first."""
        url = self.urls[where] + path
        config = PrometheusConfig.model_validate({"url": url, **values})
        try:
            assert asyncio.run(Prometheus(config).firing_pages("a")) == []
        except TargetError as error:
            line = str(error)
            assert line.startswith(f"{url}: ")
            assert "\n" not in line
            assert PASSWORD not in line
            assert TOKEN not in line
            return line.removeprefix(f"{url}: ")
        return "answered"

    @property
    def all_of_it(self) -> dict[str, Any]:
        return {"ca_file": self.ca_file, "cert_file": self.client, **LOGIN}


def _tls(port: int, certificate: Path, more: str = "", location: str = "proxy_pass http://vllm;") -> str:
    return (
        f"server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {certificate}; ssl_certificate_key {certificate};"
        f" {more} location / {{ {location} }} }}"
    )


def _gateway(port: int) -> str:
    """Return a server that takes a token and wants a tenant, and has the API below /prometheus."""
    return (
        f'server {{ listen 127.0.0.1:{port}; if ($http_authorization != "Bearer {TOKEN}") {{ return 401; }}'
        ' if ($http_x_scope_orgid = "") { return 403 "no org id"; }'
        " location /prometheus/ { proxy_pass http://vllm/; } location / { return 404; } }"
    )


@pytest.fixture(scope="module")
def guarded(prometheus_binary: str, nginx: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    files = Files(tmp_path_factory.mktemp("guarded"))
    folder, yesterday = files.folder, datetime.now(UTC) - timedelta(days=1)
    good = files.certificate("good", "127.0.0.1", "localhost")
    ca_file = files.authority("ca.pem", files.known)
    web = folder / "web.yml"
    tls = {
        "cert_file": str(good),
        "key_file": str(good),
        "client_auth_type": "RequireAndVerifyClientCert",
        "client_ca_file": str(ca_file),
    }
    web.write_text(yaml.safe_dump({"tls_server_config": tls, "basic_auth_users": {"kneewatch": HASH}}))
    ports = {name: free_port() for name in ("gateway", "other_name", "expired", "certificate", "down")}
    with ExitStack() as held:
        own = held.enter_context(RealPrometheus(prometheus_binary, folder / "own", addresses=[], web_config=web))
        plain = held.enter_context(RealPrometheus(prometheus_binary, folder / "plain", addresses=[]))
        servers = (
            _gateway(ports["gateway"]),
            _tls(ports["other_name"], files.certificate("name", "prometheus.example.org")),
            _tls(ports["expired"], files.certificate("expired", "127.0.0.1", not_after=yesterday)),
            _tls(ports["certificate"], good, f"ssl_client_certificate {ca_file}; ssl_verify_client on;"),
            _tls(ports["down"], good, location="return 503;"),
        )
        held.enter_context(nginx_with(nginx, folder / "nginx", plain.base_url, *servers))
        urls = {name: f"{'http' if name == 'gateway' else 'https'}://127.0.0.1:{port}" for name, port in ports.items()}
        found = Guarded(
            {**urls, "own": own.base_url, "plain": plain.base_url, "no_tls": own.base_url.replace("https", "http")},
            ca_file,
            files.authority("other-ca.pem", files.other),
            files.certificate("client", "kneewatch"),
            files.certificate("stranger", "kneewatch", of=files.other),
        )
        eventually(lambda: found.ask("own", **found.all_of_it) == "answered", within_s=30, what="Prometheus answers")
        yield found


@pytest.mark.fault(
    "PR133",
    "Prometheus' web configuration asks for a client certificate and a login",
    area="Prometheus",
    users_see="one line that says what it requires, and which keys to set",
    stays="-",
)
def test_prometheus_own_certificate_and_login(guarded: Guarded) -> None:
    known = {"ca_file": guarded.ca_file}
    assert guarded.ask("own", **guarded.all_of_it) == "answered"
    wanted = "it requires a client certificate that it trusts"
    assert guarded.ask("own", **known).startswith(wanted)
    assert guarded.ask("own", **known).endswith("; set prometheus.cert_file and key_file")
    assert guarded.ask("own", cert_file=guarded.stranger, **known).endswith(
        "; set prometheus.cert_file to one that its authority has signed and that has not expired"
    )
    wrong = {**guarded.all_of_it, "basic_auth": {"username": "kneewatch", "password": "another"}}
    assert "asks for credentials (HTTP 401: Unauthorized); it does not take these" in guarded.ask("own", **wrong)


@pytest.mark.fault(
    "PR134",
    "The certificate of Prometheus is of an unknown authority, for another name, or has expired",
    area="Prometheus",
    users_see="one line that says which of them, and the fix",
    stays="no credentials are sent",
)
def test_a_certificate_that_is_not_taken_is_one_line_with_the_fix(guarded: Guarded) -> None:
    known = {"ca_file": guarded.ca_file}
    for values in ({}, {"ca_file": guarded.other_ca_file}):
        said = guarded.ask("own", **values)
        assert said.startswith("its certificate is signed by an authority that is not known here (")
        assert said.endswith("; set prometheus.ca_file to that authority's certificate")
    said = guarded.ask("other_name", **known)
    assert said.startswith("its certificate is for another name (")
    assert said.endswith("; give the name that it is for in prometheus.url")
    assert guarded.ask("expired", **known).endswith("certificate has expired (_ssl.c:1006)); renew it there")
    assert guarded.ask("other_name", verify=False) == "answered"


def test_tls_where_there_is_none_and_none_where_there_is(guarded: Guarded) -> None:
    plain = PrometheusConfig(url=guarded.urls["plain"].replace("http:", "https:"))
    with pytest.raises(TargetError, match=r"it does not speak TLS at this port .*; write http:// in prometheus\.url"):
        asyncio.run(Prometheus(plain).firing_pages("a"))
    assert "https" in guarded.ask("no_tls").lower()


@pytest.mark.fault(
    "PR135",
    "nginx before Prometheus wants a token, a tenant's header or a client certificate, or has nothing behind it",
    area="Prometheus",
    users_see="one line with the status, what it means and the fix",
    stays="-",
)
def test_nginx_with_a_token_a_tenant_and_a_path(guarded: Guarded) -> None:
    token, path = {"token": TOKEN}, "/prometheus"
    assert guarded.ask("gateway", path, **token, **TENANT) == "answered"
    assert guarded.ask("gateway", path).startswith(
        "Prometheus asks for credentials (HTTP 401); set prometheus.token_file"
    )
    assert guarded.ask("gateway", path, token="another").endswith("check prometheus.token_file, basic_auth and headers")
    assert guarded.ask("gateway", path, **token).startswith("Prometheus forbids the question (HTTP 403: no org id")
    assert guarded.ask("gateway", "/prom", **token, **TENANT) == (
        "there is no query API at this address (HTTP 404); check the path of prometheus.url"
    )
    known = {"ca_file": guarded.ca_file}
    assert guarded.ask("certificate", cert_file=guarded.client, **known) == "answered"
    for values, fix in (({}, "and key_file"), ({"cert_file": guarded.stranger}, "and that has not expired")):
        said = guarded.ask("certificate", **known, **values)
        assert said.startswith(
            "the proxy requires a client certificate that it trusts (HTTP 400); set prometheus.cert_file"
        )
        assert said.endswith(fix)
    assert guarded.ask("down", **known).startswith("Prometheus is not ready (HTTP 503); see whether Prometheus runs")


@pytest.mark.long
def test_a_command_takes_all_of_it_from_a_file(guarded: Guarded, tmp_path: Path) -> None:
    password, token = tmp_path / "password", tmp_path / "token"
    password.write_text(f"{PASSWORD}\n")
    token.write_text(f"{TOKEN}\n")
    login = {"basic_auth": {"username": "kneewatch", "password_file": str(password)}}
    sections = {
        "own": {"ca_file": str(guarded.ca_file), "cert_file": str(guarded.client), **login},
        "gateway": {"token_file": str(token), **TENANT},
    }
    for where, section in sections.items():
        file = tmp_path / f"{where}.yml"
        url = guarded.urls[where] + ("/prometheus" if where == "gateway" else "")
        file.write_text(yaml.safe_dump({"prometheus": {"url": url, **section}}))
        done = kneewatch("doctor", "--prometheus", file)
        assert done.status == 2
        assert "no series of vLLM in that time" in done.err, "it was asked, and there is none"
    done = kneewatch("doctor", "--prometheus", guarded.urls["gateway"] + "/prometheus")
    assert "set prometheus.token_file, basic_auth or headers" in done.err
    assert done.err.endswith(" (in a file.yml with that section, for --prometheus)\n")
    assert done.err.count("\n") == 1
