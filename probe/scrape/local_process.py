"""vLLM's startup flags from its own command line, for a server on this machine or in this pod.

A sidecar sees the processes of its pod where the pod has `shareProcessNamespace: true`. Command lines are readable by
every user; the environment of a process, which holds secrets, is not read. What may not be read counts as absent.
"""

import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from probe.core.vllm_command import served_port, vllm_flags

_PROC = Path("/proc")
_MAX_LINE, _MAX_TABLE = 64 * 1024, 4 * 1024 * 1024
_MAX_PROCESSES = 4096
_LISTENS = "0A"  # the state of a listening socket in /proc/net/tcp (include/net/tcp_states.h)


def flags_of_local_server(base_url: str, proc: Path = _PROC) -> dict[str, str]:
    """Return the flags of the vLLM that listens at that address; {} if it is not on loopback or is not found.

    A process is the server if its command line names the port and a socket in its network listens there, as one does in
    the network of this process: containers with networks of their own may use the same port.
    """
    port = _loopback_port(base_url)
    sockets = _listening(proc / "self", port) if port is not None else set()
    if port is None or not sockets:
        return {}
    found = [
        vllm_flags(line, [], {})
        for process, line in _command_lines(proc)
        if served_port(line) == port and sockets & _listening(process, port)
    ]
    return found[0] if found and all(one == found[0] for one in found) else {}


def is_open_to_others(port: int, proc: Path = _PROC) -> bool:
    """Return whether a program of this machine listens on that port at another address than loopback."""
    return any(not _is_loopback(address) for address, _ in _listeners(proc / "self", port))


def _is_loopback(address: str) -> bool:
    """Return whether an address of /proc/net/tcp is loopback: words of four bytes, each in the machine's order."""
    words = [
        bytes.fromhex(address[i : i + 8])[:: -1 if sys.byteorder == "little" else 1] for i in range(0, len(address), 8)
    ]
    found = ip_address(b"".join(words))
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def _loopback_port(base_url: str) -> int | None:
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    try:
        is_local = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return None
    return (parts.port or (443 if parts.scheme == "https" else 80)) if is_local else None


def _command_lines(proc: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield each process with its command line."""
    try:
        processes = [path for path in proc.iterdir() if path.name.isdecimal()]
    except OSError:
        return
    for process in sorted(processes, key=lambda path: int(path.name))[:_MAX_PROCESSES]:
        words = _text(process / "cmdline", _MAX_LINE).rstrip("\0").split("\0")
        if any("vllm" in word for word in words):
            yield process, words


def _listening(process: Path, port: int) -> set[str]:
    """Return the sockets that listen on that port in the network of a process, by their inodes."""
    return {inode for _, inode in _listeners(process, port)}


def _listeners(process: Path, port: int) -> Iterator[tuple[str, str]]:
    """Yield address and inode of the sockets that listen on that port in the network of a process."""
    for table in ("tcp", "tcp6"):
        for line in _text(process / "net" / table, _MAX_TABLE).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTENS and fields[1].endswith(f":{port:04X}"):  # noqa: PLR2004
                yield fields[1].partition(":")[0], fields[9]


def _text(path: Path, most: int) -> str:
    """Return the beginning of a file; "" if it may not be read, or its process has ended."""
    try:
        with path.open("rb") as file:
            return file.read(most).decode("utf-8", "replace")
    except OSError:
        return ""
