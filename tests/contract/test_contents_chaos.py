"""A chaos test of kills and cuts over messages without IDs, a third of them with a content of their own.

The oracle is a multiset of bodies. ``CONTENTS_CHAOS=100000`` makes it that many messages.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter

import pytest

from testbed.chaos.proxy import Direction
from testbed.process import poll
from tests.contract.test_contents import without_ids
from tests.support.engine import At, Crashed
from tests.support.entries import LiveEntry

pytestmark = [pytest.mark.contract("contents in a chaos test"), pytest.mark.network]

#: Beside the contract tests and not the faults, as the specification that those are traced against has no contents.
MESSAGES = int(os.environ.get("CONTENTS_CHAOS", "4000"))
EPOCH = max(100, MESSAGES // 40)
FAULTS = 12
OPTIONS = {"maxMessagesPerTrigger": EPOCH, "prefetch": 3 * EPOCH, "onMissingMessageId": "content"}


def bodies(chance: random.Random) -> list[bytes]:
    """A third of contents that are their own, a third of few, and a third of one, each of those twice at first."""
    third = MESSAGES // 3
    few = [b"few %d" % (number % 20) for number in range(third)]
    some = [*few, *[b"one"] * third, *(b"own %d" % number for number in range(third))]
    chance.shuffle(some)
    return [*2 * [b"few %d" % number for number in range(20)], b"one", b"one", *some]


@pytest.mark.whole
@pytest.mark.parametrize("seed", [1])
def test_a_chaos_over_contents(entry: LiveEntry, seed: int) -> None:
    chance = random.Random(seed)
    sent = bodies(chance)
    without_ids(entry, sent)
    kinds: Counter[str] = Counter()
    with entry.proxy() as proxy, entry.engine(proxy, **OPTIONS) as engine:
        assert engine.batch() == EPOCH
        for _ in range(FAULTS):
            for _ in range(chance.randrange(1, 3)):
                engine.trigger()
            kind = chance.choice(["kill", "kill", "cut", "mid-frame", "broker", "crash"])
            kinds[kind] += 1
            if kind == "kill":
                with contextlib.suppress(Crashed):
                    engine.trigger(chance.choice(list(At)))
            elif kind == "crash":
                engine.crash()
            elif kind == "broker":
                entry.kill_and_start()
            elif kind == "cut":
                proxy.cut()
            else:
                proxy.cut_after(chance.randrange(100, 20_000), Direction.TO_CLIENT).wait(2.0)
        assert poll(lambda: not engine.trigger() and entry.total() == 0, 300), entry.counts()
        emitted, counters = Counter(map(str.encode, engine.output)), engine.counters()
    published = Counter(sent)
    assert not published - emitted, "lost"
    more = emitted - published
    print(f"{entry.entry.name}: {len(sent)} messages, {dict(kinds)}: twice {more.total()} of equal ones, {counters}")
    assert [body for body in more if body.startswith(b"own")] == []
    # What one end of a session or a process leaves: two epochs that are being acknowledged, and what is read behind.
    assert more.total() <= FAULTS * 3 * EPOCH
