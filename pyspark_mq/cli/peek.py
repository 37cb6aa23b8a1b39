"""``pyspark-mq peek``: the next messages of a queue as rows, given back.

They are received like any others, and not acknowledged: the end of the connection gives them back, each where it was.
On queues that count deliveries (quorum queues of RabbitMQ, Artemis) that is one more for each message that was handed
out, and a message that has as many as its queue allows is dead-lettered or dropped. So no more are asked for than
are shown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_mq.errors import BrokerUnavailableError
from pyspark_mq.sources import consumer_class
from pyspark_mq.sources.base import Consumer, Decoder, SessionLostError, drained
from pyspark_mq.sources.identification import Identification
from pyspark_mq.sources.settings import OnUnreadable, Settings

__all__ = ["Seen", "look", "peek"]

_TURN_S = 0.1


@dataclass(frozen=True, slots=True)
class Seen:
    """Deliveries that were given back.

    Attributes:
        settings: of their queue.
        raws: in the order in which they came.
        decoder: of the protocol.
        complete: did the queue have no more for us?
    """

    settings: Settings
    raws: list[Any]
    decoder: Decoder
    complete: bool


def look(settings: Settings, most: int, patience_s: float) -> Seen:
    """The next deliveries of one queue, given back.

    Args:
        settings: of the query that would read it, or of one queue of it.
        most: that are asked for.
        patience_s: for how long none may come.

    Raises:
        MqError: they cannot be had.
    """
    endpoint = settings.endpoint
    consumer = consumer_class(endpoint.protocol)(endpoint, 1, threading.Event())
    consumer.keeps_unreadable = settings.on_unreadable is not OnUnreadable.FAIL
    try:
        _open(consumer, settings)
        raws = _received(consumer, most, patience_s)
    finally:
        consumer.close()
    return Seen(settings, raws[:most], consumer.decoder, len(raws) < most)


def peek(settings: Settings, most: int, patience_s: float) -> list[dict[str, Any]]:
    """The next messages of each queue, at most so many of each.

    Args:
        settings: of the query that would read them.
        most: rows of one queue.
        patience_s: for how long none may come.

    Returns:
        rows by column; bodies as bytes, timestamps in microseconds since 1970, `properties` as a mapping.

    Raises:
        MqError: they cannot be had.
    """
    return [row for one in settings.by_queue() for row in _rows(look(one, most, patience_s))]


def _rows(seen: Seen) -> list[dict[str, Any]]:
    raws, decoder = seen.raws, seen.decoder
    columns: Mapping[str, list[Any]] = {
        "messageId": Identification(seen.settings, decoder).texts(raws),
        "body": decoder.bodies(raws),
        "destination": [seen.settings.endpoint.name] * len(raws),
        **{name: list(make(raws)) for name, make in decoder.columns.items() if name != "body"},
    }
    rows = [{name: values[at] for name, values in columns.items()} for at in range(len(raws))]
    return [{**row, "properties": dict(row["properties"] or ())} for row in rows]


def _open(consumer: Consumer, settings: Settings) -> None:
    unavailable: BrokerUnavailableError | None = None
    for url in settings.endpoint.urls:
        try:
            consumer.open(url, settings.endpoint.connect_timeout_s)
        except BrokerUnavailableError as away:
            unavailable = away
        else:
            return
    assert unavailable is not None, "there is a URL"
    raise unavailable


def _received(consumer: Consumer, most: int, patience_s: float) -> list[Any]:
    raws: list[Any] = []
    heard_s = time.monotonic()
    try:
        consumer.consume(most)
        while len(raws) < most and time.monotonic() - heard_s < patience_s:
            consumer.run(_TURN_S)
            came = drained(consumer.inbox)
            if came:
                heard_s = time.monotonic()
                raws += came
    except SessionLostError as lost:
        raise BrokerUnavailableError(f"{consumer.endpoint.destination}: the session ended: {lost}") from lost
    return raws
