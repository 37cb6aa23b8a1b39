"""Deliveries of AMQP 0-9-1: every type of a table, every property, every cut, one reader for all of them.

Cases by kind: `block`s of properties by an encoder of its own, against what was encoded and against what pamqp reads;
`stream`s of frames by pamqp, against what pamqp reads of them, cut anywhere; and `changed` ones, which end in one kind
of error or are read the same however they are cut.
"""

from __future__ import annotations

import math
import random
import struct
import time
from collections import Counter
from datetime import datetime, timezone
from decimal import Decimal
from itertools import pairwise
from typing import Any

from pamqp import body, commands, decode, frame, header

from pyspark_mq.decode.amqp091 import Amqp091Batch, as_text
from pyspark_mq.decode.amqp091_properties import Properties, Raw, check, headers, unreadable
from pyspark_mq.dedup import IdSource
from pyspark_mq.wire.amqp091.frames import Amqp091FrameError, DeliveryReader
from tests.support.decoding import Asked

__all__ = ["FIELDS", "SHORTS", "TYPES", "Made", "run"]

_CHANNEL = 1
_FRAME_MAX = 4096
_DECODER = Asked(Amqp091Batch)
_TEXTS = ("", "a", "täxt €", "\0", "😀", "x" * 255, '"\\\n\x7f', "null", "1")
_BYTES = (b"", b"\xff\xfe", b"\xed\xa0\x80", b"\0", bytes(range(256)))
#: Whole numbers: type, form, least and most.
_INTEGERS = {
    "b": ("b", -(2**7), 2**7 - 1), "B": ("B", 0, 2**8 - 1), "s": ("h", -(2**15), 2**15 - 1),
    "u": ("H", 0, 2**16 - 1), "U": ("h", -(2**15), 2**15 - 1), "I": ("i", -(2**31), 2**31 - 1),
    "i": ("I", 0, 2**32 - 1), "l": ("q", -(2**63), 2**63 - 1), "L": ("q", -(2**63), 2**63 - 1),
}  # fmt: skip
TYPES = "tfdDTSxVAF" + "".join(_INTEGERS)
SHORTS = ("content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "message_type",
           "user_id", "app_id", "cluster_id")  # fmt: skip
#: Properties in the order of their flags, by pamqp's names.
FIELDS = ("content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
           "expiration", "message_id", "timestamp", "message_type", "user_id", "app_id", "cluster_id")  # fmt: skip
_CUTS_MAX = 400
_CHANGES = 6


# -- blocks of properties ----------------------------------------------------------------------


class Made:
    """What was encoded.

    Attributes:
        known: does pamqp know all of its types, and read them as they are meant?
    """

    def __init__(self) -> None:
        self.known = True

    def short(self, rng: random.Random) -> tuple[bytes, Any]:
        data = rng.choice([text.encode()[:255] for text in _TEXTS] + [part[:255] for part in _BYTES])
        found = _text(data)
        self.known = self.known and isinstance(found, str)
        return bytes((len(data),)) + data, found

    def value(self, rng: random.Random, depth: int) -> tuple[bytes, Any]:
        kind = rng.choice(TYPES if depth < 4 else TYPES.translate({ord("A"): None, ord("F"): None}))
        encoded, value = self.content(rng, kind, depth)
        return kind.encode() + encoded, value

    def content(self, rng: random.Random, kind: str, depth: int) -> tuple[bytes, Any]:
        if kind in _INTEGERS:
            form, least, most = _INTEGERS[kind]
            self.known = self.known and kind != "U"
            number = rng.choice(
                [edge for edge in (least, most, 0, 1, -1) if edge >= least] + [rng.randint(least, most)]
            )
            return struct.pack(f">{form}", number), number
        if kind == "t":
            octet = rng.choice((0, 1, 2, 255))
            return bytes((octet,)), octet != 0
        if kind in "fd":
            data = rng.choice((rng.randbytes(8), struct.pack(">d", rng.choice((0.0, -0.0, 1.5, math.inf, math.nan)))))
            data = data if kind == "d" else data[:4]
            return data, struct.unpack(f">{kind}", data)[0]
        if kind == "D":
            scale, number = rng.choice((0, 1, 2, 28, 255)), rng.choice((0, 1, -1, 2**31 - 1, -(2**31), 12_345))
            return struct.pack(">Bi", scale, number), Decimal(number).scaleb(-scale)
        if kind == "T":
            seconds = rng.choice((0, 1_700_000_000, 2**32 - 1, 253_402_300_799, 253_402_300_800, 2**64 - 1))
            self.known = self.known and seconds < 2**32  # beyond that pamqp takes them for milliseconds
            moment = datetime.fromtimestamp(seconds, timezone.utc) if seconds <= 253_402_300_799 else seconds
            return struct.pack(">Q", seconds), moment
        if kind in "Sx":
            data = rng.choice([text.encode() for text in _TEXTS] + list(_BYTES) + [b"y" * 300])
            return _sized(data), data if kind == "x" else _text(data)
        if kind == "A":
            items = [self.value(rng, depth + 1) for _ in range(rng.randrange(4))]
            return _sized(b"".join(encoded for encoded, _ in items)), [value for _, value in items]
        if kind == "F":
            encoded, table = self.table(rng, depth + 1)
            return _sized(encoded), table
        return b"", None

    def table(self, rng: random.Random, depth: int = 0) -> tuple[bytes, dict[Any, Any]]:
        data, table = b"", {}
        for _ in range(rng.randrange(5)):
            name, key = self.short(rng)
            encoded, value = self.value(rng, depth)
            data += name + encoded
            table[key] = value
        return data, table

    def block(self, rng: random.Random) -> tuple[bytes, dict[str, Any]]:
        flags, data, fields = 0, b"", {}
        for bit, name in enumerate(FIELDS):
            if rng.random() < 0.6:
                continue
            flags |= 0x8000 >> bit
            if name == "headers":
                encoded, fields[name] = self.table(rng)
                encoded = _sized(encoded)
            elif name in SHORTS:
                encoded, fields[name] = self.short(rng)
            elif name == "timestamp":
                fields[name] = rng.choice((0, 1, 1_700_000_000, 2**32 - 1))
                encoded = struct.pack(">Q", fields[name])
            else:
                fields[name] = rng.randrange(256)
                encoded = bytes((fields[name],))
            data += encoded
        return struct.pack(">H", flags) + data, fields


def _sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _text(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _same(one: Any, other: Any) -> bool:
    """Equal in value and type; a NaN equals a NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return str(one) == str(other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(_same, one.values(), other.values()))
    return bool(one == other)


def _plain(value: Any) -> Any:
    """What pamqp reads, in our types."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {name: _plain(item) for name, item in value.items()} if isinstance(value, dict) else value


def _block(rng: random.Random, before: list[Raw]) -> None:
    """One block of properties; the messages before it are read with it."""
    made = Made()
    block, fields = made.block(rng)
    exchange, key = rng.choice(("", "ex")), rng.choice(("", "a.b", "täst"))
    where = frame.marshal(commands.Basic.Deliver("ctag", 1, False, exchange, key), _CHANNEL)[25:-1]
    raw: Raw = (len(before) + 1, rng.random() < 0.5, block, rng.randbytes(4), where)
    raws = [raw]
    assert check(raws) == [], f"{block!r} is refused: {check(raws)}"
    before.append(raws[0])
    table = fields.get("headers", {})
    encoded = Properties(raws[0][2]).table
    found = headers(encoded)
    assert _same(found, table), f"{block!r} has the headers {table!r}, and they are read as {found!r}"
    expected = {
        "correlationId": as_text(fields.get("correlation_id")), "replyTo": as_text(fields.get("reply_to")),
        "contentType": as_text(fields.get("content_type")), "type": as_text(fields.get("message_type")),
        "priority": fields.get("priority"), "redelivered": raw[1],
        "timestamp": fields["timestamp"] * 1_000_000 if "timestamp" in fields else None,
        "properties": [(as_text(name) or "", as_text(value)) for name, value in table.items()],
        "routingKey": key, "exchange": exchange, "userId": as_text(fields.get("user_id")),
        "appId": as_text(fields.get("app_id")), "contentEncoding": as_text(fields.get("content_encoding")),
        "persistent": fields.get("delivery_mode") == 2,
    }  # fmt: skip
    for name, value in expected.items():
        alone = _DECODER.columns[name](raws)[0]
        assert alone == value, f"{block!r}: column {name} is {alone!r}, not {value!r}"
    assert _DECODER.ids(raws, IdSource("message-id")) == [fields.get("message_id")], f"{block!r}"
    if made.known:
        properties = commands.Basic.Properties()
        properties.unmarshal(struct.unpack(">H", block[:2])[0], block[2:])
        told = _plain(properties.headers or {})
        assert _same(told, table), f"{block!r} is read by pamqp as {told!r}, and was {table!r}"
        assert _plain(decode.field_table(_sized(encoded))[1]).keys() == found.keys()
        for name in SHORTS:
            assert (getattr(properties, name) or "") == (fields.get(name) or ""), f"{block!r}: {name}"


def _together(before: list[Raw]) -> None:
    """What is read of a message does not depend on those beside it."""
    batch = _DECODER.batches.of(before)
    for name, make in _DECODER.columns.items():
        for raw, found in zip(before, make(batch), strict=True):
            (alone,) = make([raw])
            assert found == alone, f"{raw!r}: column {name} is {alone!r} alone, and {found!r} beside others"
    before.clear()


# -- streams -----------------------------------------------------------------------------------


class _Taken:
    """What a reader hands over."""

    def __init__(self) -> None:
        self.raws: list[Raw] = []
        self.others: list[bytes] = []
        self.reader = DeliveryReader(_CHANNEL, _FRAME_MAX, self._deliver, self.others.append)

    def _deliver(self, raws: list[Raw]) -> None:
        self.raws += raws

    def read(self, data: bytes, cuts: list[int]) -> tuple[list[Raw], list[bytes], str]:
        """Deliveries and other frames, and why the rest is none; empty if it is."""
        self.raws.clear()
        self.others.clear()
        places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
        try:
            for low, high in pairwise(places):
                self.reader.feed(data[low:high])
        except Amqp091FrameError as wrong:
            return [*self.raws], [*self.others], str(wrong)
        return [*self.raws], [*self.others], ""


def _stream(rng: random.Random, first: int) -> tuple[bytes, list[Raw], list[bytes]]:
    """Frames, the deliveries among them, and the others."""
    data, raws, others = b"", [], []
    for number in range(first, first + rng.randrange(4)):
        text = rng.randbytes(rng.choice((0, 1, 20, 300, 5_000)))
        properties = commands.Basic.Properties(
            message_id=f"m{number}", headers={"n": number, "s": "x" * rng.randrange(9)}
        )
        redelivered = rng.random() < 0.5
        deliver = commands.Basic.Deliver("ctag", number, redelivered, rng.choice(("", "ex")), "key")
        head = header.ContentHeader(0, len(text), properties)
        step = rng.choice((1 + len(text), 100, _FRAME_MAX - 8))
        step = min(step, _FRAME_MAX - 8)
        parts = [body.ContentBody(text[at : at + step]) for at in range(0, len(text), step)]
        for part in (deliver, head, *parts):
            if rng.random() < 0.2:
                other = frame.marshal(*rng.choice(((commands.Basic.CancelOk("ctag"), 2), (body.ContentBody(b"x"), 2))))
                data += other
                others.append(other)
            data += frame.marshal(part, _CHANNEL)
        where = frame.marshal(deliver, _CHANNEL)[25:-1]
        raws.append((number, redelivered, frame.marshal(head, _CHANNEL)[19:-1], text, where))
    return data, raws, others


def _read_by_pamqp(data: bytes) -> list[tuple[Any, ...]]:
    """Tag, message ID and body of each delivery."""
    found: list[list[Any]] = []
    while data:
        size, channel, part = frame.unmarshal(data)
        data = data[size:]
        if channel != _CHANNEL:
            continue
        if isinstance(part, commands.Basic.Deliver):
            found.append([part.delivery_tag, None, b""])
        elif isinstance(part, header.ContentHeader):
            found[-1][1] = part.properties.message_id
        elif isinstance(part, body.ContentBody):
            found[-1][2] += part.value
    return [tuple(one) for one in found]


def _streams(rng: random.Random, taken: _Taken, first: int) -> tuple[int, int]:
    """Read a stream, cut in some ways; how many deliveries it had, and in how many ways it was read."""
    data, raws, others = _stream(rng, first)
    whole = [(raw[0], _DECODER.ids([raw], IdSource("message-id"))[0], raw[3]) for raw in raws]
    assert whole == _read_by_pamqp(data), f"{data!r} is read by pamqp in another way"
    ways = [[], list(range(len(data)))] + [[rng.randrange(len(data) + 1)] for _ in range(8)]
    if len(data) <= _CUTS_MAX:
        ways += [[cut] for cut in range(len(data))]
    for cuts in ways:
        assert taken.read(data, cuts) == (raws, others, ""), f"{data!r}, cut at {cuts[:20]}"
    return len(raws), len(ways)


def _changed(rng: random.Random) -> None:
    """A stream with some bytes changed: one kind of error, and all columns of what was taken in before it."""
    data = bytearray(_stream(rng, 1)[0])
    for _ in range(rng.randrange(1, _CHANGES)):
        if data:
            data[rng.randrange(len(data))] = rng.choice((0, 1, 255, 206, rng.randrange(256)))
    if rng.random() < 0.3:
        del data[rng.randrange(len(data) + 1) :]
    stream = bytes(data)
    one = _Taken()
    raws, _, _ = whole = one.read(stream, [])
    for cuts in ([rng.randrange(len(stream) + 1) for _ in range(3)], list(range(len(stream)))):
        assert _Taken().read(stream, cuts) == whole, f"{stream!r}, cut at {cuts[:20]}"
    kept: list[Any] = [*raws]
    for place, error in check(kept):
        kept[place] = unreadable(kept[place], error)
    try:
        for make in _DECODER.columns.values():
            assert len(make(kept)) == len(kept)
        [str(told) for told in _DECODER.unreadable(kept)]
    except Exception as failed:
        raise AssertionError(f"{stream!r} is taken in, and has no columns: {failed!r}") from failed


def run(rng: random.Random, deadline: float) -> Counter[str]:
    """Cases until the deadline, by kind; see :mod:`tests.fuzz.__main__`."""
    cases: Counter[str] = Counter()
    taken, before, number = _Taken(), [], 1
    while True:
        for _ in range(40):
            _block(rng, before)
        _together(before)
        deliveries, ways = _streams(rng, taken, number)
        number += deliveries
        for _ in range(10):
            _changed(rng)
        cases += Counter(block=40, stream=ways, changed=10)
        if time.monotonic() >= deadline:
            return cases
