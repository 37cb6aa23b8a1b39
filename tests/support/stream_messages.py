"""Messages of AMQP 1.0 as producers of streams write them, for many forms at once, and bytes that nearly are such."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import numpy as np

from pyspark_mq.decode.amqp10 import Amqp10Batch, ReadBatch, message_columns
from pyspark_mq.decode.amqp10_columns import COLUMN_TYPES, PADDING, Messages
from pyspark_mq.decode.amqp10_sections import SectionReader
from tests.support.decoding import Asked

__all__ = ["FORMS", "assert_as_read", "joined", "message", "mutated"]

#: Names of forms, of which each is made of random values.
FORMS = ("data", "id", "properties", "application", "numbers", "header", "annotated", "named", "value", "anything")

_WORDS = ("", "a", "order-17", "text/plain", "täxt", "x" * 300, "k" * 20)


def _variable(kind: int, content: bytes) -> bytes:
    if len(content) < 256:
        return bytes((kind, len(content))) + content
    return bytes((kind | 0x10,)) + struct.pack(">I", len(content)) + content


def _text(rng: random.Random) -> bytes:
    word = rng.choice(_WORDS)
    # One that is no symbol leaves its whole batch to be read one by one.
    symbol = rng.random() < (0.02 if word.isascii() else 0.0005)
    return _variable(0xA3 if symbol else 0xA1, word.encode())


def _compound(kind: int, items: Sequence[bytes]) -> bytes:
    content = b"".join(items)
    if len(content) < 255:
        return bytes((kind, len(content) + 1, len(items))) + content
    return bytes((kind | 0x10,)) + struct.pack(">II", len(content) + 4, len(items)) + content


def _properties(rng: random.Random, count: int) -> bytes:
    fields = [
        _variable(0xA1, b"id-%d" % rng.randrange(10**6)), _variable(0xA0, b"user"), _text(rng), _text(rng), _text(rng),
        _variable(0xA1, b"corr"), _text(rng), _text(rng),
        b"\x83" + struct.pack(">q", rng.choice((0, -1, 1_700_000_000_000, 2**62))),
        b"\x83" + struct.pack(">q", rng.choice((0, -1, 1_700_000_000_123, 2**62))),
        b"\x40" if rng.random() < 0.9 else _text(rng), rng.choice((b"\x43", b"\x52\x07", b"\x70\x00\x00\x01\x00")),
        _text(rng),
    ]  # fmt: skip
    chosen = [field if rng.random() < 0.7 else b"\x40" for field in fields[:count]]
    return b"\x00\x53\x73" + (_compound(0xC0, chosen) if chosen else b"\x45")


def _application(rng: random.Random, *, numbers: bool) -> bytes:
    items = []
    for number in range(rng.randrange(5)):
        items.append(_variable(0xA1, b"key-%d" % (number if rng.random() < 0.9995 else 0)))
        values = [_text(rng), b"\x40"]
        if numbers:
            values += [
                b"\x41", b"\x42", b"\x54\xff", b"\x55\x05", b"\x61\x80\x00", b"\x71" + rng.randbytes(4),
                b"\x81" + rng.randbytes(8), b"\x82" + struct.pack(">d", 1.5), b"\x53\x07", b"\x56\x01",
            ]  # fmt: skip
        items.append(rng.choice(values))
    return b"\x00\x53\x74" + _compound(0xC1, items)


def _annotations(rng: random.Random) -> bytes:
    items = []
    for name in rng.choices((b"x-exchange", b"x-tenant", b"x-opt-jms-msg-type", b"key-0", b"x-death"), k=2):
        value = rng.choice((_text(rng), b"\x40", b"\x41", b"\x54\x05", b"\x71" + rng.randbytes(4), b"\xa0\x01x"))
        items += [_variable(0xA3, name), value]
    return b"\x00\x53\x72" + _compound(0xC1, items)


def message(rng: random.Random, form: str) -> bytes:
    """A message of a form."""
    if form == "anything":
        form = rng.choice(FORMS[:-1])
    body = b"\x00\x53\x75" + _variable(0xA0, rng.randbytes(rng.choice((0, 3, 200, 200, 300))))
    if form == "value":
        return b"\x00\x53\x77" + rng.choice((_variable(0xA1, rng.choice(_WORDS).encode()), b"\x40", b"\xa0\x01x"))
    sections = {
        "data": b"",
        "id": b"\x00\x53\x73" + _compound(0xC0, [_variable(0xA1, b"id-%09d" % rng.randrange(10**9))]),
        "properties": _properties(rng, rng.randrange(14)),
        "application": _application(rng, numbers=False),
        "numbers": _properties(rng, 3) + _application(rng, numbers=True),
        "header": b"\x00\x53\x70\xc0\x09\x03\x41\x50\x05\x70\x00\x00\x10\x00" + _properties(rng, 13),
        "annotated": b"\x00\x53\x72"
        + _compound(0xC1, [_variable(0xA3, b"x-exchange"), _variable(0xA1, b"e" * rng.choice((1, 1, 1, 2)))]),
        "named": _annotations(rng) + _application(rng, numbers=False),
    }
    return sections[form] + body


def mutated(rng: random.Random, data: bytes) -> bytes:
    """The bytes with some changed, cut off, or added."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            del changed[at:]
        elif kind == 1:
            changed[at:at] = rng.randbytes(rng.randrange(1, 4))
        elif at < len(changed):
            changed[at] = rng.choice((rng.randrange(256), changed[at] ^ 1, 0x40, 0xA1, 0xFF, 0x00))
    return bytes(changed)


def joined(messages: Sequence[bytes]) -> Messages:
    """The messages as a chunk has them."""
    data = b"".join(struct.pack(">I", len(one)) + one for one in messages) + PADDING
    sizes = np.array([len(one) for one in messages], np.int64)
    ends = np.cumsum(sizes + 4)
    return Messages(data, ends - sizes, ends)


def assert_as_read(messages: Sequence[bytes], reader: SectionReader) -> None:
    """Messages that are looked at together have the columns that reading each alone gives."""
    names = list(COLUMN_TYPES)
    found, odd = message_columns(joined(messages), names, reader)
    raws = [reader.read(number, data) for number, data in enumerate(messages)]
    expected = {name: ReadBatch(raws).column(name) for name in names}
    assert [one.tag for one in odd] == [one.tag for one in Asked(Amqp10Batch).unreadable(raws)]
    for name in names:
        found[name].validate(full=True)
        assert found[name].equals(expected[name]), name
