"""A session of a consumer that is run by the test's own thread, from its opening to its end."""

from __future__ import annotations

import time
import traceback
from itertools import count
from typing import Any

from pyspark_mq.sources.connections.events import Event, EventQueue, Failed, Opened
from pyspark_mq.sources.connections.session import Session, SessionOptions
from pyspark_mq.sources.connections.supervisor import ConnectionSupervisor, Limits
from pyspark_mq.sources.runtime import Threads
from pyspark_mq.spark_source.options import parse_options
from testbed.process import poll
from tests.support.decoding import take_each
from tests.support.sockets import LIMIT_S

__all__ = ["failure", "receive"]


def receive(consumer: Session, count: int, longer_s: float = 0.0) -> list[Any]:
    """Deliveries, as many as there are to be, and for a moment longer what should not come."""
    raws: list[Any] = []
    try:
        consumer.open(consumer.endpoint.urls[0], LIMIT_S)
        consumer.consume(10)
        end_s = time.monotonic() + LIMIT_S
        while len(raws) < count and time.monotonic() < end_s:
            consumer.run(0.05)
            raws += take_each(consumer.buffer)
        if longer_s:
            consumer.run(longer_s)
        return raws + take_each(consumer.buffer)
    finally:
        consumer.close()


def failure(consumer: type[Session], options: dict[str, str], *, opened: bool = False) -> str:
    """Whatever is printed of the error that ends a receiver, which does not try for long.

    Args:
        opened: wait until a session has opened before.
    """
    settings = parse_options({"connectTimeout": f"{LIMIT_S:g}s", "reconnectTimeout": "100ms", **options}).settings
    told, events = EventQueue(), list[Event]()
    chosen, limits = SessionOptions(), Limits(10, 1e9)
    supervisor = ConnectionSupervisor(1, settings.endpoint, consumer, chosen, limits, told, count(1), Threads())
    supervisor.start()

    def failed() -> Failed | None:
        events.extend(told.take())
        return next((event for event in events if isinstance(event, Failed)), None)

    assert poll(lambda: failed() is not None, LIMIT_S)
    found = failed()
    assert found is not None
    assert opened is any(isinstance(event, Opened) for event in events)
    supervisor.stop()
    return "".join(traceback.format_exception(found.error)) + repr(found.error)
