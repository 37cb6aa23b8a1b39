"""What runs of the source do, event by event, and whether the specification allows it (``dev/spec/Trace.tla``).

:func:`record` lets the whole source run on the queue in memory through faults that a seed decides, and writes down
what Spark, the source and the broker do. :func:`refused` has TLC follow many such traces at once.
``python -m tests.support.traces 10000`` records so many and checks them.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import random
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.engine import At, Crashed
from tests.support.memory_broker import Faults, MemoryBroker, MemoryQueue, Message
from tests.support.simulation import Query, World, make_settings
from tests.support.watching import watch
from tools.tlc import FAULTS, run_tlc

__all__ = ["QUEUES", "Event", "Kind", "Names", "Trace", "by_queue", "kinds", "record", "refused", "where"]

QUEUES = ("a", "b")
#: So many are checked by one TLC: it takes seconds to begin, and longer to read more.
_TOGETHER = 500
_MESSAGES = 10
_DELAY_S = 15.0
#: Events before one that is refused.
_SHOWN = 40

Event = tuple[Any, ...]


@dataclass(frozen=True)
class Kind:
    """What all traces that are checked together have in common.

    Attributes:
        gives_up: option `failOnDataLoss` is false.
        consumers: sessions of a queue.
        messages: of a queue, at most.
    """

    gives_up: bool
    consumers: int
    messages: int = _MESSAGES


class Names:
    """Queues and IDs as the checker has them. In memory they are called so."""

    def queue(self, name: str) -> str:
        return name

    def one(self, queue: str, text: str) -> tuple[str, int]:
        return queue, int(text)


@dataclass
class Trace:
    """What one run did.

    Attributes:
        name: tells it from others.
        events: each a name and what belongs to it: copies and IDs as (queue, number), sessions as (queue, place).
    """

    kind: Kind
    name: str
    events: list[Event] = field(default_factory=list)
    names: Names = field(default_factory=Names)

    def add(self, name: str, *about: Any) -> None:
        """Something happened."""
        self.events.append((name, *about))

    # -- what Spark does

    def spark(self, name: str, *about: Any) -> None:
        """A call or a write of Spark."""
        if name == "start":
            watch(about[0], self.seen)
            self.add("start")
        elif name == "plan":
            self.plan(*about)
        elif name == "sink":
            self.add("sink", by_queue(_id_of_row(row) for row in about[0]))
        else:
            self.add(name)

    def plan(self, ids: Mapping[str, Sequence[str]]) -> None:
        """An offset is in the log: queue -> IDs of its epoch."""
        self.add("plan", by_queue(self._each(ids)))

    def _each(self, ids: Mapping[str, Sequence[str]]) -> list[tuple[str, int]]:
        return [self.names.one(queue, text) for queue, texts in ids.items() for text in texts]

    # -- what the source sees

    def seen(self, name: str, *about: Any) -> None:
        """As :func:`tests.support.watching.watch` tells."""
        *session, (queue, last) = about
        if name in {"open", "lose"}:
            self.add(name, (self.names.queue(queue), last))
        elif name in {"deliver", "acknowledge"}:
            self.add(
                name, *((self.names.queue(where), place) for where, place in session), (*self.names.one(queue, last), 1)
            )
        else:
            self.add(name, self.names.one(queue, last))

    # -- what the broker does

    def broker(self, name: str, queue: MemoryQueue, messages: Iterable[Message]) -> None:
        """Something happens to messages at the broker."""
        copies = [(queue.name, int(message.id or 0), 1) for message in messages]
        if name != "kill":
            for copy in copies:
                self.add(name, copy)
        elif self.events and self.events[-1][0] == "kill":  # of all queues at once
            self.events[-1] = ("kill", self.events[-1][1] | frozenset(copies))
        else:
            self.add("kill", frozenset(copies))


def _id_of_row(row: str) -> tuple[str, int]:
    number, _, queue = row.partition(" of ")
    return queue or QUEUES[0], int(number)


def by_queue(ids: Iterable[tuple[str, int]]) -> dict[str, tuple[tuple[str, int], ...]]:
    held = list(ids)
    return {name: tuple(one for one in held if one[0] == name) for name in QUEUES}


# -- runs -------------------------------------------------------------------------------------------------------


def record(kind: Kind, seed: int) -> Trace:
    """A run of the source through faults that the seed decides."""
    chance, trace, world = random.Random(seed), Trace(kind, str(seed)), World()
    broker = MemoryBroker(world.process(), seed)
    names = QUEUES[: chance.choice((1, 2))]
    queues = [broker.declare(name) for name in names]
    steady = kind.gives_up
    delay_s = chance.choice((0.0, 0.0, 2.0, _DELAY_S))
    for queue in queues:
        lag_s = chance.choice((0.0, 0.03, 0.4))
        queue.faults = Faults(
            acks_s=lag_s, confirms_s=lag_s, tells_depth=chance.random() < 0.5, shuffles=chance.random() < 0.5,
            hides_lost=chance.random() < 0.5, delay_s=delay_s, delay_max_s=_DELAY_S,
            rate=float("inf") if steady else chance.choice((float("inf"), 200.0, 3.0)),
        )  # fmt: skip
    settings = make_settings(
        queues=names, consumers=kind.consumers, max_messages=chance.choice((1, 3, 20)),
        prefetch=chance.choice((2, 5, 60)), settle_grace_s=5.0, heartbeat_s=2.0, reconnect_timeout_s=100_000.0,
        connect_timeout_s=100_000.0, replay_timeout_s=60.0 if steady else 100_000.0,
        fail_on_data_loss=not kind.gives_up,
    )  # fmt: skip
    query = Query(world, broker, settings, shows_start=chance.random() < 0.7)
    query.trace, broker.trace = trace.spark, trace.broker
    run = _Run(chance, world, broker, query)
    for _ in range(chance.randint(5, 25)):
        run.step()
    return trace


class _Run:
    """One thing after the other, by chance."""

    def __init__(self, chance: random.Random, world: World, broker: MemoryBroker, query: Query) -> None:
        self._chance, self._world, self._broker, self._query = chance, world, broker, query
        self._published = 0
        self._publish()

    def step(self) -> None:
        """The next one."""
        steps = (self._trigger,) * 4 + (self._publish, self._kill, self._die, self._wait, self._end, self._end_between)
        self._chance.choice((*steps, self._stand_still, self._finish, self._take_away))()

    def _publish(self) -> None:
        for _ in range(self._chance.randint(1, 4)):
            if self._published < _MESSAGES:
                self._published += 1
                self._chance.choice(self._query.queues).publish(b"", str(self._published))

    def _trigger(self) -> None:
        for _ in range(self._chance.randint(1, 4)):
            self._query.trigger()

    def _kill(self) -> None:
        with contextlib.suppress(Crashed):
            self._query.trigger(self._chance.choice(list(At)))

    def _die(self) -> None:
        self._query.crash(self._chance.choice((0.0, 3.0, 20.0)))

    def _wait(self) -> None:
        self._world.let_pass(self._chance.choice((0.05, 0.7, 3.0, 12.0, 100.0)))

    def _end(self) -> None:
        how, lose_acks = self._chance.choice(("cut", "half-open", "silent", "killed")), self._chance.random() < 0.5
        if how == "killed":
            self._broker.kill()
            self._world.at(1.5, self._broker.start)
        elif how == "cut":
            self._broker.cut(lose_acks=lose_acks)
        elif how == "half-open":
            self._broker.cut(lose_acks=lose_acks, unnoticed_s=6.0)
        else:
            for queue in self._query.queues:
                for session in list(queue.sessions):
                    queue.silence(session, 4.0)

    def _end_between(self) -> None:
        def between() -> None:
            self._end()
            self._world.let_pass(self._chance.choice((0.3, 2.0, 8.0)))

        self._query.between = between
        self._query.trigger()
        self._query.between = lambda: None

    def _stand_still(self) -> None:
        seconds = self._chance.choice((1.0, 12.0, 400.0))
        self._query.process.stop(seconds)
        self._world.let_pass(seconds)

    def _finish(self) -> None:
        self._query.crash()
        if self._chance.random() < 0.5:
            self._query.trigger_once()
        else:
            self._query.run_available(self._chance.choice((None, *At)))

    def _take_away(self) -> None:
        emitted = set(self._query.emitted)
        for queue in self._query.queues:
            queue.take_away(
                self._chance.randint(1, 3),
                lambda message, name=queue.name: self._query.row(name, message.id) not in emitted,  # type: ignore[misc]
            )
            self._world.at(self._chance.choice((1.0, 30.0, 240.0)), queue.bring_back)


# -- the checker ------------------------------------------------------------------------------------------------


def refused(traces: Sequence[Trace], *, workers: int = 1) -> list[Trace]:
    """Those that the specification does not allow."""
    left = []
    for kind, group in itertools.groupby(sorted(traces, key=lambda one: repr(one.kind)), lambda one: one.kind):
        held = list(group)
        for begin in range(0, len(held), _TOGETHER):
            part = held[begin : begin + _TOGETHER]
            told = run_tlc("Trace", _module(kind, part), _configuration(kind), workers=workers)
            if "No error has been found" not in told:
                raise AssertionError(told[-5000:])
            accepted = {int(number) for number in re.findall(r'<<"accepted", (\d+)>>', told)}
            left += [one for number, one in enumerate(part, start=1) if number not in accepted]
    return left


def where(trace: Trace) -> str:
    """Of one that is refused: its events up to the one that the specification does not allow."""
    allowed, wrong = 0, len(trace.events)
    while allowed + 1 < wrong:
        cuts = sorted({allowed + max(1, (wrong - allowed) * part // 8) for part in range(1, 8)} - {wrong})
        parts = [replace(trace, events=trace.events[:cut]) for cut in cuts]
        left = {id(part) for part in refused(parts)}
        allowed = max([allowed, *(cut for cut, part in zip(cuts, parts, strict=True) if id(part) not in left)])
        wrong = min([wrong, *(cut for cut, part in zip(cuts, parts, strict=True) if id(part) in left)])
    last = "\n".join(f"{at}: {trace.events[at]}" for at in range(max(0, wrong - _SHOWN), wrong))
    return f"{trace.name}, {trace.kind}, event {wrong - 1} of {len(trace.events)}:\n{last}"


def _module(kind: Kind, traces: Sequence[Trace]) -> str:
    slots = frozenset((name, place) for name in QUEUES for place in range(1, kind.consumers + 1))
    copies = frozenset((name, number, 1) for name in QUEUES for number in range(1, kind.messages + 1))
    told = ",\n".join(_tla(tuple(trace.events)) for trace in traces)
    faults = ", ".join(f"{name} |-> 1000000" for name in FAULTS)
    return (
        f"TracesHere == <<\n{told}\n>>\nCopiesHere == {_tla(copies)}\nSlotsHere == {_tla(slots)}\n"
        f"FaultsHere == [{faults}]\nNobody == {{}}"
    )


def _configuration(kind: Kind) -> list[str]:
    constants = {
        "Traces": "<- TracesHere", "Copies": "<- CopiesHere", "Slots": "<- SlotsHere", "Faults": "<- FaultsHere",
        "Odd": "<- Nobody", "Broken": "<- Nobody", "Mode": '= "stream"',
        "Window": "= 1000", "Room": "= 1000", "EpochMax": "= 1000", "Limit": "= 0",
        "RememberLeft": "= 1000000", "DedupWindow": "= 1000000",
        "Forget": "<- ForgetNothing", "Count": "<- CountNothing",
        "GivesUp": f"= {_tla(kind.gives_up)}",
        **{place: f"= {place}" for place in ("Ready", "Ghost", "Acked", "Away", "Dead", "None")},
    }  # fmt: skip
    return [
        "CONSTANTS", *(f"  {name} {value}" for name, value in constants.items()),
        "SPECIFICATION TraceSpec", "CHECK_DEADLOCK FALSE", "INVARIANT Accepted", "INVARIANT Always",
    ]  # fmt: skip


def _tla(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, dict):
        return f"[{', '.join(f'{name} |-> {_tla(inner)}' for name, inner in value.items())}]"
    if isinstance(value, tuple):
        return f"<<{', '.join(map(_tla, value))}>>"
    if isinstance(value, frozenset):
        return f"{{{', '.join(map(_tla, sorted(value)))}}}"
    return f'"{value}"' if isinstance(value, str) else str(value)


def kinds() -> list[Kind]:
    """All there are."""
    return [Kind(gives_up, count) for gives_up in (False, True) for count in (1, 2)]


def main() -> int:
    """Record traces and check them; 1 if one is refused."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.traces", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=500, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    logging.disable()  # of the faults
    every, began_s = kinds(), time.monotonic()
    traces = [record(every[n % len(every)], arguments.seed + n) for n in range(arguments.count)]
    print(f"{time.monotonic() - began_s:.0f} s: {len(traces)} traces, {sum(len(one.events) for one in traces)} events")
    left = refused(traces, workers=arguments.workers)
    for trace in left[:5]:
        print("refused:", trace.kind, trace.name)
    print(f"{time.monotonic() - began_s:.0f} s: {len(traces) - len(left)} accepted, {len(left)} refused")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
