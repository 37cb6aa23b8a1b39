"""TCP ports of 127.0.0.1 for brokers and proxies that come and go.

Two things make "any free port" too weak for a server that is killed and comes back:

* While it is dead the port is free, and another node starting meanwhile may choose it. So a port
  is kept: see :class:`ReservedPort`.
* Clients keep dialling it, and each attempt is given a port of its own by the kernel. If it can
  be the very same, the client connects to itself (TCP allows that) and the server finds its port
  taken. So ports are chosen *below* the kernel's range for outgoing connections.
"""

from __future__ import annotations

import errno
import random
import socket
from pathlib import Path

__all__ = ["LOOPBACK", "ReservedPort", "free_port", "free_ports", "listens", "speaks"]

LOOPBACK = "127.0.0.1"

_PORT_MIN = 10_000
_PORT_TRIES = 1000
_PROBE_TIMEOUT_S = 5.0


class ReservedPort:
    """A TCP port of 127.0.0.1 that is ours, whether or not somebody we started listens on it.

    A socket is bound to it that never listens. It keeps everybody off who asks for the port for
    himself alone, as `free_port` and this class do; a server with SO_REUSEADDR set, as they all
    have it, may listen. So a killed broker finds its port again, however many others start.
    """

    def __init__(self) -> None:
        """Take one.

        Raises:
            OSError: there is none left.
        """
        self._socket, self.number = _take_port()
        # Only now: with it set before, two could take the same port.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def close(self) -> None:
        """Give it back. May be called again."""
        self._socket.close()


def free_port() -> int:
    """A TCP port of 127.0.0.1 nobody has and no outgoing connection will be given.

    Nothing reserves it: between this call and its use somebody else may take it.

    Raises:
        OSError: there is none left.
    """
    taken, number = _take_port()
    taken.close()
    return number


def free_ports(count: int) -> list[int]:
    """`count` different ports, each as :func:`free_port`."""
    taken = [_take_port() for _ in range(count)]
    for one, _ in taken:
        one.close()
    return [number for _, number in taken]


def _take_port() -> tuple[socket.socket, int]:
    # Not the shared generator: a test that seeds it must not make two runs choose alike.
    generator = random.SystemRandom()
    limit = _outgoing_port_min()
    for _ in range(_PORT_TRIES):
        number = generator.randrange(_PORT_MIN, limit)
        one = socket.socket()
        try:
            one.bind((LOOPBACK, number))
        except OSError:
            one.close()
            continue
        return one, number
    raise OSError(errno.EADDRINUSE, f"no free port between {_PORT_MIN} and {limit} on {LOOPBACK}")


def _outgoing_port_min() -> int:
    """Lowest port the kernel gives to outgoing connections; Linux's default where unknown."""
    try:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        low = 32_768
    # A machine set to use nearly all ports for outgoing ones leaves no range below: use any.
    return low if low > _PORT_MIN + _PORT_TRIES else 65_536


def listens(port: int) -> bool:
    """Does anybody accept TCP connections on this port of 127.0.0.1?"""
    try:
        socket.create_connection((LOOPBACK, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def speaks(port: int, greeting: bytes, answer: bytes) -> bool:
    """Does whoever listens on this port of 127.0.0.1 answer a greeting, and the answer begin like that?"""
    try:
        with socket.create_connection((LOOPBACK, port), _PROBE_TIMEOUT_S) as probe:
            probe.sendall(greeting)
            return probe.recv(len(answer), socket.MSG_WAITALL) == answer
    except OSError:
        return False
