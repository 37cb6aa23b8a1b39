"""What the source does is a behaviour of the specification, and TLC notices where it is not.

With `--all` only. ``python -m tests.support.traces 10000`` records and checks more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Nodes
from tests.support.cells import TRACED_CELL, LiveCell
from tests.support.checks import assert_exactly_once
from tests.support.corruptions import CORRUPTIONS, acknowledged_before_its_commit
from tests.support.engine import At, Crashed
from tests.support.engine_traces import read_trace, written_down
from tests.support.traces import Kind, Trace, kinds, record, refused, unexcused

pytestmark = [pytest.mark.whole, pytest.mark.timeout(600), pytest.mark.usefixtures("checker")]

COUNT = 300
#: Runs that are corrupted: each corruption is done to the first of them that has a place for it.
_SEEDS = range(200)

# As an engine and its reader write it down: a message, in each of two sessions, and what becomes of it.
_MESSAGE = ("queue", "message")
_SESSION, _OTHER = ("queue", 1), ("queue", 2)
_COMMITTED: Sequence[tuple[object, ...]] = [
    ("start", False), ("call", "latestOffset"), ("open", _SESSION), ("open", _OTHER), ("deliver", _SESSION, _MESSAGE),
    ("answer", {"queue": ["message"]}, {}, False), ("plan",), ("call", "rows"), ("sink", ["message"]), ("commit",),
    ("call", "latestOffset"),
]  # fmt: skip
_ACKNOWLEDGED: Sequence[tuple[object, ...]] = [*_COMMITTED, ("acknowledge", _SESSION, _MESSAGE)]
_CONFIRMED: Sequence[tuple[object, ...]] = [*_ACKNOWLEDGED, ("confirm", _MESSAGE)]
_CAME_AGAIN: Sequence[tuple[object, ...]] = [("deliver", _OTHER, _MESSAGE), ("acknowledge", _OTHER, _MESSAGE)]


def test_what_the_source_does_is_allowed() -> None:
    every = kinds()
    left = unexcused(refused([record(every[seed % len(every)], seed) for seed in range(COUNT)]))
    assert [(trace.kind, trace.name) for trace in left] == []


def test_what_is_known_excuses_nothing_else() -> None:
    every = kinds()
    runs = (record(every[seed % len(every)], seed) for seed in range(COUNT))
    wrong = next(
        replace(trace, events=events)
        for trace in runs
        if trace.known and (events := acknowledged_before_its_commit(trace.events))
    )
    assert unexcused(refused([wrong])) != []


def test_what_was_corrupted_is_refused() -> None:
    kind = Kind(shows_start=True, gives_up=False, consumers=1)
    runs = [trace for seed in _SEEDS if not (trace := record(kind, seed)).known]
    corrupted: dict[str, Trace] = {}
    for corrupt in CORRUPTIONS:
        for trace in runs:
            events = corrupt(trace.events)
            if events is not None:
                corrupted[corrupt.__name__] = replace(trace, events=events)
                break
    assert list(corrupted) == [corrupt.__name__ for corrupt in CORRUPTIONS]
    noticed = {id(trace) for trace in refused(list(corrupted.values()))}
    assert [name for name, trace in corrupted.items() if id(trace) not in noticed] == []


def test_what_was_corrupted_on_a_broker_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    # tests/faults checks what it does on brokers; here is what such a check is good for.
    file = tmp_path / "trace.jsonl"
    with LiveCell(TRACED_CELL, nodes.get(TRACED_CELL.broker)) as cell, written_down(cell.node, file):
        sent = cell.publish(60)
        with cell.engine(maxMessagesPerTrigger=20) as run:
            for at in (At.AFTER_SINK, At.AFTER_COMMIT_LOG):
                with pytest.raises(Crashed):
                    run.batch(crash=at)
            run.between = cell.kill_and_start
            run.batch()
            run.between = lambda: None
            run.drain(60)
            assert_exactly_once(cell, run, sent, ordered=False)
    trace = read_trace(file, "on a broker")
    assert trace is not None
    assert refused([trace]) == []
    corrupted = {one.__name__: replace(trace, events=events) for one in CORRUPTIONS if (events := one(trace.events))}
    assert len(corrupted) > 15
    noticed = {id(trace) for trace in refused(list(corrupted.values()))}
    assert [name for name, trace in corrupted.items() if id(trace) not in noticed] == []


def _is_refused(file: Path, *events: tuple[object, ...]) -> bool:
    file.write_text("\n".join(map(json.dumps, events)), "utf-8")
    trace = read_trace(file, "by hand")
    assert trace is not None
    return bool(refused([trace]))


@pytest.mark.parametrize(
    "between",
    [
        [("lose", _SESSION)],
        [("lose", _SESSION), ("lose", _OTHER), ("open", _OTHER)],
        [("crash",), ("start", False), ("call", "latestOffset"), ("open", _OTHER)],
        [],  # the source has not noticed the end
    ],
    ids=["lost", "both lost", "crashed", "unnoticed"],
)
def test_what_was_confirmed_and_not_taken_may_come_again(tmp_path: Path, between: list[tuple[object, ...]]) -> None:
    # A channel of RabbitMQ keeps acknowledgements back from a quorum queue, answers behind them, and loses them.
    events = [*_CONFIRMED, *between, *_CAME_AGAIN, ("confirm", _MESSAGE)]
    assert not _is_refused(tmp_path / "trace.jsonl", *events)


@pytest.mark.parametrize("after", ["lost", "alive"])
def test_what_was_confirmed_and_is_not_carried_may_not_come_again(tmp_path: Path, after: str) -> None:
    between = [("lose", _SESSION)] if after == "lost" else []
    assert _is_refused(tmp_path / "trace.jsonl", *_CONFIRMED, *between, ("expire", _MESSAGE), *_CAME_AGAIN)


def test_what_was_never_acknowledged_is_not_confirmed(tmp_path: Path) -> None:
    events = [*_COMMITTED, ("confirm", _MESSAGE), ("lose", _SESSION), *_CAME_AGAIN]
    assert _is_refused(tmp_path / "trace.jsonl", *events)


def test_a_broker_that_is_killed_forgets_what_it_confirmed(tmp_path: Path) -> None:
    back = [("die",), ("lose", _SESSION), ("lose", _OTHER), ("open", _OTHER), *_CAME_AGAIN, ("confirm", _MESSAGE)]
    # Confirmed and not taken before, or taken and forgotten with the broker.
    again = [("lose", _SESSION), ("open", _SESSION), ("deliver", _SESSION, _MESSAGE)]
    once_more = [("acknowledge", _SESSION, _MESSAGE), ("confirm", _MESSAGE)]
    assert not _is_refused(tmp_path / "once.jsonl", *_CONFIRMED, *back)
    assert not _is_refused(tmp_path / "twice.jsonl", *_CONFIRMED, *again, *once_more, *back)
