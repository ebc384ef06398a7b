"""A request as it goes over the wire: the origin to connect to, and the bytes of HTTP/1.1. Pure."""

import httpx

_PORTS = {"http": 80, "https": 443}
_MAX_PORT = 65535
Origin = tuple[str, str, int]
Wire = tuple[Origin, bytes]


def wire(request: httpx.Request) -> Wire:
    """Return a request's origin and its bytes: the head, and the body unless it is streamed.

    To save time when sending, put the result into the request's extensions as "wire" beforehand. Raises
    httpx.LocalProtocolError for a header that would end its line, httpx.UnsupportedProtocol and httpx.InvalidURL.
    """
    origin = origin_of(request.url)
    lines = [b"%s %s HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%s: %s" % pair for pair in request.headers.raw]
    head = b"\r\n".join((*lines, b"", b""))
    if head.count(b"\n") != len(lines) + 1 or head.count(b"\r") != len(lines) + 1 or b"\0" in head:
        raise httpx.LocalProtocolError("a header holds a line break", request=request)
    return origin, head + request.read() if isinstance(request.stream, httpx.ByteStream) else head


def origin_of(url: httpx.URL) -> Origin:
    """Return the origin. Raises httpx.UnsupportedProtocol for other schemes, httpx.InvalidURL for a bad port."""
    if url.scheme not in _PORTS:
        raise httpx.UnsupportedProtocol(f"{url.scheme or 'no scheme'}: expected http or https")
    port = _PORTS[url.scheme] if url.port is None else url.port
    if not 0 < port <= _MAX_PORT:  # uvloop would take it modulo 65536
        raise httpx.InvalidURL(f"no such port: {port}")
    return url.scheme, url.raw_host.decode("ascii"), port  # raw: Python's own IDNA is an older one
