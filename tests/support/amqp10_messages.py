"""An encoder of AMQP 1.0 and what its messages say, for tests of the decoder. Shares no code with what it tests.

A value is a :class:`V`: its type, by the name that the specification gives it, and what it is. :func:`encoded` writes
it in one of the forms of part 1, section 1.6; :func:`as_json` and :func:`as_text` say what a reader has to make of it.
"""

from __future__ import annotations

import base64
import json
import math
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

__all__ = [
    "COMPOUND", "DECIMALS", "INTEGERS", "SCALARS", "VARIABLE", "Message", "V", "as_json", "as_text", "encoded", "forms",
    "json_of", "section", "well_formed",
]  # fmt: skip


class V(NamedTuple):
    """A value: `kind` is the type's name; `of` a list of `V` for lists and arrays, of pairs for maps, and of two
    (descriptor and value) for described ones. Decimals are (sign, coefficient, exponent), "NaN", "Infinity" or
    "-Infinity". An array has its elements, all of one kind, and of one descriptor if they are described.
    """

    kind: str
    of: Any = None


INTEGERS = {
    "ubyte": (0, 2**8 - 1), "ushort": (0, 2**16 - 1), "uint": (0, 2**32 - 1), "ulong": (0, 2**64 - 1),
    "byte": (-(2**7), 2**7 - 1), "short": (-(2**15), 2**15 - 1), "int": (-(2**31), 2**31 - 1),
    "long": (-(2**63), 2**63 - 1), "timestamp": (-(2**63), 2**63 - 1),
}  # fmt: skip
#: Format codes of fixed width: the widest form of each type.
WIDE = {
    "ubyte": (0x50, ">B"), "byte": (0x51, ">b"), "ushort": (0x60, ">H"), "short": (0x61, ">h"), "uint": (0x70, ">I"),
    "int": (0x71, ">i"), "float": (0x72, ">f"), "ulong": (0x80, ">Q"), "long": (0x81, ">q"), "double": (0x82, ">d"),
    "timestamp": (0x83, ">q"), "boolean": (0x56, ">?"),
}  # fmt: skip
SMALL = {"uint": (0x52, ">B"), "ulong": (0x53, ">B"), "int": (0x54, ">b"), "long": (0x55, ">b")}
BARE = {
    ("boolean", True): 0x41, ("boolean", False): 0x42, ("uint", 0): 0x43, ("ulong", 0): 0x44, ("null", None): 0x40,
}  # fmt: skip
#: Width of an encoded decimal, digits of its coefficient, bits of its exponent, exponent that is written as 0.
DECIMALS = {"decimal32": (4, 7, 8, -101), "decimal64": (8, 16, 10, -398), "decimal128": (16, 34, 14, -6176)}
DECIMAL_CODES = {"decimal32": 0x74, "decimal64": 0x84, "decimal128": 0x94}
VARIABLE = {"binary": 0xA0, "string": 0xA1, "symbol": 0xA3}
COMPOUND = {"list": 0xC0, "map": 0xC1, "array": 0xE0}
SCALARS = [
    "null", "boolean", *INTEGERS, "float", "double", *DECIMALS, "char", "uuid", *VARIABLE,
]  # fmt: skip


def _decimal_bits(kind: str, of: Any) -> bytes:
    width, digits, exponent_bits, least = DECIMALS[kind]
    bits = width * 8
    if of == "NaN":
        return (0b11111 << (bits - 6)).to_bytes(width, "big")
    if of in {"Infinity", "-Infinity"}:
        return ((of[0] == "-") << (bits - 1) | 0b11110 << (bits - 6)).to_bytes(width, "big")
    sign, coefficient, exponent = of
    assert 0 <= coefficient < 10**digits
    biased = exponent - least
    short = bits - 1 - exponent_bits
    if coefficient < 1 << short:
        rest = biased << short | coefficient
    else:
        rest = 0b11 << (bits - 3) | biased << (short - 2) | (coefficient - (1 << short))
    return (sign << (bits - 1) | rest).to_bytes(width, "big")


def _forms(value: V) -> list[tuple[int, bytes]]:
    """Every way to write a value that is neither compound nor described: format code, and the bytes behind it."""
    kind, of = value
    forms: list[tuple[int, bytes]] = []
    if (kind, of) in BARE:
        forms.append((BARE[kind, of], b""))
    if kind in SMALL:
        code, shape = SMALL[kind]
        least, most = (0, 255) if shape == ">B" else (-128, 127)
        if least <= of <= most:
            forms.append((code, struct.pack(shape, of)))
    if kind in WIDE:
        forms.append((WIDE[kind][0], struct.pack(WIDE[kind][1], of)))
    elif kind == "char":
        forms.append((0x73, struct.pack(">I", ord(of))))
    elif kind == "uuid":
        forms.append((0x98, of.bytes))
    elif kind in DECIMALS:
        forms.append((DECIMAL_CODES[kind], _decimal_bits(kind, of)))
    elif kind in VARIABLE:
        data = of if kind == "binary" else of.encode("utf-8" if kind == "string" else "ascii")
        if len(data) < 256:
            forms.append((VARIABLE[kind], bytes([len(data)]) + data))
        forms.append((VARIABLE[kind] + 0x10, struct.pack(">I", len(data)) + data))
    return forms


def forms(value: V) -> list[bytes]:
    """Every way to write a plain value."""
    return [bytes([code]) + content for code, content in _forms(value)]


def encoded(value: V, rng: random.Random | None = None) -> bytes:
    """The bytes of a value, in the first form there is, or in any."""
    if value.kind == "described":
        return b"\x00" + encoded(value.of[0], rng) + encoded(value.of[1], rng)
    if value.kind in COMPOUND:
        code, content = _compound(value, rng)
        return bytes([code]) + content
    forms = _forms(value)
    code, content = forms[0] if rng is None else rng.choice(forms)
    return bytes([code]) + content


def _compound(value: V, rng: random.Random | None) -> tuple[int, bytes]:
    kind, of = value
    if kind == "list" and not of and (rng is None or rng.random() < 0.5):
        return 0x45, b""
    if kind == "array":
        items = _array_content(of, rng)
    else:
        items = b"".join(encoded(item, rng) for item in (of if kind == "list" else [x for pair in of for x in pair]))
    count = len(of) * (2 if kind == "map" else 1)
    if len(items) + 1 < 256 and count < 256 and (rng is None or rng.random() < 0.7):
        return COMPOUND[kind], bytes([len(items) + 1, count]) + items
    return COMPOUND[kind] + 0x10, struct.pack(">II", len(items) + 4, count) + items


def _array_content(items: Sequence[V], rng: random.Random | None) -> bytes:
    """One constructor, with the descriptors of the first element, and the contents of all."""
    head, inner = b"", list(items)
    while inner and inner[0].kind == "described":
        head += b"\x00" + encoded(inner[0].of[0], rng)
        inner = [item.of[1] for item in inner]
    if not inner:
        return b"\x71"
    if inner[0].kind in COMPOUND:
        # Only forms with four bytes of length fit all of them.
        wide = [_wide_compound(item, rng) for item in inner]
        return head + bytes([wide[0][0]]) + b"".join(content for _, content in wide)
    common = set.intersection(*({code for code, _ in _forms(item)} for item in inner))
    code = min(common) if rng is None else rng.choice(sorted(common))
    return head + bytes([code]) + b"".join(dict(_forms(item))[code] for item in inner)


def _wide_compound(value: V, rng: random.Random | None) -> tuple[int, bytes]:
    kind, of = value
    if kind == "array":
        items = _array_content(of, rng)
    else:
        items = b"".join(encoded(item, rng) for item in (of if kind == "list" else [x for pair in of for x in pair]))
    return COMPOUND[kind] + 0x10, struct.pack(">II", len(items) + 4, len(of) * (2 if kind == "map" else 1)) + items


# -- what a reader has to make of it


def _text_of_decimal(of: Any) -> str:
    return of if isinstance(of, str) else str(Decimal((of[0], tuple(map(int, str(of[1]))), of[2])))


def _text_of_float(kind: str, of: float) -> str:
    if math.isnan(of):
        return "NaN"
    if math.isinf(of):
        return "Infinity" if of > 0 else "-Infinity"
    return repr(struct.unpack(">f", struct.pack(">f", of))[0] if kind == "float" else of)


def _key(value: V) -> str | None:
    """The name in a JSON object for a key; None if it has none."""
    kind, of = value
    if kind == "described":
        return _key(of[1])
    if kind in COMPOUND:
        return None
    if kind == "binary":
        return base64.b64encode(of).decode()
    return "null" if of is None else as_text(value)


def as_json(value: V) -> Any:
    """What :func:`json_of` finds in the JSON of a value."""
    kind, of = value
    if kind == "described":
        return as_json(of[1])
    if kind in {"list", "array"}:
        return [as_json(item) for item in of]
    if kind == "map":
        names = [_key(key) for key, _ in of]
        if None in names or len(set(names)) < len(names):
            return [[as_json(key), as_json(item)] for key, item in of]
        return ("object", [(name, as_json(item)) for name, (_, item) in zip(names, of, strict=True)])
    if kind in {"null", "boolean"}:
        return of
    if kind in {"string", "symbol", "char", "uuid"}:
        return str(of)
    if kind == "binary":
        return base64.b64encode(of).decode()
    written = as_text(value)
    return written if written in {"NaN", "Infinity", "-Infinity"} else ("number", written)


def as_text(value: V) -> Any:
    """The text of a plain value in a string column."""
    kind, of = value
    if kind in DECIMALS:
        return _text_of_decimal(of)
    if kind in {"float", "double"}:
        return _text_of_float(kind, of)
    if kind == "boolean":
        return "true" if of else "false"
    if kind == "binary":
        return of.decode("utf-8", "backslashreplace")
    return None if of is None else str(of)


def json_of(text: str | bytes) -> Any:
    """JSON taken apart: an object is ("object", pairs), a number ("number", as it is written)."""

    def number(written: str) -> Any:
        return ("number", written)

    def constant(written: str) -> Any:
        raise AssertionError(f"{written} is no JSON")

    return json.loads(
        text,
        object_pairs_hook=lambda pairs: ("object", pairs),
        parse_int=number,
        parse_float=number,
        parse_constant=constant,
    )


# -- messages

NUMBERS = {
    "header": 0x70, "delivery-annotations": 0x71, "message-annotations": 0x72, "properties": 0x73,
    "application-properties": 0x74, "data": 0x75, "amqp-sequence": 0x76, "amqp-value": 0x77, "footer": 0x78,
}  # fmt: skip
TYPES = {
    "header": "list", "properties": "list", "data": "binary", "amqp-sequence": "list", "amqp-value": "*",
}  # fmt: skip


def section(name: str, content: bytes, rng: random.Random | None = None) -> bytes:
    """A section: its descriptor, by number or by name, and its content."""
    number = NUMBERS[name]
    symbol = f"amqp:{name}:{TYPES.get(name, 'map')}".encode()
    forms = [
        b"\x00\x53" + bytes([number]),
        b"\x00\x80" + struct.pack(">Q", number),
        b"\x00\xa3" + bytes([len(symbol)]) + symbol,
        b"\x00\xb3" + struct.pack(">I", len(symbol)) + symbol,
    ]
    return (forms[0] if rng is None or rng.random() < 0.6 else rng.choice(forms)) + content


@dataclass
class Message:
    """A message, section by section; None or empty for those that are left out.

    Attributes:
        header: fields in the order of 3.2.1; properties: those of 3.2.4.
        body: `data`, `amqp-sequence` or `amqp-value`, or empty; with the contents of its sections.
    """

    header: list[V] | None = None
    delivery_annotations: list[tuple[V, V]] | None = None
    message_annotations: list[tuple[V, V]] | None = None
    properties: list[V] | None = None
    application: list[tuple[V, V]] | None = None
    body: str = ""
    contents: list[V] = field(default_factory=list)
    footer: list[tuple[V, V]] | None = None

    def sections(self, rng: random.Random | None = None) -> list[bytes]:
        """The bytes of each section."""
        parts = [
            ("header", None if self.header is None else V("list", self.header)),
            ("delivery-annotations", _map(self.delivery_annotations)),
            ("message-annotations", _map(self.message_annotations)),
            ("properties", None if self.properties is None else V("list", self.properties)),
            ("application-properties", _map(self.application)),
            *((self.body, content) for content in self.contents),
            ("footer", _map(self.footer)),
        ]
        return [section(name, encoded(value, rng), rng) for name, value in parts if value is not None]

    def encode(self, rng: random.Random | None = None) -> bytes:
        """The bytes of the message."""
        return b"".join(self.sections(rng))

    def row(self, *, counts_acquirers: bool = False) -> dict[str, Any]:
        """The columns of the message; those that are JSON as :func:`json_of` finds them."""
        header = _filled(self.header, 5)
        properties = _filled(self.properties, 13)
        priority, ttl, acquirer, deliveries = (item.of for item in header[1:])
        created, expires = properties[9].of or 0, properties[8].of or 0
        if created and ttl and not expires:
            expires = created + ttl
        redelivered = bool(deliveries) or (counts_acquirers and not acquirer)
        return {
            "body": self._body(),
            "id": _id(properties[0]),
            "correlation-id": _id(properties[5]),
            "correlationId": as_text(properties[5]),
            "replyTo": properties[4].of,
            "contentType": properties[6].of,
            "type": properties[3].of,
            "priority": 4 if priority is None else priority,
            "timestamp": _microseconds(created),
            "expiration": _microseconds(expires),
            "redelivered": redelivered,
            "deliveryCount": _count(deliveries or 0, redelivered),
            "properties": self._properties(properties[10].of),
        }

    def _properties(self, group: str | None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in self.application or []:
            found[as_text(key)] = _property(value)
        for key, value in self.message_annotations or []:
            if key.of == "x-opt-jms-msg-type" and _property(value) is not None:
                found["x-opt-jms-msg-type"] = _property(value)
        if group is not None:
            found["JMSXGroupID"] = group
        return found

    def _body(self) -> Any:
        if not self.contents:
            return b""
        if self.body == "data":
            return b"".join(content.of for content in self.contents)
        if self.body == "amqp-sequence":
            return ("json", [as_json(item) for content in self.contents for item in content.of])
        (value,) = self.contents
        if value.kind in {"string", "symbol", "char"}:
            return value.of.encode()
        if value.kind == "binary":
            return value.of
        return b"" if value.kind == "null" else ("json", as_json(value))


def _map(pairs: list[tuple[V, V]] | None) -> V | None:
    return None if pairs is None else V("map", pairs)


def _filled(fields: list[V] | None, count: int) -> list[V]:
    given = fields or []
    return given + [V("null")] * (count - len(given))


def _id(value: V) -> Any:
    return value.of if value.kind == "binary" else as_text(value)


def _property(value: V) -> Any:
    while value.kind == "described":
        value = value.of[1]
    return ("json", as_json(value)) if value.kind in COMPOUND else as_text(value)


def _microseconds(milliseconds: int) -> int | None:
    return milliseconds * 1000 if 0 < milliseconds * 1000 < 2**63 else None


def _count(deliveries: int, redelivered: bool) -> int | None:
    if deliveries == 0 and redelivered:
        return None
    return deliveries + 1 if deliveries + 1 < 2**31 else None


# -- the frame of encoded bytes, whatever they mean


def well_formed(data: bytes) -> bool:
    """Are these described values and nothing else, by the categories of their codes alone (1.2)?"""
    at = 0
    try:
        while at < len(data):
            if data[at] != 0:
                return False
            at = _end(data, at, len(data))
    except (ValueError, IndexError):
        return False
    return True


def _end(data: bytes, at: int, end: int) -> int:
    if data[at] == 0:
        return _end(data, _end(data, at + 1, end), end)
    return _content_end(data[at], data, at + 1, end)


def _content_end(code: int, data: bytes, at: int, end: int) -> int:
    category, width = code >> 4, 1 if code & 0x10 == 0 else 4
    if category < 4:
        raise ValueError(code)
    if category < 10:
        stop = at + (0, 1, 2, 4, 8, 16)[category - 4]
    else:
        stop = at + width + int.from_bytes(data[at : at + width], "big")
    if stop > end:
        raise ValueError(stop)
    if category >= 12:
        count, at = int.from_bytes(data[at + width : at + 2 * width], "big"), at + 2 * width
        if category < 14:
            for _ in range(count):
                at = _end(data, at, stop)
        elif count or at < stop:
            while data[at] == 0:
                at = _end(data, at + 1, stop)
            code, at = data[at], at + 1
            for _ in range(count):
                at = _content_end(code, data, at, stop)
        if at != stop:
            raise ValueError(at)
    return stop
