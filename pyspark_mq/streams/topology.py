"""Choice of a node: candidates for a stream, connections that are kept, and the partitions of super streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from pyspark_mq.errors import BrokerUnavailableError
from pyspark_mq.sources.url import BrokerUrl
from pyspark_mq.streams.access import Access
from pyspark_mq.streams.connection import Connection, Lost, Member, NoStream

__all__ = ["candidates", "connected", "forget_connections", "located", "persistently"]

T = TypeVar("T")

#: Connections of this process that nobody uses: a task leaves its own to the next, which expects it to be dead.
_KEPT: dict[tuple[Access, Member], list[Connection]] = {}
_KEPT_MAX = 16
#: Between attempts: 0.1 s, 0.2 s, 0.4 s, ... 2 s.
_PAUSE_S, _PAUSE_MAX_S = 0.1, 2.0


def forget_connections() -> None:
    """Close what is kept."""
    while _KEPT:
        for connection in _KEPT.popitem()[1]:
            connection.close()


def candidates(access: Access, members: Sequence[Member], turn: int = 0) -> list[tuple[Member, BrokerUrl]]:
    """List where to look for a stream: its members, beginning with another one each turn; then what the user has named.

    Brokers may advertise addresses that do not resolve here; then the URLs are what is left, also behind a balancer.
    """
    begin = turn % len(members) if members else 0
    nodes = [(member, access.urls[0]) for member in (*members[begin:], *members[:begin])]
    return nodes + [(Member(url.host, url.port), url) for url in access.urls]


@contextmanager
def connected(access: Access, member: Member, url: BrokerUrl) -> Iterator[Connection]:
    """A connection to a node, kept or new; kept again if it is still good. Lost if there is none."""
    kept = _KEPT.get((access, member))
    connection = kept.pop() if kept else Connection(access, member, url)
    try:
        yield connection
    except BaseException as failed:
        if not isinstance(failed, NoStream):
            connection.close()
        raise
    finally:
        if not connection.broken:
            if sum(map(len, _KEPT.values())) >= _KEPT_MAX:
                forget_connections()
            _KEPT.setdefault((access, member), []).append(connection)


def persistently(
    access: Access, members: Sequence[Member], ask: Callable[[Connection], T], timeout_s: float | None = None
) -> T:
    """Ask one node after the other until one answers.

    Args:
        ask: may raise :class:`Lost` or, where this node has no member, :class:`NoStream`.
        timeout_s: by default `reconnectTimeout`.

    Raises:
        NoStream: there is no such stream.
        BrokerUnavailableError: none answered in time.
    """
    begun, pause_s = time.monotonic(), _PAUSE_S
    limit_s = access.reconnect_timeout_s if timeout_s is None else timeout_s
    while True:
        failures: list[str] = []
        for member, url in candidates(access, members):
            # A kept connection may have died long ago: the second is a new one.
            for _ in range(2):
                try:
                    with connected(access, member, url) as connection:
                        return ask(connection)
                except (Lost, TimeoutError) as lost:
                    failures.append(str(lost))
                except NoStream as missing:
                    if missing.code == 2:
                        raise
                    failures.append(str(missing))
                    break
        if time.monotonic() - begun + pause_s > limit_s:
            raise BrokerUnavailableError(
                f"no node of '{','.join(map(str, access.urls))}' answered in {limit_s:g} s: "
                f"{'; '.join(dict.fromkeys(failures))}. Check that the hosts and ports are right and reachable "
                "from here, and that plugin rabbitmq_stream is enabled"
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)


def located(connection: Connection, name: str) -> dict[str, list[Member]]:
    """The partitions of a super stream, or a stream itself, and the members of each.

    Raises:
        NoStream: there is none of that name.
        Lost: a partition went while it was looked for.
    """
    found = {}
    for partition in connection.partitions(name) or [name]:
        try:
            found[partition] = connection.members(partition)
        except NoStream as missing:
            if partition == name:
                raise
            raise Lost(str(missing)) from None
    return found
