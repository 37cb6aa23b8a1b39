"""What the engines of the fault tests do on brokers, as traces for the specification (``tests/support/traces.py``).

Spark's calls and what the source sees were written down (``tests/support/watching.py``). What the broker does cannot be
seen, but for the moment in which a test ends it: that is taken from what came of each message later.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from testbed.brokers.node import Node
from tests.support.traces import QUEUES, Event, Kind, Names, Trace, by_queue
from tests.support.watching import FILE, writer

__all__ = ["read_trace", "written_down"]

#: Messages of a run, so that many of them are checked together. The few runs of up to 250 took the checker longer than
#: all of these.
_SIZES = (20, 60, 130)


class _Numbers(Names):
    """Queues and IDs, numbered as they come."""

    def __init__(self) -> None:
        self._queues: dict[str, str] = {}
        self._ids: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def queue(self, name: str) -> str:
        return self._queues.setdefault(name, QUEUES[len(self._queues)])

    def one(self, queue: str, text: str) -> tuple[str, int]:
        return self.queue(queue), self._ids.setdefault((queue, text), len(self) + 1)

    def of_row(self, text: str) -> tuple[str, int]:
        """Of the only queue that it came from."""
        ((queue, _),) = [one for one in self._ids if one[1] == text]
        return self.one(queue, text)


@contextmanager
def written_down(node: Node, file: Path) -> Iterator[None]:
    """Have engines and readers that are made meanwhile write what they do into a file; and when a node ends, that."""
    os.environ[FILE] = str(file)
    file.touch()
    tell = writer()
    kill, stop = node.kill, node.stop

    def ended(end: Callable[[], None]) -> None:
        end()
        tell("die")

    node.kill, node.stop = partial(ended, kill), partial(ended, stop)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del os.environ[FILE], node.kill, node.stop


def read_trace(file: Path, name: str) -> Trace | None:
    """What the engines of one test did, one after the other, and their readers.

    Args:
        file: with a line for each event.
        name: of the trace.

    Returns:
        None if there were no engines, it has more messages than the checker is good at, or the source did not promise
        exactly-once.
    """
    names, gives_up, answer, waiting = _Numbers(), False, None, ""
    trace = Trace(Kind(gives_up=False, consumers=1), name, names=names)
    for line in file.read_text("utf-8").splitlines():
        event, *about = json.loads(line)
        if event == "inexact":
            return None
        if event == "answer":
            answer = about
        elif event == "plan":
            assert answer is not None, "planned without an answer of the source"
            trace.plan(*answer)
            waiting = "run"
        elif event == "call":
            told = {"latestOffset": "latest", "commit": "run", "partitions": waiting, "rows": waiting}.get(about[0])
            if told:
                trace.add(told)
                waiting = ""
        elif event == "sink":
            trace.add("sink", by_queue(names.of_row(text) for text in about[0]))
        elif event == "start":
            gives_up |= about[0]
            trace.add("start")
            waiting = "replay"  # whatever was planned, as this process did not
        elif about:
            trace.seen(event, *about)
        else:
            trace.add(event)
    size = next((size for size in _SIZES if size >= len(names)), None)
    if size is None or not trace.events:
        return None
    trace.events = _Broker(trace.events).fill_in()
    consumers = max((event[1][1] for event in trace.events if event[0] == "open"), default=1)
    trace.kind = replace(trace.kind, gives_up=gives_up, consumers=consumers, messages=size)
    return trace


# -- what the broker must have done -----------------------------------------------------------------------------


class _Broker:
    """What it must have done: of what came again later it had not taken the acknowledgement.

    What it has confirmed says nothing of that, and is in no trace: a broker that is killed forgets, and a channel of
    RabbitMQ answers behind acknowledgements that it keeps back from a quorum queue, and loses them when it ends.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events
        self._last = {event[2]: at for at, event in enumerate(events) if event[0] == "deliver"}
        self._held: dict[Event, Event] = {}  # copy -> session
        self._on_the_way: dict[Event, Event] = {}  # copy -> session that it is acknowledged in
        self._open: set[Event] = set()
        #: Sessions that have ended for the broker, and not yet for the source: it takes nothing there any more.
        self._over: set[Event] = set()

    def fill_in(self) -> list[Event]:
        """The events, and its own between them."""
        told: list[Event] = []
        for at, event in enumerate(self._events):
            told += self._before(at, *event)
            told.append(event if event[0] != "die" else ("kill", frozenset()))
        return told

    def _before(self, at: int, name: str, *about: Event) -> Iterable[Event]:
        if name == "open":
            self._open.add(about[0])
        if name == "lose":
            ended = self._end(at, {about[0]})
            self._open.discard(about[0])
            self._over.discard(about[0])
            return ended
        if name in {"crash", "die"}:
            ended = self._end(at, {*self._open})
            self._over = {*self._open} if name == "die" else set()
            self._open = self._open if name == "die" else set()
            return ended
        if name == "acknowledge" and about[0] not in self._over:
            self._on_the_way[about[1]] = about[0]
        if name != "deliver":
            return []
        # Handed out by a session that the broker has given up, as nothing else has it give out a message again.
        session, copy = about
        ended = []
        if copy in self._held:
            self._over.add(self._held[copy])
            ended = self._end(at, {self._held[copy]})
        if session not in self._over:
            self._held[copy] = session
        return ended

    def _end(self, at: int, sessions: set[Event]) -> list[Event]:
        flying = [copy for copy, session in self._on_the_way.items() if session in sessions]
        taken = sorted(copy for copy in flying if self._last[copy] < at)
        for mapping in (self._held, self._on_the_way):
            for copy in [copy for copy, session in mapping.items() if session in sessions]:
                del mapping[copy]
        return [("take", copy) for copy in taken]
