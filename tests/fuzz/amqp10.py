"""Messages of AMQP 1.0: every type, every section, every form, every cut, one reader for all of them.

Cases by kind: `edges`, every form of the values at the edges of each type; `whole` messages against the oracle in
:mod:`tests.support.amqp10_messages`; `cut` ones, of which only those that end with a section are messages;
`miscounted` ones, unreadable each; `proton`'s own encodings of values; and `changed` ones, which are read as a reader
of their own reads them, and not if they are broken.
"""

from __future__ import annotations

import random
import struct
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any
from uuid import UUID

import proton

from pyspark_mq.decode.amqp10 import Amqp10Batch
from pyspark_mq.decode.amqp10_message import Raw, UnreadableMessage
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.decode.batch import UNREADABLE_PROPERTY
from pyspark_mq.dedup import IdSource
from tests.support.amqp10_messages import (
    COMPOUND,
    DECIMALS,
    INTEGERS,
    SCALARS,
    VARIABLE,
    Message,
    V,
    encoded,
    forms,
    json_of,
    section,
    well_formed,
)
from tests.support.decoding import Asked

__all__ = ["generated", "run"]

_DECODER = Asked(Amqp10Batch)


def _integers(kind: str) -> list[int]:
    least, most = INTEGERS[kind]
    edges = (least, most, 0, 1, -1, 127, 128, -128, -129, 255, 256, 0x102030405, -0x102030405, 1_700_000_000_000)
    return [edge for edge in edges if least <= edge <= most]


def _decimals(kind: str) -> list[Any]:
    _, digits, exponent_bits, least = DECIMALS[kind]
    coefficients = (0, 1, 15, 2**20, 2**23 - 1, 2**23, 10**digits - 1)
    exponents = (least, 0, 1, -1, -2, least + 3 * 2 ** (exponent_bits - 2) - 1)
    numbers = product((0, 1), (coefficient % 10**digits for coefficient in coefficients), exponents)
    return ["NaN", "Infinity", "-Infinity", *numbers]


def _floats(shape: str, *bits: int) -> list[float]:
    size = struct.calcsize(shape)
    return [struct.unpack(shape, number.to_bytes(size, "big"))[0] for number in bits]


#: For each type the values at its edges, most of them those that qpid-interop-test sends.
EDGES: dict[str, list[Any]] = {
    "null": [None],
    "boolean": [True, False],
    **{kind: _integers(kind) for kind in INTEGERS},
    **{kind: _decimals(kind) for kind in DECIMALS},
    "float": _floats(
        ">f", 0, 1 << 31, 0x3F800000, 0x40490FDB, 0xC02DF854, 1, 0x80000001, 0x7FFFFF, 0x807FFFFF, 0x800000, 0x80800000,
        0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000,
    ),
    "double": _floats(
        ">d", 0, 1 << 63, 0x3FF0000000000000, 0x400921FB54442EEA, 0xC005BF0A8B145FCF, 1, 0x8000000000000001,
        0x000FFFFFFFFFFFFF, 0x800FFFFFFFFFFFFF, 0x0010000000000000, 0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF,
        0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0x3FB999999999999A, 0x4340000000000000,
    ),
    "char": [*" Az09}\0\x01\x7f\x80\xff\u16b5€😀\ud7ff\ue000\U00010203\U0010ffff"],
    "uuid": [UUID(int=0), UUID("00010203-0405-0607-0809-0a0b0c0d0e0f"), UUID(int=2**128 - 1)],
    "binary": [
        b"", b"\0", b"\xff\xfe", b"\x00\x53\x75\xa0\x01x", bytes(range(256)), b"z" * 255, b"z" * 256, bytes(12345),
    ],
    "string": [
        "", "a", "id", "täxt €", "\0", "a\0b", "None", "null", "1", "true", "😀", "x" * 255, "y" * 256, '"\\\n\x7f',
        "Charlie's peach", "The quick brown fox jumped over the lazy dog 0123456789." * 100,
    ],
    "symbol": ["", "sym", "amqp:data:binary", "myDomain.123", "domain.0123456789." * 100],
}  # fmt: skip
_CUTS_MAX = 60
_CHANGES = 8


# -- making


def scalar(rng: random.Random, kind: str) -> V:
    """A plain value of a type, often one at an edge of it."""
    made = {
        **{name: lambda: rng.randint(*INTEGERS[kind]) for name in INTEGERS},
        **{name: lambda: (0, rng.randrange(10 ** DECIMALS[kind][1]), 0) for name in DECIMALS},
        "double": lambda: rng.uniform(-1e9, 1e9),
        "uuid": lambda: UUID(int=rng.getrandbits(128)),
        "binary": lambda: rng.randbytes(rng.randrange(20)),
        "string": lambda: f"text {rng.randrange(1000)}",
    }
    if kind in made and rng.random() < 0.3:
        return V(kind, made[kind]())
    # The long ones take the time of a hundred others.
    edge = rng.choice(EDGES[kind])
    return V(kind, edge if kind not in VARIABLE or len(edge) < 1000 or rng.random() < 0.1 else edge[:5])


def value(rng: random.Random, depth: int = 0) -> V:
    """A value of any type."""
    kind = rng.choice([*SCALARS, *(["list", "map", "array", "described"] * 4 if depth < 4 else [])])
    return composed(rng, kind, depth) if kind in {*COMPOUND, "described"} else scalar(rng, kind)


def composed(rng: random.Random, kind: str, depth: int) -> V:
    """A value of a type that has others in it."""
    count = rng.choice((0, 1, 2, 3, 5, 300)) if depth == 0 else rng.randrange(4)
    if kind == "list":
        return V(kind, [value(rng, depth + 1) for _ in range(count)])
    if kind == "map":
        keys = {encoded(key): key for key in (value(rng, depth + 3) for _ in range(count))}
        return V(kind, [(key, value(rng, depth + 1)) for key in keys.values()])
    if kind == "described":
        return V(kind, [descriptor(rng), value(rng, depth + 1)])
    inner = rng.choice([*SCALARS, "list", "map", "array"] if depth < 3 else SCALARS)
    items = [composed(rng, inner, depth + 2) if inner in COMPOUND else scalar(rng, inner) for _ in range(count)]
    described = [descriptor(rng) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
    for name in described:
        items = [V("described", [name, item]) for item in items]
    return V("array", items)


def descriptor(rng: random.Random) -> V:
    """What stands before a described value: a number or a name in most, any value in some."""
    return rng.choice([V("ulong", 0x75), V("symbol", "amqp:data:binary"), V("string", "own"), V("list", [V("null")])])


def maybe(rng: random.Random, made: Any) -> Any:
    return made if rng.random() < 0.5 else None


def pairs(rng: random.Random, kind: str) -> list[tuple[V, V]]:
    """Entries of a section that is a map, with different keys of one type."""
    names = {scalar(rng, kind).of: None for _ in range(rng.choice((0, 1, 2, 5)))}
    plain = rng.random() < 0.7
    return [(V(kind, name), scalar(rng, rng.choice(SCALARS)) if plain else value(rng, 3)) for name in names]


def fields(rng: random.Random, kinds: tuple[tuple[str, ...], ...]) -> list[V]:
    """The first fields of a list, some of them null."""
    chosen = kinds[: rng.choice((0, 1, len(kinds), rng.randint(0, len(kinds))))]
    return [V("null") if rng.random() < 0.3 else scalar(rng, rng.choice(kind)) for kind in chosen]


_ID = ("string", "binary", "uuid", "ulong")
_TEXT, _MOMENT = ("string",), ("timestamp",)
_HEADER = (("boolean",), ("ubyte",), ("uint",), ("boolean",), ("uint",))
_PROPERTIES = (
    _ID, ("binary",), _TEXT, _TEXT, _TEXT, _ID, ("symbol",), ("symbol",), _MOMENT, _MOMENT, _TEXT, ("uint",), _TEXT,
)  # fmt: skip


def generated(rng: random.Random) -> Message:
    """A message with any of the sections."""
    annotations = maybe(rng, pairs(rng, "symbol"))
    if annotations is not None and rng.random() < 0.5:
        annotations.append((V("symbol", "x-opt-jms-msg-type"), V("byte", rng.randrange(6))))
    body = rng.choice(("data", "data", "amqp-value", "amqp-value", "amqp-value", "amqp-sequence", ""))
    if body == "amqp-value":
        contents = [value(rng)]
    elif body:
        made = (lambda: scalar(rng, "binary")) if body == "data" else (lambda: composed(rng, "list", 2))
        contents = [made() for _ in range(rng.choice((1, 1, 2, 3)))]
    else:
        contents = []
    return Message(
        maybe(rng, fields(rng, _HEADER)),
        maybe(rng, pairs(rng, "symbol")),
        annotations,
        maybe(rng, fields(rng, _PROPERTIES)),
        maybe(rng, pairs(rng, "string")),
        body,
        contents,
        maybe(rng, pairs(rng, "symbol")) if rng.random() < 0.3 else None,
    )


# -- judging


def row(raw: Raw) -> dict[str, Any]:
    """All that the decoder makes of a delivery."""
    made = {name: make([raw])[0] for name, make in _DECODER.columns.items()}
    made["body"] = _DECODER.bodies([raw])[0]
    for source in ("message-id", "correlation-id"):
        made["id" if source == "message-id" else source] = _DECODER.ids([raw], IdSource(source))[0]
    return made


def same(expected: Any, found: Any) -> bool:
    """Is it what the oracle says? JSON is compared by what is in it."""
    if isinstance(expected, tuple) and expected[:1] == ("json",):
        return bool(json_of(found) == expected[1])
    return type(expected) is type(found) and bool(expected == found)


def judge(expected: dict[str, Any], raw: Raw, data: bytes) -> None:
    """Raises an AssertionError for each column that is not as it has to be."""
    assert not isinstance(raw, UnreadableMessage), f"unreadable, {raw.of.application}: {data.hex()}"
    found = row(raw)
    properties = dict(found.pop("properties"))
    for name, wanted in expected.items():
        if name == "properties":
            assert properties.keys() == wanted.keys(), f"properties {properties}, not {wanted}: {data.hex()}"
            for key, item in wanted.items():
                assert same(item, properties[key]), f"property {key!r} {properties[key]!r}, not {item!r}: {data.hex()}"
        else:
            assert same(wanted, found[name]), f"{name} {found[name]!r}, not {wanted!r}: {data.hex()}"


def check_unreadable(raw: Raw, data: bytes) -> None:
    """It is unreadable, has all its bytes as its body, and says why."""
    assert isinstance(raw, UnreadableMessage), f"read as {raw}: {data.hex()}"
    assert raw.body == data
    reason = str(dict(_DECODER.columns["properties"]([raw])[0])[UNREADABLE_PROPERTY])
    assert reason.startswith(("EncodingError: ", "IndexError: ", "UnicodeDecodeError: ")), f"{reason}: {data.hex()}"


# -- kinds of cases


class _Fuzzer:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._counts_acquirers = rng.random() < 0.5
        self._reader = SectionReader(counts_acquirers=self._counts_acquirers)
        self.cases: Counter[str] = Counter()

    def read(self, kind: str, data: bytes) -> Raw:
        self.cases[kind] += 1
        return self._reader.read(1, data)

    def edges(self) -> None:
        """Each value of each type in each form: as a body, a property, an item, an element, and an ID."""
        for kind, values in EDGES.items():
            for value in (V(kind, of) for of in values):
                for form in forms(value):
                    for message, data in placed(value, form):
                        row = message.row(counts_acquirers=self._counts_acquirers)
                        judge(row, self.read("edges", data), data)

    def turn(self) -> None:
        """A few cases of each kind."""
        message = generated(self._rng)
        expected = message.row(counts_acquirers=self._counts_acquirers)
        parts = message.sections(self._rng)
        data = b"".join(parts)
        judge(expected, self.read("whole", data), data)
        self._cut(message, parts)
        self._miscount(message)
        self._change(data)
        self._proton()

    def _cut(self, message: Message, parts: list[bytes]) -> None:
        data = b"".join(parts)
        ends = {sum(map(len, parts[:count])): count for count in range(len(parts) + 1)}
        places = range(len(data))
        chosen = places if len(places) <= _CUTS_MAX else sorted({*self._rng.sample(places, _CUTS_MAX), *ends})
        for place in chosen:
            raw = self.read("cut", data[:place])
            if place in ends:
                judge(first(message, ends[place]).row(counts_acquirers=self._counts_acquirers), raw, data[:place])
            else:
                check_unreadable(raw, data[:place])

    def _miscount(self, message: Message) -> None:
        """A list or a map that claims one item more or less than it has."""
        rng = self._rng
        made = composed(rng, rng.choice(("list", "map")), 3)
        count, off = len(made.of) * (2 if made.kind == "map" else 1), rng.choice((1, -1, 2, 200))
        items = encoded(made, None)
        if items[0] in {0xC0, 0xC1} and 0 <= count + off < 256:
            wrong = items[:2] + bytes([count + off]) + items[3:]
        elif items[0] in {0xD0, 0xD1} and count + off >= 0:
            wrong = items[:5] + struct.pack(">I", count + off) + items[9:]
        else:
            return
        start = replace(message, body="", contents=[], footer=None).encode(rng)
        data = start + b"\x00\x53\x77" + wrong
        check_unreadable(self.read("miscounted", data), data)

    def _change(self, data: bytes) -> None:
        for _ in range(_CHANGES):
            changed = mutated(self._rng, data)
            raw = self.read("changed", changed)
            alone = SectionReader(counts_acquirers=self._counts_acquirers)
            assert row(raw) == row(alone.read(1, changed)), f"read differently behind others: {changed.hex()}"
            if isinstance(raw, UnreadableMessage):
                check_unreadable(raw, changed)
            else:
                assert well_formed(changed), f"read, and broken: {changed.hex()}"

    def _proton(self) -> None:
        """What the client library encodes."""
        rng = self._rng
        body = value(rng, 1)
        application = {"a": scalar(rng, rng.choice(SCALARS)), "b": scalar(rng, rng.choice(SCALARS))}
        try:
            message = proton.Message(
                id="proton", subject="s", body=proton_value(body), inferred=False,
                properties={name: proton_value(item) for name, item in application.items()},
            )  # fmt: skip
            data = bytes(message.encode())
        except _NotInProtonError:
            return
        content = [] if body.kind == "null" else [body]
        id_and_subject = [V("string", "proton"), V("null"), V("null"), V("string", "s")]
        oracle = Message(
            properties=id_and_subject,
            application=[(V("string", name), item) for name, item in application.items()],
            body="amqp-value",
            contents=content,
        )
        judge(oracle.row(counts_acquirers=self._counts_acquirers), self.read("proton", data), data)


def placed(value: V, form: bytes) -> Iterator[tuple[Message, bytes]]:
    """Messages with a value in each place where it may be, and their bytes with the value in that form."""
    item, pair = V("list", [value]), (V("string", "a"), value)
    yield Message(body="amqp-value", contents=[value]), section("amqp-value", form)
    wide = struct.pack(">II", len(form) + 4, 1)
    yield Message(body="amqp-value", contents=[item]), section("amqp-value", b"\xd0" + wide + form)
    yield Message(body="amqp-sequence", contents=[item]), section("amqp-sequence", b"\xd0" + wide + form)
    entry = b"\xa1\x01a" + form
    properties = b"\xd1" + struct.pack(">II", len(entry) + 4, 2) + entry
    yield Message(application=[pair]), section("application-properties", properties)
    yield Message(body="amqp-value", contents=[V("map", [pair])]), section("amqp-value", properties)
    array = b"\xf0" + struct.pack(">II", 2 * len(form) + 3, 2) + form + form[1:]
    yield Message(body="amqp-value", contents=[V("array", [value] * 2)]), section("amqp-value", array)
    if value.kind in _ID:
        yield Message(properties=[value]), section("properties", b"\xd0" + wide + form)


def first(message: Message, count: int) -> Message:
    """The same with the first so many of its sections."""
    kept: dict[str, Any] = {"contents": [], "footer": None}
    for name in ("header", "delivery_annotations", "message_annotations", "properties", "application"):
        present = getattr(message, name) is not None
        kept[name] = getattr(message, name) if present and count > 0 else None
        count -= present
    kept["contents"] = message.contents[: max(0, count)]
    count -= len(message.contents)
    return replace(message, **kept | {"footer": message.footer if count > 0 else None})


def mutated(rng: random.Random, data: bytes) -> bytes:
    """The same with a few bytes changed, left out, put in, or put elsewhere."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(made) + 1)
        kind = rng.randrange(6)
        if kind == 0:
            made[at:at] = rng.randbytes(rng.randint(1, 4))
        elif kind == 1:
            del made[at : at + rng.randint(1, 4)]
        elif kind == 2:
            made[at:at] = made[rng.randrange(len(made) + 1) :][: rng.randint(1, 40)]
        elif at < len(made):
            made[at] = rng.randrange(256) if kind == 3 else made[at] ^ 1 << rng.randrange(8)
            if kind == 5:
                made[at] = rng.choice(b"\x00\x40\x41\x45\x53\x73\x74\xa1\xa3\xb1\xc0\xc1\xd0\xd1\xe0\xf0\xff")
    return bytes(made)


class _NotInProtonError(Exception):
    """A value that proton's encoder does not have, or has otherwise."""


_PROTON = {
    "ubyte": proton.ubyte, "byte": proton.byte, "ushort": proton.ushort, "short": proton.short, "uint": proton.uint,
    "int": proton.int32, "ulong": proton.ulong, "long": int, "timestamp": proton.timestamp, "float": proton.float32,
    "double": float, "char": proton.char, "symbol": proton.symbol,
}  # fmt: skip


def proton_value(item: V) -> Any:
    """The same value as proton has them."""
    kind, of = item
    if kind in DECIMALS or kind == "array":
        raise _NotInProtonError
    if kind == "list":
        return [proton_value(one) for one in of]
    if kind == "described":
        return proton.Described(proton_value(of[0]), proton_value(of[1]))
    if kind == "map":
        try:
            made = {proton_value(key): proton_value(one) for key, one in of}
        except TypeError:
            raise _NotInProtonError from None
        if len(made) < len(of):
            raise _NotInProtonError
        return made
    return _PROTON[kind](of) if kind in _PROTON else of


def run(rng: random.Random, deadline: float) -> Counter[str]:
    """Fuzz until the deadline."""
    fuzzer = _Fuzzer(rng)
    fuzzer.edges()
    fuzzer.turn()
    while time.monotonic() < deadline:
        fuzzer.turn()
    return fuzzer.cases
