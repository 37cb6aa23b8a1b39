"""Choice of a node: candidates for a stream, connections that are kept, and the partitions of super streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar

from pyspark_mq.errors import BrokerUnavailableError, RefusedError
from pyspark_mq.sources.url import BrokerUrl, place_of
from pyspark_mq.streams.access import Access
from pyspark_mq.streams.connection import NO_STREAM, Connection, Lost, Member, NoStream

__all__ = ["candidates", "connected", "everywhere", "forget_connections", "located", "persistently"]

T = TypeVar("T")

#: Connections of this process that nobody uses: a task leaves its own to the next, which expects it to be dead.
_KEPT: dict[tuple[Access, Member], list[Connection]] = {}
_KEPT_MAX = 16
#: Addresses where attempts to connect took as good as all of their time, and until when they come last.
_AVOIDED: dict[Member, float] = {}
_AVOIDED_S = 600.0
#: For how long refusals are not believed before anybody was let in: a node that starts refuses what it will accept.
_REFUSED_S = 5.0
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
    Addresses that have swallowed an attempt come last.
    """
    begin = turn % len(members) if members else 0
    nodes = [(member, access.urls[0]) for member in (*members[begin:], *members[:begin])]
    nodes += [(Member(url.host, url.port), url) for url in access.urls]
    return sorted(nodes, key=lambda node: _AVOIDED.get(node[0], 0.0) > time.monotonic())


@contextmanager
def connected(access: Access, member: Member, url: BrokerUrl) -> Iterator[Connection]:
    """A connection to a node, kept or new; kept again if it is still good. Lost if there is none."""
    kept, began = _KEPT.get((access, member)), time.monotonic()
    try:
        connection = kept.pop() if kept else Connection(access, member, url)
    except Lost:
        if time.monotonic() - began > access.connect_timeout_s / 2:
            _AVOIDED[member] = time.monotonic() + _AVOIDED_S
        raise
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


@contextmanager
def everywhere(access: Access, members: Sequence[Member]) -> Iterator[list[Connection]]:
    """Connections to all of some members at once, told apart by what they advertise.

    Raises:
        Lost: one is not reached; behind a balancer that may be chance.
    """
    found: dict[Member, Connection] = {}
    with ExitStack() as stack:
        for member, url in candidates(access, members) + candidates(access, ()) * len(members):
            if member not in found and not found.keys() >= {*members}:
                with suppress(Lost, RefusedError):
                    connection = stack.enter_context(connected(access, member, url))
                    found[connection.advertised] = connection
        if missing := [place_of(*member) for member in members if member not in found]:
            raise Lost(f"what {', '.join(missing)} may have is not known: no connection")
        yield [found[member] for member in members]


def persistently(
    access: Access,
    members: Sequence[Member],
    ask: Callable[[Connection], T],
    timeout_s: float | None = None,
    absent_s: float | None = None,
) -> T:
    """Ask one node after the other until one answers.

    Args:
        ask: may raise :class:`Lost` or, where this node has no member, :class:`NoStream`.
        timeout_s: of the first look, when nobody has let us in yet; by default `reconnectTimeout`.
        absent_s: how long all nodes have to say that there is no such stream; by default `connectTimeout`.

    Raises:
        NoStream: there is no such stream.
        RefusedError: a node refuses, and none answers.
        BrokerUnavailableError: none answered in time.
    """
    begun, pause_s = time.monotonic(), _PAUSE_S
    limit_s = access.reconnect_timeout_s if timeout_s is None else timeout_s
    refused_s = limit_s if timeout_s is None else min(_REFUSED_S, limit_s)
    absent_s = min(access.connect_timeout_s, refused_s) if absent_s is None else absent_s
    since_s: dict[type[Exception], float] = {}
    while True:
        failures: list[Exception] = []
        for member, url in candidates(access, members):
            # A kept connection may have died long ago: the second is a new one.
            for _ in range(2 if _KEPT.get((access, member)) else 1):
                try:
                    with connected(access, member, url) as connection:
                        return ask(connection)
                except (Lost, TimeoutError) as lost:
                    failures.append(lost)
                except (NoStream, RefusedError) as refused:
                    failures.append(refused)
                    break
        now = time.monotonic() + pause_s
        for kind, most_s in ((NoStream, absent_s), (RefusedError, refused_s)):
            refusals = [failed for failed in failures if isinstance(failed, kind)]
            elsewhere = any(isinstance(one, NoStream) and one.code != NO_STREAM for one in refusals)
            if refusals and not elsewhere and now - since_s.setdefault(kind, now) >= most_s:
                raise refusals[0]
        passed_s = now - begun
        if passed_s > limit_s:
            raise BrokerUnavailableError(
                f"no node of '{','.join(map(str, access.urls))}' answered in {limit_s:g} s: "
                f"{'; '.join(dict.fromkeys(map(str, failures)))}. Check that the hosts and ports are right and "
                "reachable from here, and that plugin rabbitmq_stream is enabled"
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
