"""What a receiver process and the source process say to each other.

`key` is the number of a receiver in its pool, `session` that of a session in the child. Both sides are of one
version and one interpreter, so these are pickled as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from pyspark_mq.dedup import IdSource
from pyspark_mq.errors import MqError
from pyspark_mq.sources.connections.consumer import Consumer, Greeting, QueueDepth
from pyspark_mq.sources.connections.events import Terms
from pyspark_mq.sources.endpoint import Endpoint

__all__ = [
    "Allow", "Answer", "Ask", "Attended", "Begin", "Confirm", "Depth", "End", "Ended", "Fail", "Hello", "Logged",
    "Open", "Question", "Rows", "Signs", "Stop",
]  # fmt: skip


# -- to the child ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message: columns to build, and the level of the log."""

    columns: tuple[str, ...]
    log_level: int


@dataclass(frozen=True, slots=True)
class Begin:
    """Keep a connection.

    Attributes:
        again: an earlier process has kept it before.
    """

    key: int
    endpoint: Endpoint
    id_source: IdSource
    keeps_unreadable: bool
    again: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """Have a request carried out in a session, if it still lives."""

    key: int
    session: int
    request: Callable[[Consumer], None]


@dataclass(frozen=True, slots=True)
class Allow:
    """Bytes taken from a session so far, and how many may wait."""

    key: int
    session: int
    bytes_taken: int
    bytes_allowed: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The terms for the session that is about to begin."""

    key: int
    terms: Terms


@dataclass(frozen=True, slots=True)
class Stop:
    """Close a connection for good."""

    key: int


# -- to the parent -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Question:
    """A session is open: on what terms does it begin?"""

    key: int


@dataclass(frozen=True, slots=True)
class Open:
    """A session consumes from now on."""

    key: int
    session: int
    greeting: Greeting
    window: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Deliveries of a session, in order: a chunk is beside this message."""

    key: int
    session: int


@dataclass(frozen=True, slots=True)
class Signs:
    """How a session stands, as far as its consumer shows it."""

    key: int
    session: int
    paused: bool
    behind: bool
    starved: bool | None


@dataclass(frozen=True, slots=True)
class Depth:
    """What the broker reported of the queue."""

    key: int
    depth: QueueDepth


@dataclass(frozen=True, slots=True)
class Confirm:
    """The broker took a settlement; what came before that was handed over before this."""

    key: int
    session: int
    number: int


@dataclass(frozen=True, slots=True)
class End:
    """A session has ended, and nothing of it comes behind this."""

    key: int
    session: int
    ever_paused: bool


@dataclass(frozen=True, slots=True)
class Fail:
    """A receiver has given up."""

    key: int
    error: MqError


@dataclass(frozen=True, slots=True)
class Ended:
    """A receiver was told to stop, and has."""

    key: int


@dataclass(frozen=True, slots=True)
class Attended:
    """Everything that came up to this moment has been handed over.

    Attributes:
        until_s: on the clock of `time.monotonic`, which all processes of a machine share.
        broke_off: before it, this process stood still for a while.
    """

    until_s: float
    broke_off: bool


@dataclass(frozen=True, slots=True)
class Logged:
    """A line for the log of the source process."""

    record: logging.LogRecord
