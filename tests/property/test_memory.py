"""The memory against an oracle that has plain lists: what is promised is known, whatever is killed and whenever.

A history has Spark's numbers: a hundred offsets, to any of which a checkpoint may be restored, and files that go 120
plans after nothing names them. Then each rule is left out of the code, and a history has to tell.
"""

from __future__ import annotations

import random
import types
from bisect import bisect_right
from copy import copy
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.dedup import ByQueue, Key, QueueMemory, memory, queue_memory, shelf
from pyspark_mq.dedup.epoch_file import EpochFile
from pyspark_mq.spark_source.id_file import decoded, encoded
from tests.support.effort import each_of, part_of

QUEUES = ("orders", "returns")
#: Offsets in Spark's log.
OFFSETS = 100
CONTENTS_LEFT = 60
NAMES_MAX = 97


@dataclass
class Oracle:
    """What has to be known, as lists of (queue, key).

    Attributes:
        settled: the newest last.
        left: when each was left first.
        again: when each was left last.
        contents: when each was left last, but for those that came and were settled.
        repeats: contents that repeat.
        came: contents that are not left any more, as they came and were settled.
        unsettled: epoch -> its messages.
    """

    settled: list[tuple[str, Key]] = field(default_factory=list)
    left: dict[tuple[str, Key], int] = field(default_factory=dict)
    again: dict[tuple[str, Key], int] = field(default_factory=dict)
    contents: dict[tuple[str, Key], int] = field(default_factory=dict)
    repeats: set[tuple[str, Key]] = field(default_factory=set)
    came: set[tuple[str, Key]] = field(default_factory=set)
    unsettled: dict[int, list[tuple[str, Key]]] = field(default_factory=dict)
    now: int = 0

    def copied(self) -> Oracle:
        """Return one that goes its own way; no epoch's list of messages is ever changed."""
        return Oracle(**{one.name: copy(getattr(self, one.name)) for one in fields(self)})

    def leave(self, messages: list[tuple[str, Key]]) -> None:
        for message in messages:
            self.now += 1
            if isinstance(message[1], bytes):
                self.contents[message] = self.now
                self.came.discard(message)
                for epoch, those in self.unsettled.items():
                    self.unsettled[epoch] = [one for one in those if one != message]
            else:
                self.left.setdefault(message, self.now)
                self.again[message] = self.now

    def settle(self, epochs: list[int]) -> None:
        for epoch in epochs:
            settled = self.unsettled.pop(epoch)
            self.settled += settled
            for message in settled:
                if self.contents.pop(message, None) is not None:
                    self.came.add(message)

    def end(self) -> None:
        """The process ends: what is unsettled is left."""
        for messages in [*self.unsettled.values()]:
            self.leave(messages)
        self.unsettled = {}

    def promised(self, window: int, most_left: int) -> set[tuple[str, Key]]:
        """Those that `most_left` distinct others were not left behind, nor `window` settled."""
        last = sorted(self.again.values())
        return {
            *self.settled[len(self.settled) - min(window, len(self.settled)) :],
            *(one for one, first in self.left.items() if len(last) - bisect_right(last, first) < most_left),
            *self.contents_left(),
            *(message for messages in self.unsettled.values() for message in messages),
        }

    def contents_left(self) -> set[tuple[str, Key]]:
        return {one for one, last in self.contents.items() if self.now - last < CONTENTS_LEFT}


class Life:
    """A query in one process after the other.

    Args:
        module: the memory, which may be one that lacks a rule.
    """

    def __init__(self, module: Any, window: int, most_left: int) -> None:
        self.module, self.window, self.most_left = module, window, most_left
        self.files: dict[str, bytes] = {}
        #: Name of a file -> what was so when it was written.
        self.then: dict[str, Oracle] = {}
        #: Files that Spark's log names.
        self.log: list[str] = []
        self.named: set[str] = set()
        self.numbers = self.epoch = self.written = 0
        self.oracle = Oracle()
        self.begun: dict[int, dict[str, list[Key]]] = {}
        #: Contents that were left and are in the next epoch.
        self.echoes: dict[str, list[Key]] = {}
        self.memory = module.Memory(window, most_left, b"first")

    def read(self, name: str) -> EpochFile:
        return decoded(self.files[name])

    def queue(self, name: str) -> Any:
        return vars(self.module).get("QueueMemory", QueueMemory)(self.memory, name)

    def plan(self, chance: random.Random, size: int) -> str:
        """Settle some, and write the file of an epoch."""
        planned: dict[str, list[Key]] = {}
        for queue in QUEUES[: chance.choice([1, 2])]:
            planned[queue] = [self.key(chance) for _ in range(size)]
        held = {epoch for epoch in self.oracle.unsettled if chance.random() < 0.4}
        self.oracle.settle([epoch for epoch in self.oracle.unsettled if epoch not in held])
        self.epoch += 1
        self.written += 1
        echoes, self.echoes = self.echoes, {}
        file = self.memory.compose(self.epoch, QUEUES, planned, held, echoes)
        gone, going = self.memory.forget_files(self.named, file.names)
        name = f"file-{self.written}"
        for one in gone:
            self.files.pop(one, None)  # who was killed here may have removed it
        self.files[name] = encoded(replace(file, gone=going))
        self.memory.written(name, file)
        self.named = {name, *file.names}
        assert len(file.names) < NAMES_MAX
        # What was begun is committed before anybody reads this.
        self.then[name] = self.oracle.copied()
        for epoch, keys in self.begun.items():
            self.then[name].unsettled[epoch] = [(queue, key) for queue, some in keys.items() for key in some]
        self.commit_begun()
        self.begun = {self.epoch: _joined(planned, echoes)}
        return name

    def key(self, chance: random.Random) -> Key:
        self.numbers += 1
        return self.numbers.to_bytes(16, "little") if chance.random() < 0.1 else f"id-{self.numbers}"

    def commit_begun(self) -> None:
        for epoch, keys in self.begun.items():
            for queue, some in keys.items():
                one = self.queue(queue)
                digests = one.hold(some)  # held where there are IDs alone
                one.committed(epoch, some, () if digests is None else [digests])
            self.oracle.unsettled[epoch] = [(queue, key) for queue, some in keys.items() for key in some]
        self.begun = {}

    def run(self, chance: random.Random, size: int) -> None:
        name = self.plan(chance, size)
        self.log = [*self.log, name][-OFFSETS:]
        self.commit_begun()

    def leave(self, chance: random.Random) -> None:
        """The end of a session leaves some, and some that were left long ago again."""
        some = [message for messages in self.oracle.unsettled.values() for message in messages]
        some = chance.sample(some, len(some) // 2) + chance.sample([*self.oracle.left], len(self.oracle.left) // 9)
        for queue in QUEUES:
            self.queue(queue).leave([key for where, key in some if where == queue])
        self.oracle.leave([message for queue in QUEUES for message in some if message[0] == queue])

    def come(self, chance: random.Random) -> None:
        """Some contents that were left come again; others are found to repeat."""
        for queue, key in chance.sample([*self.oracle.contents], len(self.oracle.contents) // 3):
            if key not in self.echoes.setdefault(queue, []):
                self.echoes[queue].append(key)
        for queue, key in chance.sample([*self.oracle.contents], len(self.oracle.contents) // 3):
            self.queue(queue).repeat(key)
            self.oracle.repeats.add((queue, key))

    def kill(self, back: int = 0) -> None:
        """A process goes on from an offset, the newest or one that was restored; its epoch is committed by then."""
        del self.log[len(self.log) - back :]
        name = self.log[-1]
        planned = _joined(self.read(name).planned, self.read(name).echoes)
        self.memory = self.module.Memory(self.window, self.most_left, b"other")
        self.memory.load(name, self.read, committed=True)
        self.named = {name, *self.read(name).names}
        self.oracle, self.begun, self.echoes = self.then[name].copied(), {}, {}
        self.oracle.unsettled[self.read(name).epoch] = [(queue, key) for queue, some in planned.items() for key in some]
        self.oracle.end()

    def replay(self) -> None:
        """The epoch of the newest offset was not committed: the next process loads its file, and runs it again."""
        name = self.log[-1]
        file = self.read(name)
        self.memory = self.module.Memory(self.window, self.most_left, b"other")
        self.memory.load(name, self.read, committed=False)
        self.named = {name, *file.names}
        self.oracle, self.echoes = self.then[name].copied(), {}
        self.oracle.end()
        self.begun = {file.epoch: {queue: list(keys) for queue, keys in file.planned.items()}}
        self.commit_begun()

    def check(self, largest: int) -> None:
        promised = self.oracle.promised(self.window, self.most_left)
        known: set[tuple[str, Key]] = set()
        left: set[tuple[str, Key]] = set()
        repeats: set[tuple[str, Key]] = set()
        for queue in QUEUES:
            keys = [
                key
                for one, key in {*promised, *self.oracle.contents, *self.oracle.repeats, *self.oracle.came}
                if one == queue
            ]
            contents = self.queue(queue).contents_among([key for key in keys if isinstance(key, bytes)])
            known |= {(queue, key) for key in (*self.queue(queue).among(keys), *contents[0])}
            left |= {(queue, key) for key in contents[1]}
            repeats |= {(queue, key) for key in contents[2]}
        assert known >= promised
        assert left >= self.oracle.contents_left()
        assert not left & self.oracle.came
        assert repeats == self.oracle.repeats
        most = (self.window + self.most_left) * 9 / 8 + CONTENTS_LEFT + sum(map(len, self.oracle.unsettled.values()))
        assert len(self.memory) <= most + memory.FOLLOWING_MAX * largest  # a part has what so many epochs have
        assert len(self.files) < 2 * memory.KEPT_EPOCHS + NAMES_MAX


def _joined(planned: ByQueue, echoes: ByQueue) -> dict[str, list[Key]]:
    return {queue: [*planned.get(queue, ()), *echoes.get(queue, ())] for queue in {**planned, **echoes}}


def a_history(seed: int, module: Any, epochs: int = 260) -> None:
    chance = random.Random(seed)
    life = Life(module, chance.choice([0, 30, 300]), chance.choice([40, 400]))
    most, calm = chance.choice([1, 7, 40]), chance.choice([20, 500])
    for _ in range(epochs):
        life.run(chance, chance.randint(1, most))
        for step in chance.choices(
            ["leave", "come", "kill", "crash", "replay", "restore", "nothing"], [4, 4, 1, 2, 1, 0.2, calm]
        ):
            if step == "leave":
                life.leave(chance)
            elif step == "come":
                life.come(chance)
            elif step == "kill":
                life.kill()
            elif step == "crash":
                life.plan(chance, 2)  # a file that no offset names
                life.kill()
            elif step == "replay":
                life.replay()
            elif step == "restore":
                life.kill(chance.randrange(min(OFFSETS, len(life.log))))
        life.check(most)


@pytest.fixture(autouse=True)
def few_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CONTENTS_LEFT", CONTENTS_LEFT)


@pytest.mark.parametrize("seed", range(part_of(60)))
def test_what_is_promised_is_known(seed: int) -> None:
    a_history(seed, memory)


#: A rule: what stands for it in the code, and what stands there without it.
RULES = {
    "what was unsettled is left by the end": ("recent = self._leave_unsettled()\n", "recent = Counter()\n"),
    "only what is settled enters the window": ("if one not in held])", "])"),
    "a file is kept for a hundred and twenty plans": ("KEPT_EPOCHS = 120", "KEPT_EPOCHS = 20"),
    "the epoch of the base is behind it": ("            if base is not own:\n                self._plan(base)\n", ""),
    "a process begins with a base": ("= [], 0, True\n", "= [], 0, False\n"),
    "what is left is distinct": ("if known else digests", "if False else digests"),
    "left first, and not last": (
        "fresh = digests[[place for place in range(len(digests)) if place not in known]] if known else digests",
        "fresh = digests",
    ),
    "the newest are kept": ("<= self.maximum:", "<= self.maximum // 2:"),
    "what is left is named": ("            self._left_after.append(name)\n", "            pass\n"),
    "what a file leaves is its own": ("        self._leave(own.left)\n", ""),
    "what is unsettled is in a base": (
        "for one, its in self._unsettled.items()\n            ]", "for one, its in ()\n            ]"
    ),
    "contents are in a base": ("for one, (left_s, so_far) in self.contents.items()", "for one, (left_s, so_far) in ()"),
    "contents that repeat are in a base": ("        self.repeat(file.repeats)\n", ""),
    "contents that came again are written": (
        "            echoes={queue: filed(keys) for queue, keys in echoes.items()},\n", ""
    ),
    "what is settled is left no more": (
        "                self._remove(self.ids.get([its.contents]), self.contents)\n", ""
    ),
    "what is left is settled with no epoch": (
        "            self._remove(digests, [its.contents for its in self._unsettled.values()])\n", ""
    ),
    "contents that repeat are written": ("            repeating=new_repeats,\n", ""),
    "parts hold what they take in": ("            joined.insert(0, number)\n", ""),
    "a part is named": ('            shelf.parts.append(("", number))\n', "            pass\n"),
    "files follow a base until there are many": ("len(self._after) >= FOLLOWING_MAX", "len(self._after) >= 5_000"),
    "queues are apart": ("digester.begin(self._queue)", 'digester.begin("")'),
    "digests are by the secret of the files": ("Digester(bytes.fromhex(own.secret))", "self.digester"),
    "what was held is committed": ("np.concatenate(digests) if digests", "digests[0][:0] if digests"),
}  # fmt: skip

#: Seeds whose histories break without a rule that others keep for long.
TELLING = (1, 6)


def without(rule: str) -> Any:
    """The memory without one of its rules."""
    old, new = RULES[rule]
    made, found = [], 0
    for one in (memory, shelf, queue_memory):
        source = Path(one.__file__).read_text("utf-8")
        found += source.count(old)
        made.append(types.ModuleType(one.__name__))
        exec(compile(source.replace(old, new), one.__file__, "exec"), made[-1].__dict__)
    assert found == 1, f"{rule!r} is not in the code as {old!r}"
    module = made[0]
    module.__dict__.update(Shelf=made[1].__dict__["Shelf"], QueueMemory=made[2].__dict__["QueueMemory"])
    module.__dict__.update(_CONTENTS_LEFT=CONTENTS_LEFT, FOLLOWING_MAX=5)  # so parts are made often
    return module


@pytest.mark.parametrize("rule", each_of([*RULES]))
def test_a_rule_that_is_left_out_breaks_the_promise(rule: str) -> None:
    module = without(rule)

    def histories() -> None:
        for seed in (*TELLING, *range(40)):
            a_history(seed, module)

    with pytest.raises((AssertionError, KeyError)):
        histories()
