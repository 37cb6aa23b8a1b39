"""Messages of AMQP 1.0: every type, every section, every form, every cut, one reader for all of them.

Cases by kind: `whole` messages against the oracle in :mod:`tests.support.amqp10_messages`; `cut` ones, of which only
those that end with a section are messages; `miscounted` ones, unreadable each; `proton`'s own encodings of values; and
`changed` ones, which are read as a reader of their own reads them, whatever that is.
"""

from __future__ import annotations

import random
import struct
import time
from collections import Counter
from dataclasses import replace
from typing import Any
from uuid import UUID

import proton

from pyspark_mq.dedup import IdSource
from pyspark_mq.sources.amqp10.decoder import Amqp10Decoder, Raw, UnreadableRaw
from pyspark_mq.sources.amqp10.sections import SectionReader
from pyspark_mq.sources.base import UNREADABLE_PROPERTY
from tests.support.amqp10_messages import COMPOUND, DECIMALS, INTEGERS, SCALARS, Message, V, encoded, json_of

__all__ = ["generated", "run"]

_DECODER = Amqp10Decoder()
_TEXTS = ("", "a", "id", "täxt €", "\0", "a\0b", "None", "null", "1", "true", "😀", "x" * 255, "y" * 256, '"\\\n\x7f')
_BYTES = (b"", b"\0", b"\xff\xfe", b"\x00\x53\x75\xa0\x01x", bytes(range(256)), b"z" * 300)
_SYMBOLS = ("", "sym", "amqp:data:binary", "x" * 300)
_FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.5,
    0.1,
    float("nan"),
    float("inf"),
    float("-inf"),
    5e-324,
    1.7976931348623157e308,
    2.0**53,
)
_SHORT_FLOATS = (0.0, -0.0, 1.0, -1.5, float("nan"), float("inf"), float("-inf"), 1e-45, 3.4028234663852886e38)
_CHARS = ("a", "\0", "é", "€", "😀", "\ud7ff", "\ue000", "\U0010ffff")
_CUTS_MAX = 60
_CHANGES = 8


# -- making


def scalar(rng: random.Random, kind: str) -> V:
    """A plain value of a type, often one at an edge of it."""
    if kind in INTEGERS:
        least, most = INTEGERS[kind]
        edges = (least, most, 0, 1, -1, 127, 128, -128, -129, 255, 256, 1_700_000_000_000)
        of: Any = rng.choice([edge for edge in edges if least <= edge <= most] + [rng.randint(least, most)])
    elif kind in DECIMALS:
        _, digits, exponent_bits, least = DECIMALS[kind]
        exponents = (least, 0, 1, -1, -2, least + 3 * 2 ** (exponent_bits - 2) - 1)
        coefficient = rng.choice([0, 1, 15, 10**digits - 1, 2**20, 2**23, rng.randrange(10**digits)]) % 10**digits
        number = (rng.randrange(2), coefficient, rng.choice(exponents))
        of = rng.choice([number, number, number, "NaN", "Infinity", "-Infinity"])
    else:
        of = {
            "null": lambda: None,
            "boolean": lambda: rng.random() < 0.5,
            "float": lambda: rng.choice(_SHORT_FLOATS),
            "double": lambda: rng.choice((*_FLOATS, rng.uniform(-1e9, 1e9))),
            "char": lambda: rng.choice(_CHARS),
            "uuid": lambda: UUID(int=rng.getrandbits(128)),
            "binary": lambda: rng.choice((*_BYTES, rng.randbytes(rng.randrange(20)))),
            "string": lambda: rng.choice((*_TEXTS, f"text {rng.randrange(1000)}")),
            "symbol": lambda: rng.choice(_SYMBOLS),
        }[kind]()
    return V(kind, of)


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
    assert not isinstance(raw, UnreadableRaw), f"unreadable, {raw.properties}: {data.hex()}"
    found = row(raw)
    properties = dict(found.pop("properties"))
    for name, wanted in expected.items():
        if name == "properties":
            assert properties.keys() == wanted.keys(), f"properties {properties}, not {wanted}: {data.hex()}"
            for key, item in wanted.items():
                assert same(item, properties[key]), f"property {key!r} {properties[key]!r}, not {item!r}: {data.hex()}"
        else:
            assert same(wanted, found[name]), f"{name} {found[name]!r}, not {wanted!r}: {data.hex()}"


def judge_unreadable(raw: Raw, data: bytes) -> None:
    """It is unreadable, has all its bytes as its body, and says why."""
    assert isinstance(raw, UnreadableRaw), f"read as {raw}: {data.hex()}"
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
                judge_unreadable(raw, data[:place])

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
        judge_unreadable(self.read("miscounted", data), data)

    def _change(self, data: bytes) -> None:
        for _ in range(_CHANGES):
            changed = mutated(self._rng, data)
            raw = self.read("changed", changed)
            alone = SectionReader(counts_acquirers=self._counts_acquirers)
            assert row(raw) == row(alone.decode(1, changed)), f"read differently behind others: {changed.hex()}"
            if isinstance(raw, UnreadableRaw):
                judge_unreadable(raw, changed)

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
    fuzzer.turn()
    while time.monotonic() < deadline:
        fuzzer.turn()
    return fuzzer.cases
