"""An in-flight table that holds new messages as runs does what one does that holds each by itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pyspark_mq.ack import Acknowledgements, InFlightTable
from pyspark_mq.ack.buffer import MessageRun, joined
from pyspark_mq.dedup import Memory, QueueMemory, TextKeys
from pyspark_mq.dedup.identity import as_text_keys
from tests.support.effort import part_of


class Side:
    """An in-flight table, and what the broker has of its deliveries.

    Attributes:
        open: session -> tags that are not acknowledged, with their messages.
        acknowledged: session and message of each delivery that is.
    """

    def __init__(self, run_min: int) -> None:
        memory = QueueMemory(Memory(10_000, 500, b"secret"), "orders")
        self.in_flight: InFlightTable[str] = InFlightTable(grace_s=5.0, memory=memory, run_min=run_min)
        self.open: dict[int, dict[int, str]] = {}
        self.acknowledged: list[tuple[int, str]] = []
        self.runs = self.together = 0

    def take(self, due: Acknowledgements | None, allowed: Callable[[str], bool]) -> Any:
        """Acknowledge as the broker does: every open delivery up to a tag, and single ones."""
        for part in () if due is None else due.parts:
            tags = self.open[part.session]
            covered = [tag for tag in tags if tag <= part.upto] + [*part.singles]
            assert len(covered) == part.deliveries
            for tag in covered:
                key = tags.pop(tag)
                assert allowed(key), f"{key} is acknowledged before its epoch is committed"
                self.acknowledged.append((part.session, key))
        return None if due is None else due.number

    def seen(self, keys: list[str]) -> dict[str, Any]:
        in_flight = self.in_flight
        return {
            "acknowledged": sorted(self.acknowledged),
            "open": self.open,
            "unacked": (in_flight.unacked, {one: in_flight.unacked_in(one) for one in in_flight.sessions}),
            "received": (len(in_flight.received), in_flight.received.size_bytes, list(in_flight.received.oldest(50))),
            "planned": {
                one: (
                    [*in_flight.planned.keys(one)], in_flight.planned.missing(one), epoch.size_bytes,
                    [payload for part in in_flight.planned.parts(one) for payload in part],
                )
                for one, epoch in in_flight.planned.epochs.items()
            },
            "expected": (in_flight.expected, len(in_flight.planned), in_flight.planned.size_bytes),
            "counters": in_flight.counters,
            "left": in_flight.left_among(keys),
            "settling": in_flight.settling.among(keys, lambda _: True),
        }  # fmt: skip


def joined_run(runs: Sequence[MessageRun[str]]) -> MessageRun[str]:
    return MessageRun(
        [part for run in runs for part in run.parts],
        joined([run.keys for run in runs]),
        [payload for run in runs for payload in run.payloads],
        sum(run.size_bytes for run in runs),
        np.concatenate([run.digests for run in runs]),
    )


def a_history(seed: int) -> tuple[int, int]:
    """Run a history on both; return how many runs there were, and how often several sessions came together."""
    chance = random.Random(seed)
    both = Side(chance.choice([1, 3])), Side(1_000_000)
    numbers = iter(range(1_000_000))
    waiting: list[str] = []  # handed out and gone with their session: the broker brings them again
    committed: set[str] = set()
    every: list[str] = []
    tag = epoch = session = now_s = 0
    due: list[tuple[int, int]] = []
    repeats = chance.choice([0.0, 0.02, 0.3])

    # Each function that is given is called at once, so what it refers to in the loop is as it was.
    # ruff: noqa: B023
    def each(do: Callable[[Side], Any]) -> list[Any]:
        return [do(side) for side in both]

    def open_session() -> None:
        nonlocal session
        session += 1
        for side in both:
            side.in_flight.open_session(session)
            side.open[session] = {}

    def acknowledge(do: Callable[[Side], Acknowledgements | None]) -> None:
        nonlocal now_s
        first, second = each(lambda side: side.take(do(side), committed.__contains__))
        assert (first is None) is (second is None)
        if first is not None:
            assert first == second
            for one in both[0].in_flight.sessions:
                each(lambda side, one=one: side.in_flight.settling.asked(first, [one], now_s))
                due.append((first, one))

    open_session()
    for _ in range(chance.randint(10, 80)):
        now_s += chance.choice([1, 6])
        step = chance.choices(
            ["deliver", "plan", "commit", "confirm", "lose", "open", "abandon", "pass", "join"],
            [9, 5, 4, 3, 0.7, 0.9, 0.1, 0.1, 1],
        )[0]
        sessions = both[0].in_flight.sessions
        if step == "deliver" and sessions:
            blocks: list[tuple[int, list[int], Any, list[str]]] = []
            for where in chance.choices(sessions, k=chance.choice([1, 1, 2, 4])):
                keys = [waiting.pop(0) for _ in range(min(len(waiting), chance.randint(0, 6)))]
                keys += [f"id-{next(numbers)}" for _ in range(chance.randint(0, 6))]
                keys = [chance.choice(every) if every and chance.random() < repeats else key for key in keys]
                tags = [tag + at + 1 for at in range(len(keys))]
                tag += len(keys)
                every += keys
                for side in both:
                    side.open[where].update(zip(tags, keys, strict=True))
                payloads = [f"{key}@{where}:{one}" for key, one in zip(keys, tags, strict=True)]
                given: Any = as_text_keys(keys) if chance.random() < 0.5 else keys
                assert given is not None
                blocks += [(where, tags, given, payloads)] if keys else []
            # One side takes new messages of several sessions together, the other block by block.
            keys = [key for _, _, keys, _ in blocks for key in keys]
            given = as_text_keys(keys) if chance.random() < 0.5 else keys
            parts = [(where, tags) for where, tags, _, _ in blocks]
            together = len(blocks) > 1 and both[0].in_flight.deliver_new(
                parts, given, [payload for *_, payloads in blocks for payload in payloads]
            )
            both[0].together += together
            for where, tags, given, payloads in blocks:
                if together:
                    assert both[1].in_flight.deliver(where, tags, given, payloads) is None
                else:
                    acknowledge(lambda side: side.in_flight.deliver(where, tags, given, payloads))
            both[0].runs += len(both[0].in_flight.received.runs)
        elif step == "join":
            buffer = both[0].in_flight.received
            small = {run for run in buffer.runs if chance.random() < 0.7}
            buffer.join(small, joined_run)
        elif step == "plan":
            epoch += 1
            count = chance.randint(0, 12)
            first, second = each(lambda side: [*side.in_flight.plan(epoch, count)])
            assert first == second
        elif step == "commit" and (open_ := [*both[0].in_flight.planned.epochs]):
            one = open_[0] if chance.random() < 0.9 else chance.choice(open_)
            committed.update(both[1].in_flight.planned.keys(one))
            acknowledge(lambda side: side.in_flight.commit(one))
        elif step == "confirm" and due:
            number, where = due.pop(chance.randrange(len(due)))
            if where in sessions:
                each(lambda side: side.in_flight.confirm(number, where, now_s))
        elif step == "lose" and sessions:
            where = chance.choice(sessions)
            first, second = each(lambda side: side.in_flight.lose(where))
            assert first == second
            gone = [side.open.pop(where) for side in both]
            assert gone[0] == gone[1]
            waiting += gone[0].values()
        elif step == "open" and len(sessions) < 3:
            open_session()
        elif step == "abandon" and (open_ := [*both[0].in_flight.planned.epochs]):
            each(lambda side: side.in_flight.abandon(open_[0]))
        elif step == "pass" and sessions:
            each(lambda side: side.in_flight.pass_over(sessions[0], tag + 1))
        if not both[0].in_flight.sessions:
            open_session()
        assert both[0].seen(every) == both[1].seen(every), step
        if chance.random() < 0.1:
            assert [both[0].in_flight.states(every)(key) for key in every] == [
                both[1].in_flight.states(every)(key) for key in every
            ]
    return both[0].runs, both[0].together


@pytest.mark.parametrize("seed", range(part_of(300)))
def test_runs_change_nothing(seed: int) -> None:
    a_history(seed)


def test_histories_have_runs() -> None:
    seeds = range(20)
    runs, together = map(sum, zip(*map(a_history, seeds), strict=True))
    assert runs > 2 * len(seeds)
    assert together > len(seeds)


def test_keys_of_arrays_are_joined_in_their_memory() -> None:
    first, second = as_text_keys(["a", "b"]), as_text_keys(["c"])
    assert first is not None
    assert second is not None
    both = TextKeys.joined([first, second])
    assert [*both] == ["a", "b", "c"]
    assert both.chunks[0] is first.chunks[0]
