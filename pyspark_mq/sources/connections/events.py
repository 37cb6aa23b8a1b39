"""What receivers tell the query's thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from pyspark_mq.errors import MqError
from pyspark_mq.sources.connections.consumer import Consumer, Greeting, QueueDepth
from pyspark_mq.sources.connections.decoder import Decoder
from pyspark_mq.sources.settings import Settings

__all__ = [
    "AnyReceiver", "AnySession", "Confirmed", "Failed", "Lost", "Mailbox", "Opened", "ReceiverPool", "Terms",
    "next_session",
]  # fmt: skip

_session_numbers = count(1)


def next_session() -> int:
    """A number for a session, unique in this process."""
    return next(_session_numbers)


class AnySession(Protocol):
    """What the query's thread looks at of a session: a :class:`Consumer`, or what stands for one of another process."""

    inbox: deque[Any]
    bytes_taken: int
    bytes_allowed: float

    @property
    def session(self) -> int: ...
    @property
    def paused(self) -> bool: ...
    @property
    def behind(self) -> bool: ...
    @property
    def starved(self) -> bool | None: ...
    @property
    def attended(self) -> tuple[int, float] | None: ...


class AnyReceiver(Protocol):
    """A :class:`Receiver`, or what stands for one of another process. For the query's thread."""

    depth: QueueDepth | None
    depth_at_s: float

    def start(self) -> None: ...
    def ask(self, session: int, request: Callable[[Consumer], None]) -> None: ...
    def stop(self, timeout_s: float = 2.0) -> None: ...


class ReceiverPool(Protocol):
    """Processes that hold the connections of a query.

    Attributes:
        decoder: of what their sessions put into inboxes.
    """

    decoder: Decoder

    def receiver(self, settings: Settings, mailbox: Mailbox, terms: Callable[[], Terms]) -> AnyReceiver:
        """One connection more, kept by the process whose turn it is."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A session is open and about to consume."""

    receiver: AnyReceiver
    consumer: AnySession
    greeting: Greeting
    window: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A session has ended, and what it had received and nobody has taken is gone.

    Attributes:
        ever_paused: it had stopped consuming for a while. A broker does not count a consumer that was
            cancelled, but what it was handed stays with it for as long as its connection is taken for alive.
    """

    session: int
    ever_paused: bool


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The broker took the acknowledgements of a settlement."""

    session: int
    number: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The receiver has given up, for this reason."""

    error: MqError


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a session begins.

    Attributes:
        window: how many unacknowledged messages to have handed out.
        bytes_allowed: when more bytes than this wait in the inbox, it pauses.
    """

    window: int
    bytes_allowed: float


class Mailbox:
    """What receivers tell the query's thread, and the signal that something arrived.

    Args:
        arrived: the signal; one for all mailboxes of a query.
    """

    def __init__(self, arrived: threading.Event | None = None) -> None:
        self.arrived = arrived or threading.Event()
        self._letters: deque[Opened | Lost | Confirmed | Failed] = deque()

    def put(self, letter: Opened | Lost | Confirmed | Failed) -> None:
        """Called by receivers."""
        self._letters.append(letter)
        self.arrived.set()

    def take(self) -> list[Opened | Lost | Confirmed | Failed]:
        """Called by the query's thread: the letters so far, in order."""
        return [self._letters.popleft() for _ in range(len(self._letters))]
