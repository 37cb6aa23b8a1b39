"""What looking at deliveries together costs at most: bytes that are put together, bytes that are read again."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from pyspark_mq.decode.amqp091 import Amqp091Batch
from pyspark_mq.decode.amqp091_properties import check, unreadable
from pyspark_mq.wire.amqp091.frames import DeliveryReader
from tests.support.decoding import Asked

DECODER = Asked(Amqp091Batch)
MIB = 1 << 20


def frames_of(tag: int, body: bytes, block: bytes = b"\x00\x00", step: int = 4_088) -> list[bytes]:
    """The frames of a delivery."""
    method = struct.pack(">I5sQB", 0x003C003C, b"\x04ctag", tag, 0) + b"\x00\x06orders"
    parts = [(3, body[at : at + step]) for at in range(0, len(body), step)]
    return [
        struct.pack(">BHI", kind, 1, len(data)) + data + b"\xce"
        for kind, data in ((1, method), (2, struct.pack(">HHQ", 60, 0, len(body)) + block), *parts)
    ]


def batch_of(first: int, count: int) -> Amqp091Batch:
    """Small deliveries as they are read."""
    found: list[Any] = []
    reader = DeliveryReader(1, 131_072, found.append, lambda _: None)
    reader.feed(b"".join(b"".join(frames_of(tag, b"x" * 100)) for tag in range(first, first + count)))
    (batch,) = found
    assert isinstance(batch, Amqp091Batch)
    return batch


class Counting(DeliveryReader):
    """A reader that counts what it looks at."""

    looked_at = 0

    def _cut(self, data: memoryview, at: int, size: int) -> int:
        self.looked_at += size - at
        return super()._cut(data, at, size)


@pytest.mark.parametrize(("step", "size"), [(1, 3_000), (100, 60_000), (4_088, 60_000), (4_088, 2_000_000)])
def test_a_delivery_in_many_frames_is_not_read_again_with_each(step: int, size: int) -> None:
    found: list[Any] = []
    reader = Counting(1, 4_096, found.extend, lambda _: None)
    sent = 0
    for frame in frames_of(1, bytes(size), step=step):
        sent += len(frame)
        reader.feed(frame)
    assert [len(raw[3]) for raw in found] == [size]
    assert reader.looked_at <= 2 * sent


def test_a_delivery_cut_by_the_end_of_a_read_is_a_part_of_the_next_batch() -> None:
    found: list[Any] = []
    reader = DeliveryReader(1, 131_072, found.append, lambda _: None)
    data = b"".join(b"".join(frames_of(tag, b"x" * 100)) for tag in range(1, 401))
    for cut in (1, 40, 100, 190):
        found.clear()
        reader.feed(data[: len(data) // 2 + cut])
        reader.feed(data[len(data) // 2 + cut :])
        assert [type(one) for one in found] == [Amqp091Batch] * 2
        assert sum(map(len, found)) == 400


def test_what_was_read_one_after_the_other_is_put_together_without_a_copy() -> None:
    found: list[Any] = []
    reader = DeliveryReader(1, 131_072, found.append, lambda _: None)
    data = b"".join(b"".join(frames_of(tag, b"x" * 4_000)) for tag in range(1, 901))
    for at in range(0, len(data), 200_000):
        reader.feed(data[at : at + 200_000])
    batches = [one for one in found if isinstance(one, Amqp091Batch)]
    first, *others = batches  # the first is in the little memory of an idle connection
    (part,) = DECODER.gather(others, 8 * MIB)
    assert len(first) + len(part) > 800
    assert {id(one.data) for one in others} == {id(part.data)}
    assert part.body().to_pylist() == [b"x" * 4_000] * len(part)


def test_no_more_is_put_together_than_may_be() -> None:
    large = [(tag, False, b"\x00\x00", bytes(MIB), b"\x00\x06orders") for tag in range(1_000, 1_020)]
    middle = [(tag, False, b"\x00\x00", bytes(100_000), b"\x00\x06orders") for tag in range(2_000, 2_100)]
    items = [batch_of(1, 100), *large, batch_of(1_100, 100), *middle, batch_of(3_000, 100)]
    parts = list(DECODER.gather(items, 4 * MIB))
    assert [tag for part in parts for tag in DECODER.tags(part)] == [
        *range(1, 101), *range(1_000, 1_020), *range(1_100, 1_200), *range(2_000, 2_100), *range(3_000, 3_100)
    ]  # fmt: skip
    for part in parts:
        if isinstance(part, Amqp091Batch):
            assert len(part.data) <= 4 * MIB + 8
        else:  # nothing of it was copied
            assert {id(raw) for raw in part} <= {id(raw) for raw in [*large, *middle]}
    assert len(parts) < 12


def test_one_that_cannot_be_read_does_not_part_its_neighbours() -> None:
    broken = [(tag, False, b"\x80\x00\x09", b"x", b"\x00\x00") for tag in (101, 1_101)]
    odd = [unreadable(raw, check([raw])[0][1]) for raw in broken]
    items = [batch_of(1, 100), odd[0], batch_of(1_001, 100), odd[1]]
    (part,) = DECODER.gather(items, 4 * MIB)
    assert [found.tag for found in DECODER.unreadable(part)] == [101, 1_101]
    assert DECODER.tags(part) == [*range(1, 102), *range(1_001, 1_102)]
