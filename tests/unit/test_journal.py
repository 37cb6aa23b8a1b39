"""The journal: its files as bytes, what they cost, and what is refused."""

from __future__ import annotations

import random
import struct
from collections.abc import Collection
from dataclasses import fields
from hashlib import blake2b, shake_256
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_mq.ack import InFlightTable
from pyspark_mq.dedup import Key, Memory, QueueMemory
from pyspark_mq.dedup.digests import Batches, Digester, from_bytes
from pyspark_mq.dedup.epoch_file import EpochFile, Snapshot
from pyspark_mq.dedup.identity import TextKeys
from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.journal import Journal
from pyspark_mq.sources.position import Position
from pyspark_mq.spark_source.id_file import decoded, encoded
from pyspark_mq.spark_source.id_log import IdLog
from tests.support.effort import part_of
from tests.support.folder import MemoryFolder
from tests.support.scene import Scene
from tests.support.simulation import make_settings

#: Texts, half a surrogate pair as JSON may have one, the digest of a long ID, and a content.
KEYS: list[list[Key]] = [["id-1", "é\0\n"], ["\ud800", "a"], [bytes(20), "a"], [bytes(16)], []]

DIGESTER = Digester(b"secret")


def digests_of(keys: Collection[Key], queue: str = "orders") -> Any:
    return DIGESTER.digests(DIGESTER.begin(queue), keys)


@pytest.mark.parametrize("keys", KEYS)
def test_a_file_comes_back_as_it_was(keys: list[Key]) -> None:
    digests = digests_of(["a", "b", "c"])
    contents = digests_of([bytes([number]) * 16 for number in range(3)])
    file = EpochFile(
        epoch=7, queues=["orders", "returns"], planned={"returns": keys, "orders": ["x"]},
        connected_s=1.5, settled=[3, 5], left=digests, left_contents=contents, echoes={"returns": [bytes([7]) * 16]},
        repeating=contents[1:], repeats=contents[2:], base="", after=["a", "b"], left_after=["c"],
        window_parts=["d"], left_parts=["e", ""], window_part=digests[:1], left_part=digests[1:],
        unsettled=[Snapshot(6, contents, digests[:2], {"orders": 2}), Snapshot(8, contents[:0], digests[2:], {"a": 1})],
        contents=[Snapshot(60, contents, so_far=5)], gone=[["f"], []], state="s",
        secret="5ec4e7",
    )  # fmt: skip
    again = decoded(encoded(file))
    for one in fields(EpochFile):
        before, after = getattr(file, one.name), getattr(again, one.name)
        if one.name not in {"unsettled", "contents"}:
            assert np.array_equal(before, after) if hasattr(before, "shape") else before == after, one.name
    for old, new in zip([*file.unsettled, *file.contents], [*again.unsettled, *again.contents], strict=True):
        assert (old.number, old.queues, old.so_far) == (new.number, new.queues, new.so_far)
        assert np.array_equal(old.digests, new.digests)
        assert np.array_equal(old.contents, new.contents)


@pytest.mark.parametrize("base", [None, "", "a-file"])
def test_a_file_without_a_base_is_told_from_one_that_is_its_own(base: str | None) -> None:
    assert decoded(encoded(EpochFile(base=base))).base == base


def test_texts_of_one_uuid_are_four_ids_and_so_are_queues_and_kinds() -> None:
    text = "0f0e0d0c-0b0a-0908-0706-050403020100"
    keys: list[Key] = [text, text.upper(), text.replace("-", ""), f"ID:{text}", text.encode()]
    digests = {tuple(digest) for queue in ("one", "two") for digest in digests_of(keys, queue).tolist()}
    assert len(digests) == 2 * len(keys)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 36, 255])
def test_a_digest_is_that_of_the_definition(size: int) -> None:
    # By whole numbers of Python, from the paper: the upper half of a sum modulo 2**64.
    numbers = struct.unpack(f"<{4 * 300}Q", shake_256(b"secret").digest(8 * 4 * 300))
    constants, multipliers = numbers[:4], numbers[4:]
    key = ("é" * size)[:size]
    data = key.encode()
    words = struct.unpack("<4I", blake2b(b"orders", digest_size=16).digest())
    words += (2 * len(data), *struct.unpack(f"<{-(-len(data) // 4)}I", data + bytes(-len(data) % 4)))
    sums = [constants[one] + sum(multipliers[4 * at + one] * word for at, word in enumerate(words)) for one in range(4)]
    upper = [one % 2**64 >> 32 for one in sums]
    assert digests_of([key, "another"]).tolist()[0] == [upper[0] << 32 | upper[1], upper[2] << 32 | upper[3]]


def test_digests_are_of_what_is_in_a_slice() -> None:
    texts = TextKeys([pa.array(["a", "bc", "def"]), pa.array([], pa.string()), pa.array(["", "bc", "é", "x" * 255])])
    every = digests_of([*texts])
    assert np.array_equal(digests_of(texts), every)
    for begin in range(8):
        for end in range(8):
            assert [*texts[begin:end]] == [*texts][begin:end]
            assert np.array_equal(digests_of(texts[begin:end]), every[begin:end])
    assert [texts[at] for at in range(-7, 7)] == [*texts] * 2
    assert np.array_equal(digests_of(["\ud800", "bc", b"bc"])[1], every[1])


def test_hostile_ids_have_digests_of_their_own() -> None:
    ids = [bytes([zero] * size).decode() for zero in (0, 1) for size in range(1, 255)]
    ids += [f"{'a' * at}{letter}{'a' * (60 - at)}" for at in range(61) for letter in "bcdefgh"]
    ids += [text + "\0" * more for text in ("x", "xyzw", "xyzw1234") for more in range(9)]
    assert len({tuple(one) for one in digests_of(ids).tolist()}) == len({*ids})


def test_what_is_found_is_what_is_there() -> None:
    chance, batches, here = random.Random(1), Batches(), {}
    for number in range(60):
        keys = [f"id-{chance.randrange(3_000)}" for _ in range(chance.choice([0, 1, 200]))]
        here[number] = set(keys)
        batches.put(number, digests_of(sorted(here[number])))
        if chance.random() < 0.3:
            gone = chance.choice(list(here))
            assert len(batches.forget(gone)) == len(here.pop(gone))
        if chance.random() < 0.3:
            some = chance.sample(list(here), 2)
            here[100 + number] = here.pop(some[0]) | here.pop(some[1])
            digests = np.concatenate([batches.forget(one) for one in some])
            batches.put(100 + number, np.unique(digests, axis=0))
        wanted = [f"id-{number}" for number in range(3_000)]
        assert {wanted[at] for at in batches.find(digests_of(wanted))} == set().union(*here.values())
        one = chance.choice(list(here))
        assert {wanted[at] for at in batches.find(digests_of(wanted), {one})} == here[one]
    assert len(from_bytes(b"")) == 0


def test_a_remembered_id_takes_few_bytes() -> None:
    memory = Memory(1_000_000, 1_000_000, b"secret")
    queue = QueueMemory(memory, "orders")
    for epoch in range(10):
        queue.committed(epoch, [f"id-{epoch}-{number}" for number in range(10_000)])
    assert len(queue.among(["id-3-17", "id-11-1"])) == 1
    held = sum(batch.nbytes for batch in memory.ids._sorted.values()) + memory.ids._filter.nbytes
    assert held <= 40 * len(memory)


@pytest.mark.parametrize("key", ["theirs", b"c" * 16])
def test_what_was_left_before_spark_showed_the_checkpoint_is_left_after_that(key: Key) -> None:
    """A shared store knows it as committed, and a session ends before the files are read, which have another secret."""
    files: dict[str, EpochFile] = {}

    def plan(memory: Memory, name: str) -> None:
        files[name] = file = memory.compose(len(files), ["orders"], {"orders": [name]}, [])
        memory.written(name, file)

    plan(Memory(10, 10, b"one secret"), "first")
    second, third = Memory(10, 10, b"another"), Memory(10, 10, b"a third")
    QueueMemory(second, "orders").leave([key])
    second.load("first", files.__getitem__, committed=True)
    plan(second, "second")
    third.load("second", files.__getitem__, committed=True)
    for memory in (second, third):
        queue = QueueMemory(memory, "orders")
        assert (queue.contents_among([key])[1] if isinstance(key, bytes) else queue.left_among([key])) == {key}


def test_queues_that_came_and_went_take_what_is_remembered_of_them() -> None:
    scene = Scene(dedup_window=50)
    journal = scene.query.source._memory
    for number in range(part_of(10_000)):
        queue = QueueMemory(journal.memory, f"queue-{number}")  # type: ignore[union-attr]
        queue.committed(number, ["id"])
        journal.memory.settle([number])  # type: ignore[union-attr]
    assert journal.remembered <= 52
    assert len(journal.memory.ids._sorted) <= 52  # type: ignore[union-attr]


@pytest.mark.parametrize("start", [0, 7])
def test_an_epoch_that_does_not_follow_its_start_is_refused(start: int) -> None:
    """Two runs share the checkpoint, or Spark writes its logs late."""
    scene = Scene(max_messages=10)
    scene.publish(10)
    assert scene.query.trigger() == 10
    scene.publish(10)
    end = scene.query.source.latest(scene.query.position(0), 10)
    with pytest.raises(
        CheckpointError, match=f"epoch 2 was planned after epoch 1, but Spark runs it after epoch {start}.*two runs"
    ):
        scene.query.source.payload(Position(start), end)
    scene.query.crash()
    scene.assert_exactly_once()


def test_the_first_epoch_follows_the_beginning() -> None:
    scene = Scene(max_messages=10)
    scene.publish(10)
    end = scene.query.source.latest(Position(0), 10)
    with pytest.raises(CheckpointError, match="epoch 1 was planned after epoch 0"):
        scene.query.source.payload(Position(3), end)


@pytest.mark.parametrize("first", ["the old one acknowledges", "the new one expects"])
def test_of_two_processes_one_sees_the_other_where_contents_repeat(first: str) -> None:
    folder, content = MemoryFolder(), bytes([7]) * 16

    def process() -> Journal:
        log = IdLog("/memory", "queue 'orders'")
        log._folder = folder
        return Journal(make_settings(), log)

    old = process()
    old.known("orders").repeat(content)
    in_flight: InFlightTable[bytes] = InFlightTable(grace_s=5.0, memory=old.known("orders"))
    file = old.plan(1, {"orders": [content, content]}, {"orders": in_flight})
    repeats = old.repeats({"orders": [content, content]})
    assert repeats
    if first == "the old one acknowledges":
        old.begin_commit(Position(1, file), repeats=repeats)
        assert process().adopt(Position(1, file), None).coming == {}
    else:
        assert process().adopt(Position(1, file), None).coming == {"orders": [content, content]}
        with pytest.raises(CheckpointError, match=r"another run of the query has continued after epoch 1"):
            old.begin_commit(Position(1, file), repeats=repeats)
        # The next process expects nothing, because the old one may have ended a moment later.
        assert process().adopt(Position(1, file), None).coming == {}
