"""nginx with its defaults, before one server or several in turn."""

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from monitor import answers
from process import Process

from probe.runtime.kept_program import free_port


@contextmanager
def nginx_before(program: str, folder: Path, *servers: str) -> Iterator[str]:
    """Run nginx in front of the servers; but for the addresses and files, the configuration is Debian's."""
    with _nginx(program, folder, servers, lambda url: answers(f"{url}/health")) as url:
        yield url


@contextmanager
def nginx_with_http2(program: str, folder: Path, server: str, certificate: Path) -> Iterator[str]:
    """The same with HTTP/2, and without its buffer, which would hold a stream back."""
    listen = (
        f"listen 127.0.0.1:{{port}} ssl http2; ssl_certificate {certificate}; ssl_certificate_key {certificate};"
        "proxy_buffering off; proxy_http_version 1.1;"
    )
    with _nginx(program, folder, (server,), _listens, listen=listen) as url:
        yield url.replace("http:", "https:")


@contextmanager
def nginx_that_limits(program: str, folder: Path, server: str, status: int | None = None) -> Iterator[str]:
    """The same, with one request a minute; `status`: of the others, None for nginx's own."""
    own = "" if status is None else f"limit_req_status {status};"
    listen = f"listen 127.0.0.1:{{port}}; limit_req zone=all; {own}"
    zone = "limit_req_zone $server_addr zone=all:1m rate=1r/m;"
    with _nginx(program, folder, (server,), _listens, listen=listen, http=zone) as url:
        yield url


@contextmanager
def nginx_with(program: str, folder: Path, server: str, *servers: str) -> Iterator[str]:
    """The same with further `server` blocks, which may pass requests to http://vllm."""
    with _nginx(program, folder, (server,), _listens, http="".join(servers)) as url:
        yield url


@contextmanager
def nginx_before_nothing(program: str, folder: Path) -> Iterator[str]:
    """The same before a port at which nothing listens."""
    with _nginx(program, folder, (f"http://127.0.0.1:{free_port()}",), _listens) as url:
        yield url


def _listens(url: str) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=1):
        return True
    return False


@contextmanager
def _nginx(
    program: str,
    folder: Path,
    servers: Sequence[str],
    is_ready: Callable[[str], bool],
    *,
    listen: str = "listen 127.0.0.1:{port};",
    http: str = "",
) -> Iterator[str]:
    folder.mkdir()
    port = free_port()
    upstream = "".join(f"server {urlsplit(url).netloc};" for url in servers)
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        f"worker_processes auto; pid {folder}/nginx.pid; daemon off; error_log {folder}/error.log;"
        "events { worker_connections 768; }"
        f"http {{ access_log {folder}/access.log; {temporary}"
        "sendfile on; tcp_nopush on; types_hash_max_size 2048; default_type application/octet-stream; gzip on;"
        f"{http} upstream vllm {{ {upstream} }}"
        f"server {{ {listen.format(port=port)} location / {{ proxy_pass http://vllm; }} }} }}"
    )
    url = f"http://127.0.0.1:{port}"
    process = Process([program, "-p", str(folder), "-e", f"{folder}/error.log", "-c", str(config)], folder / "log")
    try:
        process.ready(lambda: is_ready(url), within_s=30)
        yield url
    finally:
        process.terminate()
