"""The first request of a process measures the server, and no import or certificate bundle of the client."""

import asyncio
import json
import ssl
import sys
from pathlib import Path

import pytest
import trustme
from forward_proxy import forward_proxy
from hostile_server import GOOD, THREE_TOKENS, hostile
from http2_server import http2_server

_PROGRAM = Path(__file__).with_name("import_probe.py")
_ANSWER = {"/v1/completions": ("text/event-stream", b"".join(THREE_TOKENS))}


@pytest.mark.fault(
    "TR60",
    "The first canary of a process: through a proxy, over HTTP/2, over TLS",
    area="Truth",
    users_see="its TTFT is the server's",
    stays="imports and certificates are loaded before it is due",
)
def test_no_module_is_imported_and_no_tls_context_made_while_a_request_is_timed(tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    def tls() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert("localhost", "127.0.0.1").configure_cert(context)
        return context

    async def main() -> list[tuple[object, object]]:
        async with (
            hostile([GOOD]) as plain,
            hostile([GOOD], tls=tls()) as secure,
            http2_server(_ANSWER, tls()) as http2,
            forward_proxy() as proxy,
            forward_proxy(tls=tls()) as proxy_with_tls,
        ):
            by_name = plain.base_url.replace("127.0.0.1", "localhost")
            trusted = {"ca_file": str(tmp_path / "ca.pem")}
            ways = [
                {"base_url": plain.base_url},
                {"base_url": by_name},
                {"base_url": secure.base_url.replace("127.0.0.1", "localhost"), **trusted},
                {"base_url": secure.base_url, "verify": False},
                {"base_url": by_name, "proxy": proxy.url},
                {"base_url": secure.base_url, "proxy": proxy.url, **trusted},
                {"base_url": by_name, "proxy": proxy_with_tls.url, **trusted},
                {"base_url": secure.base_url, "proxy": proxy_with_tls.url, **trusted},
                {"base_url": http2.base_url.replace("127.0.0.1", "localhost"), "http2": True, **trusted},
                {"base_url": http2.base_url, "http2": True, "proxy": proxy_with_tls.url, **trusted},
            ]
            program = await asyncio.create_subprocess_exec(
                sys.executable, _PROGRAM, json.dumps(ways), stdout=asyncio.subprocess.PIPE
            )
            out, _ = await asyncio.wait_for(program.communicate(), 60)
            return list(zip(ways, json.loads(out), strict=True))

    for way, found in asyncio.run(main()):
        assert found == {"outcome": "ok", "detail": None, "new": []}, way
