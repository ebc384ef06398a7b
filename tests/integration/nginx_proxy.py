"""nginx with its defaults, before one server or several in turn."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from monitor import answers
from process import Process

from probe.runtime.kept_program import free_port


@contextmanager
def nginx_before(program: str, folder: Path, *servers: str) -> Iterator[str]:
    """Run nginx in front of the servers; but for the addresses and files, the configuration is Debian's."""
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
        f"upstream vllm {{ {upstream} }}"
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://vllm; }} }} }}"
    )
    url = f"http://127.0.0.1:{port}"
    process = Process([program, "-p", str(folder), "-e", f"{folder}/error.log", "-c", str(config)], folder / "log")
    try:
        process.ready(lambda: answers(f"{url}/health"), within_s=30)
        yield url
    finally:
        process.terminate()
