"""The law of columns: what a session takes in makes every column, and every ID, without an error.

Messages of each protocol with bytes changed, taken in as a session does. Those that are refused there are unreadable
and `onUnreadableMessage` decides; of all of them, in batches, every column is made as Spark gets it and as a receiver
process writes it. What fails later than at intake would fail at every start of the query.
"""

from __future__ import annotations

import random
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from pyspark_mq.brokers import BROKERS
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from pyspark_mq.decode.amqp091 import Amqp091Batch
from pyspark_mq.decode.amqp091_properties import check, unreadable
from pyspark_mq.decode.amqp10 import Amqp10Batch
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.decode.stomp import StompBatch
from pyspark_mq.sources.connections.block import BlockRows, make_block
from pyspark_mq.sources.connections.message_id import MessageIds
from pyspark_mq.spark_source.options import parse_options
from pyspark_mq.spark_source.schema import ALL_COLUMNS, BatchBuilder
from pyspark_mq.wire.stomp.frames import MESSAGE, FrameReader, StompFrameError
from tests.fuzz.amqp10 import generated, mutated
from tests.support.decoding import Asked

__all__ = ["makers", "run"]

_BATCH = 100
_BUILDER = BatchBuilder(ALL_COLUMNS)
_URLS = {AMQP_0_9_1: "amqp://localhost", AMQP_1_0: "amqp://localhost", STOMP: "stomp://localhost"}
_ID_SOURCES = ("message-id", "correlation-id", "property:own", "property:x-opt-jms-msg-type", "content")


# -- AMQP 0-9-1


def _short(rng: random.Random) -> bytes:
    text = rng.choice((b"", b"a", b"own", b"x-delivery-count", b"\xff\xfe", b"\\xff\\xfe", "täxt".encode(), b"60000",
                       b"9" * 255))  # fmt: skip
    return bytes([len(text)]) + text


def _value(rng: random.Random, depth: int) -> bytes:
    kind = rng.choice(b"tbBsuUIilLfdDTSxVAF")
    sizes = dict(zip(b"tbBsuUIilLfdDTV", (1, 1, 1, 2, 2, 2, 4, 4, 8, 8, 4, 8, 5, 8, 0), strict=True))
    if kind in sizes:
        content = rng.choice((bytes(sizes[kind]), b"\xff" * sizes[kind], rng.randbytes(sizes[kind])))
    elif kind in b"Sx" or depth > 3:
        text = rng.choice((b"", b"text", b"\xff", "€".encode(), b"\xed\xa0\x80"))
        kind, content = (kind if kind in b"Sx" else ord("S")), struct.pack(">I", len(text)) + text
    elif kind == ord("A"):
        items = b"".join(_value(rng, depth + 1) for _ in range(rng.randrange(4)))
        content = struct.pack(">I", len(items)) + items
    else:
        content = _table(rng, depth + 1)
    return bytes([kind]) + content


def _table(rng: random.Random, depth: int) -> bytes:
    entries = b"".join(_short(rng) + _value(rng, depth) for _ in range(rng.randrange(4)))
    return struct.pack(">I", len(entries)) + entries


def _amqp091(rng: random.Random, number: int) -> list[Any]:
    flags, parts = 0, b""
    for bit in range(14):
        if rng.random() < 0.5:
            flags |= 0x8000 >> bit
            if bit == 2:
                parts += _table(rng, 0)
            elif bit in {3, 4}:
                parts += rng.randbytes(1)
            else:
                parts += rng.choice((b"\xff" * 8, rng.randbytes(8))) if bit == 9 else _short(rng)
    where = mutated(rng, _short(rng) + _short(rng))
    raws = [(number, rng.random() < 0.5, mutated(rng, struct.pack(">H", flags) + parts), rng.randbytes(5), where)]
    for place, error in check(raws):
        raws[place] = unreadable(raws[place], error)
    return [*raws]


# -- AMQP 1.0


class _Amqp10:
    def __init__(self) -> None:
        self._reader = SectionReader(counts_acquirers=True)

    def __call__(self, rng: random.Random, number: int) -> list[Any]:
        data = generated(rng).encode(rng)
        return [self._reader.read(number, data if rng.random() < 0.2 else mutated(rng, data))]


# -- STOMP

_NAMES = (
    b"ack", b"message-id", b"amqp-message-id", b"correlation-id", b"reply-to", b"content-type", b"type", b"priority",
    b"timestamp", b"expires", b"expiration", b"redelivered", b"x-delivery-count", b"own", b"destination",
    b"persistent", b"user-id", b"JMSXGroupSeq", b"_AMQ_GROUP_SEQUENCE", b"", b"a\\cb", b"\xff", b"\\\\xff", b"\\",
    b"unreadable",
)  # fmt: skip
_VALUES = (
    b"", b"1", b"true", b"ID\\ca-1\\c2", b"T_1@@session-1@@5", b"9" * 19, b"9" * 5000, b"-1", b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xc2\xb2", "täxt".encode(), b"\\n", b"\\", b"x\ry", b"1700000000000", b"/exchange/a%2Fb/%ff", b"/queue/q",
    b"/topic",
)  # fmt: skip


class _Stomp:
    def __init__(self, broker: str) -> None:
        self._dialect = BROKERS[broker].stomp

    def __call__(self, rng: random.Random, number: int) -> list[Any]:
        lines = [rng.choice(_NAMES) + b":" + rng.choice(_VALUES) for _ in range(rng.randrange(8))]
        body = rng.choice((b"", b"x", b"a\0b", b"\n", b"\xff" * 20))
        if rng.random() < 0.5:
            lines.append(b"content-length:%d" % len(body))
        data = b"\n".join([b"MESSAGE", *lines]) + b"\n\n"
        changed = mutated(rng, data) if rng.random() < 0.8 else data
        raws: list[Any] = []
        try:
            reader = FrameReader()
            for command, headers, content in chain(reader.feed(changed + body + b"\0\n"), reader.quiet()):
                if command == MESSAGE:
                    raws.append((number + len(raws), headers, content, self._dialect))
        except StompFrameError:
            pass
        return raws


#: Makers of raw deliveries with bytes changed, for other fuzzers.
makers: dict[str, Callable[..., Any]] = {"amqp091": _amqp091, "amqp10": _Amqp10, "stomp": _Stomp}


# -- the law


class _Law:
    def __init__(self, broker: str, protocol: str, decoder: Asked, make: Callable[..., list[Any]]) -> None:
        self.name = f"{protocol} of {broker}"
        self._decoder, self._make = decoder, make
        self._ids: list[MessageIds] = []
        for source in _ID_SOURCES:
            options = {
                "broker": broker, "protocol": protocol, "url": _URLS[protocol], "queue": "q", "messageIdFrom": source,
                "onMissingMessageId": "content", "onUnreadableMessage": "row",
            }  # fmt: skip
            self._ids.append(MessageIds.of(parse_options(options).settings))

    def batch(self, rng: random.Random) -> int:
        """Make and judge some messages; how many."""
        raws: list[Any] = []
        while len(raws) < _BATCH:
            raws += self._make(rng, len(raws) + 1)
        try:
            self.judge(raws)
        except Exception:
            for raw in raws:
                try:
                    self.judge([raw])
                except Exception as wrong:
                    raise AssertionError(f"{self.name}: {type(wrong).__name__}: {wrong}, of {raw!r}") from wrong
            raise
        return len(raws)

    def judge(self, raws: Sequence[Any]) -> None:
        """Every column, as Spark gets it; and every kind of ID."""
        decoder = self._decoder
        for ids in self._ids:
            batch = decoder.batches.of(raws)
            values = ids.values(batch)
            assert None not in ids.keys(batch, values)[0]
            assert len(ids.texts(values)) == len(raws)
        metadata, block = make_block(batch, self._ids[0], _BUILDER.block_schema)
        block.batch.validate(full=True)
        (built,) = [batch for batch in _BUILDER.build(BlockRows.of(block.rows), "q") if batch.num_rows == len(raws)]
        built.validate(full=True)
        for pairs in built.column("properties").to_pylist():
            assert len(dict(pairs)) == len(pairs), f"a map has a key twice: {pairs}"
        assert list(metadata.unreadable.values()) == decoder.unreadable(raws)
        for odd in decoder.unreadable(raws):
            str(odd).encode()


def run(rng: random.Random, deadline: float) -> Counter[str]:
    """Judge batches of each protocol until the deadline."""
    laws = [
        _Law("rabbitmq", AMQP_0_9_1, Asked(Amqp091Batch), _amqp091),
        _Law("artemis", AMQP_1_0, Asked(Amqp10Batch), _Amqp10()),
        *(_Law(broker, STOMP, Asked(StompBatch), _Stomp(broker)) for broker in BROKERS),
    ]
    cases: Counter[str] = Counter()
    while not cases or time.monotonic() < deadline:
        for law in laws:
            cases[law.name] += law.batch(rng)
    return cases
