"""Chooses the nodes to connect to for a stream, keeps a pool of connections, and finds partitions of super streams."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TypeVar

from pyspark_mq.errors import BrokerUnavailableError, RefusedError
from pyspark_mq.streams.access import Access
from pyspark_mq.streams.connection import NO_STREAM, Member, NoStream, StreamConnection, StreamLost
from pyspark_mq.wire.url import BrokerUrl, place_of

__all__ = ["Attempts", "connected", "everywhere", "forget_connections", "located", "persistently"]

T = TypeVar("T")

_log = logging.getLogger("pyspark_mq")

#: The pool: idle connections of this process, for the next task. A connection may have ended while it was idle.
_KEPT: dict[tuple[Access, Member], list[StreamConnection]] = {}
_KEPT_MAX = 16
#: Addresses at which a connection attempt timed out. Until the given time, they are tried after all other addresses.
_AVOIDED: dict[Member, float] = {}
_AVOIDED_S = 600.0
#: How long an attempt is repeated after a first refusal. A node that is starting may refuse a login that it accepts
#: later.
_REFUSED_S = 5.0
#: Pause after all candidates have failed: 0.1 s, then 0.2 s, 0.4 s and so on, up to 2 s.
_PAUSE_S, _PAUSE_MAX_S = 0.1, 2.0


def forget_connections() -> None:
    """Close all idle connections of this process."""
    while _KEPT:
        for connection in _KEPT.popitem()[1]:
            connection.close()


def _candidates(access: Access, members: Sequence[Member], turn: int = 0) -> list[tuple[Member, BrokerUrl]]:
    """List the addresses at which a stream may be read: those of the stream's members, then the user's URLs.

    The URLs are needed because brokers may advertise addresses that do not resolve on this machine, for example behind
    a load balancer. Addresses with a recent timeout are at the end of the list.

    Args:
        turn: index of the member to begin with.

    Returns:
        pairs of an address and the URL for errors.
    """
    begin = turn % len(members) if members else 0
    nodes = [(member, access.urls[0]) for member in (*members[begin:], *members[:begin])]
    nodes += [(Member(url.host, url.port), url) for url in access.urls]
    return sorted(nodes, key=lambda node: _AVOIDED.get(node[0], 0.0) > time.monotonic())


@contextmanager
def connected(access: Access, member: Member, url: BrokerUrl) -> Iterator[StreamConnection]:
    """Provide a connection to a node for the duration of a `with` block, from the pool or new.

    After the block the connection is put into the pool, unless the block has raised an error other than NoStream.

    Raises:
        StreamLost: the node cannot be reached.
    """
    kept, began = _KEPT.get((access, member)), time.monotonic()
    try:
        connection = kept.pop() if kept else StreamConnection(access, member, url)
    except StreamLost:
        if time.monotonic() - began > access.connect_timeout_s / 2:
            _AVOIDED[member] = time.monotonic() + _AVOIDED_S
        raise
    try:
        yield connection
    except BaseException as failed:
        if not isinstance(failed, NoStream):
            # The idle connections to the same node are probably lost, too.
            for one in (connection, *_KEPT.pop((access, member), ())):
                one.close()
            raise
        _keep(access, member, connection)
        raise
    _keep(access, member, connection)


def _keep(access: Access, member: Member, connection: StreamConnection) -> None:
    if sum(map(len, _KEPT.values())) >= _KEPT_MAX:
        forget_connections()
    _KEPT.setdefault((access, member), []).append(connection)


@contextmanager
def everywhere(access: Access, members: Sequence[Member]) -> Iterator[list[StreamConnection]]:
    """Provide connections to all `members` at the same time, in the same order.

    Behind a load balancer, a connection may reach another member than intended. The address that the node advertises
    at login tells which member was reached.

    Raises:
        StreamLost: a member was not reached, perhaps because a load balancer did not choose it.
    """
    found: dict[Member, StreamConnection] = {}
    with ExitStack() as stack:
        for member, url in _candidates(access, members) + _candidates(access, ()) * len(members):
            if member not in found and not found.keys() >= {*members}:
                with suppress(StreamLost, RefusedError):
                    connection = stack.enter_context(connected(access, member, url))
                    found[connection.advertised] = connection
        if missing := [place_of(*member) for member in members if member not in found]:
            raise StreamLost(f"there is no connection to {', '.join(missing)}, so the chunks on that node are unknown")
        yield [found[member] for member in members]


class Attempts(AbstractContextManager[object]):
    """Repeats an operation at one node after another until an attempt succeeds or the time limit has passed.

    Iterating over this object yields the candidate nodes of a stream, again and again. The caller makes each attempt in
    a `with` block of this object. If the attempt fails, the block suppresses the error, and the loop continues with the
    next candidate.

    Args:
        access: login and settings for connections.
        members: the known members of the stream.
        what: returns a description of the operation, for errors.
        turn: index of the member to begin with.
        limit_s: time limit without success, such as `connectTimeout` at the start of a query. The default is
            `reconnectTimeout`.
        absent_s: how long nodes must keep reporting that the stream is missing before NoStream is raised. The default
            is the smaller of `connectTimeout` and `reconnectTimeout`. If `limit_s` is given, the default is the
            smallest of `connectTimeout`, `limit_s` and 5 s.

    Attributes:
        absent: the members that report that the stream is missing, with the time of the first such report.

    Raises:
        NoStream: all members (or any node, if no member is known) report that the stream is missing.
        RefusedError: a node refuses the login or the request.
        BrokerUnavailableError: no candidate succeeded.
    """

    def __init__(
        self,
        access: Access,
        members: Sequence[Member],
        what: Callable[[], str],
        *,
        turn: int = 0,
        limit_s: float | None = None,
        absent_s: float | None = None,
    ) -> None:
        self._access, self._members, self._turn, self._what = access, members, turn, what
        self._limit_s = access.reconnect_timeout_s if limit_s is None else limit_s
        self._refused_s = self._limit_s if limit_s is None else min(_REFUSED_S, limit_s)
        self._absent_s = min(access.connect_timeout_s, self._refused_s) if absent_s is None else absent_s
        self._failures: list[Exception] = []
        self.absent: dict[Member, float] = {}
        self.progress()

    def progress(self) -> None:
        """Restart the time limits, because the operation has made progress."""
        self._since_s = self._let_in_s = time.monotonic()
        self._pause_s = _PAUSE_S
        self._failures.clear()
        self.absent.clear()

    @property
    def left_s(self) -> float:
        """Seconds until the time limit."""
        return self._since_s + self._limit_s - time.monotonic()

    def __iter__(self) -> Iterator[tuple[Member, BrokerUrl]]:
        while True:
            for member, url in _candidates(self._access, self._members, self._turn):
                self._member = member
                yield member, url
            self._end_round()
            time.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)

    def __exit__(self, _kind: object, failed: BaseException | None, _trace: object) -> bool:
        if not isinstance(failed, StreamLost | NoStream | RefusedError):
            return False
        _log.info("%s: %s", self._what(), failed)
        self._failures.append(failed)
        if not isinstance(failed, NoStream):
            self.absent.pop(self._member, None)
        elif failed.code == NO_STREAM:
            self.absent.setdefault(failed.member, time.monotonic())
        else:
            self.absent.clear()  # the stream exists, on other nodes
        return True

    def _end_round(self) -> None:
        failures, self._failures = self._failures, []
        now = time.monotonic() + self._pause_s
        missing = [failed for failed in failures if isinstance(failed, NoStream)]
        refused = [failed for failed in failures if isinstance(failed, RefusedError)]
        is_over = self.left_s < self._pause_s
        is_absent = self.absent.keys() >= {*self._members}
        if missing and is_absent and now - max(self.absent.values(), default=now) >= self._absent_s:
            raise missing[0]
        if not refused:
            self._let_in_s = now
        elif is_over or now - self._let_in_s >= self._refused_s:
            raise refused[0]
        if is_over:
            raise BrokerUnavailableError(
                f"{self._what()}: no useful answer in {now - self._since_s:.0f} s from the nodes of "
                f"'{','.join(map(str, self._access.urls))}': {'; '.join(dict.fromkeys(map(str, failures)))}. Check "
                "that hosts and ports are correct and reachable from this machine, and that plugin rabbitmq_stream is "
                "enabled"
            )


def persistently(
    access: Access,
    members: Sequence[Member],
    ask: Callable[[StreamConnection], T],
    what: str = "asking for streams",
    *,
    limit_s: float | None = None,
    absent_s: float | None = None,
) -> T:
    """Call `ask` with a connection to one candidate node after another until a call succeeds, and return its result.

    The other arguments and the errors are those of :class:`Attempts`.
    """
    attempts = Attempts(access, members, lambda: what, limit_s=limit_s, absent_s=absent_s)
    for node in attempts:
        with attempts, connected(access, *node) as connection:
            return ask(connection)
    raise AssertionError("there is always another attempt")


def located(connection: StreamConnection, name: str) -> dict[str, list[Member]]:
    """Find the streams that a name stands for: the partitions of a super stream, or the stream itself.

    Returns:
        for each of these streams, by name, the members of the stream.

    Raises:
        NoStream: there is no stream or super stream with this name.
        StreamLost: a partition was deleted meanwhile.
    """
    found = {}
    for partition in connection.partitions(name) or [name]:
        try:
            found[partition] = connection.members(partition)
        except NoStream as missing:
            if partition == name:
                raise
            raise StreamLost(str(missing)) from None
    return found
