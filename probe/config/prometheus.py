"""The `prometheus` section: the address of a Prometheus or what answers like one, its credentials, and their checks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from probe.config.headers import AnyHeadersConfig, SecretHeader, header_problems
from probe.config.messages import shown
from probe.config.path_checks import authorities_problem, client_certificate_problem, file_problem
from probe.config.types import ConfigSection, PrometheusLabels, Secret, plain_url
from probe.core.plain_file import read_secret
from probe.core.redactor import SECRETS

# What is added to the address. Vendors print it with the address.
_API = ("/api/v1/query_range", "/api/v1/query", "/api/v1")


def _query_url(text: str) -> str:
    if "@" in text:
        raise ValueError("expected an address without credentials; put them in basic_auth")
    url = plain_url(text)
    for ending in _API:
        url = url.removesuffix(ending)
    return url


def _username(text: str) -> str:
    if not text or ":" in text or not text.isprintable():
        raise ValueError("expected a user name without ':'")
    return text


QueryUrl = Annotated[str, AfterValidator(_query_url), Field(title="address")]
Username = Annotated[str, AfterValidator(_username)]


class BasicAuthConfig(ConfigSection):
    """A name and a password, as in Prometheus' own `basic_auth`."""

    username: Username
    """The name; at Grafana Cloud, the number of the stack's Prometheus."""
    password: Secret | None = None
    """The password, preferably as `${NAME}`. Not together with `password_file`."""
    password_file: Path | None = None
    """File that contains only the password; read again for each question. Must be readable at startup."""

    def login(self) -> tuple[bytes, bytes]:
        """Return the name and the password. Raises OSError or UnicodeError for a file that cannot be read."""
        password = read_secret(self.password_file) if self.password_file else ""
        password = self.password.get_secret_value().strip() if self.password is not None else password
        SECRETS.add_login(self.username, password)
        return self.username.encode(), password.encode()


class PrometheusConfig(ConfigSection):
    """The Prometheus that is asked whether an alert fires for the target, before load is added."""

    url: QueryUrl
    """Address of the Prometheus, or of what answers its questions, with its path
    ([integrations.md](integrations.md#thanos-mimir-and-clouds)). `/api/v1/query` is added.
    """
    token: Secret | None = None
    """Bearer token, preferably as `${NAME}`. Not together with `token_file`."""
    token_file: Path | None = None
    """File that contains only the bearer token; read again for each question. Must be readable at startup."""
    basic_auth: BasicAuthConfig | None = None
    """Name and password. Not together with a token."""
    headers: AnyHeadersConfig = {}  # noqa: RUF012 - pydantic copies it
    """Headers of the questions, at most 16, such as a tenant's `X-Scope-OrgID`; secrets as in `targets[].headers`."""
    ca_file: Path | None = None
    """CA certificates that sign the certificate of that Prometheus, in a readable PEM file; read again when it changes.
    Default: the usual authorities.
    """
    verify: bool = True
    """`false` accepts any certificate."""
    cert_file: Path | None = None
    """Client certificate with its chain, for a Prometheus that requires one, as PEM; https only. Must be readable at
    startup.
    """
    key_file: Path | None = None
    """Private key of the client certificate, if `cert_file` does not contain it, as PEM without a passphrase. Must be
    readable at startup.
    """
    labels: PrometheusLabels = Field(default_factory=dict)
    """Labels of this Kneewatch's series in that Prometheus, such as `{cluster: eu}`: added to every question. Needed
    where it has targets of the same name from several clusters or namespaces; without them such an answer is refused.
    """

    def has_credentials(self) -> bool:
        """Return whether questions carry credentials, or headers that may be some."""
        return any((self.token, self.token_file, self.basic_auth, self.headers, self.cert_file))

    def sent_headers(self) -> dict[str, str]:
        """Return the headers of a question, read again from their files. Raises OSError or UnicodeError."""
        sent = {
            name: value.value() if isinstance(value, SecretHeader) else value for name, value in self.headers.items()
        }
        if self.token is None and self.token_file is None:
            return sent
        token = read_secret(self.token_file) if self.token_file else ""
        token = self.token.get_secret_value().strip() if self.token is not None else token
        return {**sent, "Authorization": f"Bearer {token}"}


def prometheus_problems(prometheus: PrometheusConfig | None, raw: object) -> Iterator[str]:
    """Yield problems, each with the path of its key."""
    if prometheus is None:
        return
    for key, words in _unusable_files(prometheus):
        yield f"prometheus.{key}: {shown(['prometheus', *key.split('.')], raw)} {words}"
    if prometheus.key_file and not prometheus.cert_file:
        yield "prometheus.key_file: is set without a certificate; add cert_file"
    if urlsplit(prometheus.url).scheme != "https" and prometheus.cert_file:
        yield "prometheus.cert_file: url is http, and client certificates need https; use https, or remove cert_file"
    if prometheus.ca_file and not prometheus.verify:
        yield "prometheus.verify: false accepts any certificate, so ca_file has no effect; remove one of them"
    yield from _contradictions(prometheus)
    is_set = prometheus.token or prometheus.token_file or prometheus.basic_auth
    for name, value in prometheus.headers.items():
        if is_set and name.lower() == "authorization":
            yield f"prometheus.headers.{name}: the token or basic_auth sends this header; keep one"
        else:
            yield from (f"prometheus.headers.{name}: {words}" for _, words in header_problems({name: value}, ""))
    if len({name.lower() for name in prometheus.headers}) < len(prometheus.headers):
        yield "prometheus.headers: two differ only in case; keep one"


def _contradictions(prometheus: PrometheusConfig) -> Iterator[str]:
    auth = prometheus.basic_auth
    if prometheus.token is not None and not prometheus.token.get_secret_value().strip():
        yield "prometheus.token: is empty; set it, or remove the key"
    if prometheus.token and prometheus.token_file:
        yield "prometheus: token and token_file are both set; keep token_file"
    if auth is not None and (prometheus.token or prometheus.token_file):
        yield "prometheus: a token and basic_auth are both set, and a question can carry one; keep one"
    if auth is not None and (auth.password is None) == (auth.password_file is None):
        yield "prometheus.basic_auth: expected either password or password_file"


def _unusable_files(prometheus: PrometheusConfig) -> Iterator[tuple[str, str]]:
    if prometheus.ca_file and (words := authorities_problem(prometheus.ca_file)):
        yield "ca_file", words
    if prometheus.cert_file and (problem := client_certificate_problem(prometheus.cert_file, prometheus.key_file)):
        yield problem
    auth = prometheus.basic_auth
    named = {"token_file": prometheus.token_file, "basic_auth.password_file": auth.password_file if auth else None}
    for key, file in named.items():
        if file is not None and (words := file_problem(file)):
            yield key, words
