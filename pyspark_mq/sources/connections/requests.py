"""Requests of the query's thread to a session, and to whoever keeps sessions open.

Requests to a session are carried out on the receiver's thread, in order, in the session they were meant for and in no
other (rule 10). Those to a host go to this process or to another one, which handle the same: they can be pickled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeAlias

from pyspark_mq.sources.connections.message_id import MessageIds
from pyspark_mq.sources.connections.session import Session, SessionLostError
from pyspark_mq.sources.endpoint import Endpoint

__all__ = [
    "Acknowledge", "Ask", "AskDepth", "Begin", "Consume", "End", "Extend", "Limits", "Reject", "Request", "Resume",
    "SetLimits", "Stop", "ToWorker",
]  # fmt: skip


class Request(ABC):
    """Something to be done in one session."""

    @abstractmethod
    def carry_out(self, consumer: Session) -> None:
        """Carry out the request, on the receiver's thread."""


@dataclass(frozen=True, slots=True)
class Acknowledge(Request):
    """See :meth:`.Session.acknowledge`."""

    number: int
    upto: int
    singles: tuple[int, ...]

    def carry_out(self, consumer: Session) -> None:
        consumer.acknowledge(self.number, self.upto, self.singles)


@dataclass(frozen=True, slots=True)
class Reject(Request):
    """See :meth:`.Session.reject`."""

    tags: tuple[int, ...]

    def carry_out(self, consumer: Session) -> None:
        consumer.reject(self.tags)


@dataclass(frozen=True, slots=True)
class Consume(Request):
    """See :meth:`.Session.consume`."""

    window: int

    def carry_out(self, consumer: Session) -> None:
        consumer.consume(self.window)


@dataclass(frozen=True, slots=True)
class Extend(Request):
    """See :meth:`.Session.extend`."""

    window: int

    def carry_out(self, consumer: Session) -> None:
        consumer.extend(self.window)


@dataclass(frozen=True, slots=True)
class AskDepth(Request):
    """See :meth:`.Session.ask_depth`."""

    def carry_out(self, consumer: Session) -> None:
        consumer.ask_depth()


@dataclass(frozen=True, slots=True)
class Resume(Request):
    """See :meth:`.Session.resume`. It may be asked again before that is heard of: then it is for a later pause."""

    def carry_out(self, consumer: Session) -> None:
        if consumer.paused and not consumer.full:
            consumer.resume()


@dataclass(frozen=True, slots=True)
class End(Request):
    """End the session, so that the broker takes back what it holds; the receiver opens another."""

    why: str

    def carry_out(self, consumer: Session) -> None:  # noqa: ARG002 - any
        raise SessionLostError(self.why)


# -- to a host -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what a receiver takes in.

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
        key: number of the receiver, unique among those of a query.
        ids: which message a delivery is.
        keeps_unreadable: see :attr:`.Session.keeps_unreadable`.
        again: another process has kept it before. Then the first attempts are those of a reconnect.
    """

    key: int
    endpoint: Endpoint
    ids: MessageIds
    keeps_unreadable: bool
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
    """Close a connection for good; what is unacknowledged goes back to the broker.

    Attributes:
        waits: whoever asks waits for its end, for a moment. Of several connections each is asked first without that.
    """

    key: int
    waits: bool = True


ToWorker: TypeAlias = "Begin | Ask | SetLimits | Stop"
