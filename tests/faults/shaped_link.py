"""A network link that fails on request: two TUN devices, and a process between them that delays, loses or cuts packets.

    python shaped_link.py NEAR FAR PID NEAR_ADDRESS FAR_ADDRESS

In: one JSON object a line on standard input, the fields of Weather. Device NEAR stays in this network namespace, FAR
goes to that of process PID. The end of standard input ends the link. It needs root and /dev/net/tun, and no netem,
which many kernels lack.
"""

import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from dataclasses import dataclass

_SET_INTERFACE = 0x400454CA  # TUNSETIFF of linux/if_tun.h
_TUN_WITHOUT_HEADER = 0x1001  # IFF_TUN | IFF_NO_PI
_QUEUE_BYTES = 64_000  # a router's buffer; what does not fit is dropped


@dataclass(frozen=True, slots=True)
class Weather:
    """What happens to packets, each way. Ratios are of packets."""

    delay_s: float = 0.0
    jitter_s: float = 0.0  # reorders packets where it is longer than their distance
    loss: float = 0.0
    duplicates: float = 0.0
    corruption: float = 0.0
    bytes_per_s: float | None = None
    largest_bytes: int | None = None  # larger packets are dropped without a word, as by a broken tunnel
    is_cut_to_far: bool = False
    is_cut_to_near: bool = False


class Link:
    """Packets under way between two devices."""

    def __init__(self, near: int, far: int) -> None:
        self.weather = Weather()
        self._to = {near: far, far: near}
        self._near = near
        self._free_at = {near: 0.0, far: 0.0}
        self._due: list[tuple[float, int, int, bytes]] = []
        self._count = 0

    def wait_s(self) -> float | None:
        return max(self._due[0][0] - time.monotonic(), 0.0) if self._due else None

    def take(self, device: int, packet: bytes) -> None:
        """Take a packet that a device sends."""
        weather = self.weather
        is_cut = weather.is_cut_to_far if device == self._near else weather.is_cut_to_near
        is_too_large = weather.largest_bytes is not None and len(packet) > weather.largest_bytes
        if is_cut or is_too_large or random.random() < weather.loss:
            return
        at = time.monotonic()
        if weather.bytes_per_s:
            begins = max(at, self._free_at[device])
            if (begins - at) * weather.bytes_per_s > _QUEUE_BYTES:
                return
            at = self._free_at[device] = begins + len(packet) / weather.bytes_per_s
        if random.random() < weather.corruption:
            packet = packet[:-1] + bytes([packet[-1] ^ 0xFF])
        for _ in range(2 if random.random() < weather.duplicates else 1):
            self._count += 1
            due = at + weather.delay_s + random.random() * weather.jitter_s
            heapq.heappush(self._due, (due, self._count, self._to[device], packet))

    def deliver(self) -> None:
        """Write the packets that are due."""
        while self._due and self._due[0][0] <= time.monotonic():
            _, _, device, packet = heapq.heappop(self._due)
            os.write(device, packet)


def open_device(name: str) -> int:
    """Create a TUN device, which goes when it is closed. Return its file descriptor."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADER))
    return device


def configure(near: str, far: str, pid: str, near_address: str, far_address: str) -> None:
    there = ["nsenter", "-t", pid, "-n"]
    for command in (
        ["ip", "link", "set", far, "netns", pid],
        ["ip", "addr", "add", near_address, "peer", far_address, "dev", near],
        ["ip", "link", "set", near, "up"],
        [*there, "ip", "link", "set", "lo", "up"],
        [*there, "ip", "addr", "add", far_address, "peer", near_address, "dev", far],
        [*there, "ip", "link", "set", far, "up"],
    ):
        subprocess.run(command, check=True)


def main(near: str, far: str, *where: str) -> None:
    devices = [open_device(near), open_device(far)]
    configure(near, far, *where)
    link, said = Link(*devices), sys.stdin.fileno()
    print("up", flush=True)  # noqa: T201 - a script's output
    while True:
        ready, _, _ = select.select([*devices, said], [], [], link.wait_s())
        if said in ready:
            lines = os.read(said, 65536).splitlines()
            if not lines:
                return
            link.weather = Weather(**json.loads(lines[-1]))
        for device in set(ready) & set(devices):
            link.take(device, os.read(device, 65536))
        link.deliver()


if __name__ == "__main__":
    main(*sys.argv[1:])
