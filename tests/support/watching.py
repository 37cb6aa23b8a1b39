"""What the source of a query sees, event by event, as it is written down for `tests/support/traces.py`."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark_mq.ack import InFlightTable
from pyspark_mq.ack.buffer import Parts, places_of
from pyspark_mq.ack.handles import Acknowledgements
from pyspark_mq.dedup import key_text
from pyspark_mq.sources.connections.events import Opened
from pyspark_mq.sources.epochs import EpochSource
from pyspark_mq.sources.journal import Journal, planned_in
from pyspark_mq.sources.position import Position
from pyspark_mq.sources.queues.reader import QueueReader

__all__ = ["FILE", "Told", "planned", "watch", "watch_answers", "writer"]

#: The variable that names the file for the events of engines and their readers.
FILE = "TRACE_FILE"

#: Is told of an event: its name, and queues, IDs as (queue, text), sessions as (queue, place).
Told = Callable[..., None]


def writer() -> Told:
    """Who writes the events of this process down, if somebody asks for them."""
    file = os.environ.get(FILE)
    if file is None:
        return lambda *_: None

    def write(name: str, *about: Any) -> None:
        # Several processes write, one after the other, and each may be killed at any time: a line is one write.
        with Path(file).open("ab", buffering=0) as lines:
            lines.write(f"{json.dumps([name, *about])}\n".encode())

    return write


def planned(source: EpochSource, end: Position) -> dict[str, list[str]]:
    """Queue -> IDs, as the file of an epoch has them."""
    memory = source._memory
    assert isinstance(memory, Journal), "without IDs nothing is written down"
    content = memory._files.read(end.file)
    ids = {queue: list(map(key_text, keys)) for queue, keys in planned_in(memory._files, end.file).items()}
    return {**{queue: [] for queue in content.queues}, **ids}


def watch_answers(source: EpochSource, tell: Told) -> None:
    """Tell of each offset that it answers with."""
    latest = source.latest

    def answered(*arguments: Any, **options: Any) -> Position:
        end = latest(*arguments, **options)
        if end.file:
            tell("answer", planned(source, end))
        return end

    source.latest = answered  # type: ignore[method-assign,assignment]


def watch(source: EpochSource, tell: Told) -> None:
    """Tell of sessions, deliveries and acknowledgements.

    Args:
        source: of which nothing was asked yet.
        tell: is told.
    """
    slots: dict[tuple[str, int], int] = {}
    for queue in source._queues:
        _watch_queue(queue, slots, tell)


def _watch_queue(reader: QueueReader, slots: dict[tuple[str, int], int], tell: Told) -> None:
    name, in_flight = reader.name, reader.in_flight
    unsettled: dict[int, dict[int, str]] = {}

    def opened(event: Opened) -> None:
        taken = {place for (queue, _), place in slots.items() if queue == name}
        place = next(free for free in itertools.count(1) if free not in taken)
        slots[name, event.session] = place
        tell("open", (name, place))

    def lost(session: int) -> None:
        unsettled.pop(session, None)
        tell("lose", (name, slots.pop((name, session))))

    def delivered(session: int, tags: Sequence[int], keys: Sequence[Any], *_: object) -> None:
        for tag, key in zip(tags, keys, strict=True):
            unsettled.setdefault(session, {})[tag] = key_text(key)
            tell("deliver", (name, slots[name, session]), (name, key_text(key)))

    def acknowledged(due: Acknowledgements) -> None:
        # What the broker takes them for: all up to a tag, and others one by one.
        for part in due.parts:
            mine = unsettled.get(part.session, {})
            for tag in [tag for tag in mine if tag <= part.upto or tag in part.singles]:
                tell("acknowledge", (name, slots[name, part.session]), (name, mine.pop(tag)))

    _before(reader, "_open", opened)
    _before(reader, "_lose", lost)
    _watch_deliveries(in_flight, delivered)
    _before(reader.connections, "acknowledge", acknowledged)


def _watch_deliveries(in_flight: InFlightTable[Any], delivered: Callable[..., None]) -> None:
    """Tell of deliveries, whether they are given session by session, or new ones of several sessions together."""
    deliver, deliver_new = in_flight.deliver, in_flight.deliver_new
    alone = False

    def by_session(session: int, tags: Sequence[int], keys: Sequence[Any], *more: Any) -> Any:
        nonlocal alone
        delivered(session, tags, keys)
        alone = True
        try:
            return deliver(session, tags, keys, *more)
        finally:
            alone = False

    def together(parts: Parts, keys: Sequence[Any], payloads: Sequence[Any]) -> bool:
        new = deliver_new(parts, keys, payloads)
        if new and not alone:
            every = [*keys]
            for session, tags, begin, end in places_of(parts):
                delivered(session, tags, every[begin:end])
        return new

    in_flight.deliver = by_session  # type: ignore[method-assign]
    in_flight.deliver_new = together  # type: ignore[method-assign]


def _before(owner: Any, name: str, watching: Callable[..., None]) -> None:
    done = getattr(owner, name)

    def both(*arguments: Any) -> Any:
        watching(*arguments)
        return done(*arguments)

    setattr(owner, name, both)
