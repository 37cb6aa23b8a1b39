"""``pyspark-mq peek``: shows the next messages of a queue as rows, and returns them to the queue.

The command receives messages but does not acknowledge them. When its connection ends, the broker puts each message back
to its old position. Some queues count deliveries (RabbitMQ's quorum queues, Artemis). They count the command's delivery
too, and dead-letter or drop a message whose count exceeds the queue's limit. So the command requests no more messages
than it shows. Each failure raises an MqError.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark_mq.decode.batch import DeliveryBatch, listed
from pyspark_mq.errors import BrokerUnavailableError
from pyspark_mq.sources.connections.message_id import MessageIds
from pyspark_mq.sources.connections.protocols import session_class
from pyspark_mq.sources.connections.session import Greeting, ReceiveBuffer, Session, SessionLostError, SessionOptions
from pyspark_mq.sources.settings import OnUnreadable, Settings

__all__ = ["arrivals", "consuming", "make_session", "open_first", "peek", "received", "rows_of"]

_TURN_S = 0.1


def peek(settings: Settings, maximum: int, patience_s: float) -> list[dict[str, Any]]:
    """Return the next messages of each queue, at most `maximum` each.

    Args:
        settings: the settings of the query that would read the queues.
        maximum: maximum number of messages to show of one queue.
        patience_s: longest wait for the next message.

    Returns:
        one mapping from column name to value for each message. Bodies are bytes, timestamps are microseconds since
        1970, and `properties` is a mapping.
    """
    rows = []
    for one in settings.by_queue():
        with consuming(one, maximum) as session:
            batches = received(session, maximum, patience_s)
        rows += rows_of(one, batches)
    return rows


@contextmanager
def consuming(settings: Settings, maximum: int) -> Iterator[Session]:
    """Open a session that receives up to `maximum` messages of a queue without acknowledging them.

    The session ends with the `with` block, and the broker then returns the messages to the queue.
    """
    session = make_session(settings)
    try:
        open_first(session, settings)
        try:
            session.consume(maximum)
            yield session
        except SessionLostError as lost:
            raise BrokerUnavailableError(f"{session.endpoint.destination}: the session ended: {lost}") from lost
    finally:
        session.close()


def make_session(settings: Settings, *, browses: bool = False) -> Session:
    """Create a session for the queue of the settings, without opening the session.

    Args:
        browses: whether the session only browses the queue, if the broker supports this.
    """
    options = SessionOptions(settings.on_unreadable is not OnUnreadable.FAIL, browses)
    return session_class(settings.endpoint.protocol)(settings.endpoint, 1, ReceiveBuffer(), options)


def open_first(session: Session, settings: Settings) -> Greeting:
    """Connect the session to the first broker in `url` that answers, and return that broker's greeting."""
    unavailable: BrokerUnavailableError | None = None
    for url in settings.endpoint.urls:
        try:
            with settings.endpoint.hiding():
                return session.open(url, settings.endpoint.connect_timeout_s)
        except BrokerUnavailableError as failed:
            unavailable = failed
    assert unavailable is not None, "there is a URL"
    raise unavailable


def received(session: Session, maximum: int, patience_s: float) -> list[DeliveryBatch]:
    """Return all deliveries that :func:`arrivals` yields for these arguments."""
    return [*arrivals(session, maximum, patience_s)]


def arrivals(session: Session, maximum: int, patience_s: float) -> Iterator[DeliveryBatch]:
    """Yield deliveries as they arrive, from a session that has started to consume.

    Stop after `maximum` deliveries, or if no delivery arrives for `patience_s` seconds.

    Raises:
        SessionLostError: the session has ended.
        MessageError: a message cannot be decoded, and `onUnreadableMessage` is `fail`.
    """
    received_s = time.monotonic()
    while maximum and time.monotonic() - received_s < patience_s:
        with session.endpoint.hiding():
            session.run(_TURN_S)
        if items := session.buffer.take():
            received_s = time.monotonic()
            batch = session.batches.of(items)[:maximum]
            maximum -= len(batch)
            yield batch


def rows_of(settings: Settings, batches: Iterable[DeliveryBatch]) -> list[dict[str, Any]]:
    """Return the deliveries of one queue as rows, in the form that :func:`peek` returns."""
    ids, rows = MessageIds.of(settings), list[dict[str, Any]]()
    for batch in batches:
        columns: Mapping[str, list[Any]] = {
            "messageId": listed(ids.texts(ids.values(batch))),
            "body": batch.body().to_pylist(),
            "destination": [settings.endpoint.name] * len(batch),
            **{name: listed(make(batch)) for name, make in batch.columns.items()},
        }
        rows += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [{**row, "properties": dict(row["properties"] or ())} for row in rows]
