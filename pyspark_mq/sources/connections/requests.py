"""Requests of the query's thread: to a session, and to the worker that keeps it.

Requests to a session are carried out on its keeper's thread, in order, in the session they were meant for and in no
other (rule 10). Those to a worker go to a thread or to another process: they can be pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pyspark_mq.sources.connections.message_id import MessageIds
from pyspark_mq.sources.connections.session import Session, SessionOptions
from pyspark_mq.sources.endpoint import Endpoint

__all__ = ["Ask", "Begin", "Limits", "Request", "SetLimits", "Stop", "ToWorker"]

#: A call of one method of a session, as `operator.methodcaller` makes it, which can be pickled.
Request: TypeAlias = Callable[[Session], object]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what a keeper takes in.

    Attributes:
        window: how many unacknowledged messages the next session asks for.
        bytes_allowed: a session pauses when more bytes than this were received and not taken.
        session: the one that lives, as far as is known; 0 for none.
        bytes_taken: bytes taken from that one so far.
    """

    window: int
    bytes_allowed: float
    session: int = 0
    bytes_taken: int = 0


@dataclass(frozen=True, slots=True)
class Begin:
    """Keep a connection.

    Attributes:
        key: number of the keeper, unique among those of a query.
        ids: which message a delivery is.
        options: of each of its sessions.
        again: another process has kept it before. Then the first attempts are those of a reconnect.
    """

    key: int
    endpoint: Endpoint
    ids: MessageIds
    options: SessionOptions
    limits: Limits
    again: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """Have a request carried out in a session, if that still lives then."""

    key: int
    session: int
    request: Request


@dataclass(frozen=True, slots=True)
class SetLimits:
    """Other limits hold from now on."""

    key: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class Stop:
    """Close a connection for good; what is unacknowledged goes back to the broker."""

    key: int


ToWorker: TypeAlias = "Begin | Ask | SetLimits | Stop"
