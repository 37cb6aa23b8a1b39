"""What the source does is a behaviour of the specification, and TLC notices where it is not.

With `--all` only. ``python -m tests.support.traces 10000`` records and checks more.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.plugin import Nodes
from tests.support.checks import assert_exactly_once
from tests.support.corruptions import CORRUPTIONS
from tests.support.engine import At, Crashed
from tests.support.engine_traces import read_trace, written_down
from tests.support.entries import TRACED_ENTRY, LiveEntry
from tests.support.traces import Kind, Trace, kinds, record, refused

pytestmark = [pytest.mark.whole, pytest.mark.timeout(900), pytest.mark.usefixtures("checker")]

COUNT = 300
#: Runs that are corrupted: each corruption is done to the first of them that has a place for it.
_SEEDS = range(200)


def test_what_the_source_does_is_allowed() -> None:
    every = kinds()
    left = refused([record(every[seed % len(every)], seed) for seed in range(COUNT)])
    assert [(trace.kind, trace.name) for trace in left] == []


def test_what_was_corrupted_is_refused() -> None:
    kind = Kind(gives_up=False, consumers=1)
    runs = [record(kind, seed) for seed in _SEEDS]
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
    with LiveEntry(TRACED_ENTRY, nodes.get(TRACED_ENTRY.broker)) as entry, written_down(entry.node, file):
        sent = entry.publish(60)
        with entry.engine(maxMessagesPerTrigger=20) as run:
            for at in (At.AFTER_SINK, At.AFTER_COMMIT_LOG):
                with pytest.raises(Crashed):
                    run.batch(crash=at)
            run.between = entry.kill_and_start
            run.batch()
            run.between = lambda: None
            run.drain(60)
            assert_exactly_once(entry, run, sent, ordered=False)
    trace = read_trace(file, "on a broker")
    assert trace is not None
    assert refused([trace]) == []
    corrupted = {one.__name__: replace(trace, events=events) for one in CORRUPTIONS if (events := one(trace.events))}
    assert len(corrupted) > 15
    noticed = {id(trace) for trace in refused(list(corrupted.values()))}
    assert [name for name, trace in corrupted.items() if id(trace) not in noticed] == []
