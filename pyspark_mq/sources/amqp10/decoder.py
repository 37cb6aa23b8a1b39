"""Messages of AMQP 1.0 as columns.

The consumer makes a :class:`Raw` of each message when it arrives; what is here works on those and needs
no client library. Sections and properties: AMQP 1.0, part 3. How JMS maps to
them: "AMQP JMS Mapping" of OASIS, and Qpid JMS, which both ActiveMQ brokers follow.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

from pyspark_mq.dedup import IdSource
from pyspark_mq.sources.amqp10.encoding import read_map
from pyspark_mq.sources.base import UNREADABLE_PROPERTY, Decoder, Unreadable

__all__ = ["Amqp10Decoder", "Raw", "UnreadableRaw", "body_bytes", "plain", "text"]

_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1


class Raw(NamedTuple):
    """One delivery.

    Attributes:
        tag: number of the delivery within its session.
        body: the body's bytes, see :func:`body_bytes`.
        id, correlation_id: as sent: str, int, UUID, bytes, or None.
        created_ms, expires_ms: milliseconds since 1970; 0 for none.
        deliveries: how often it was handed out before this time (header `delivery-count`).
        redelivered: somebody had it before.
        properties: application properties, plain values; the group as JMS names it. As bytes while they are
            encoded: a map that :func:`~pyspark_mq.sources.amqp10.encoding.check_map` has passed.
    """

    tag: int
    body: bytes
    id: object
    correlation_id: object
    reply_to: str | None
    content_type: str | None
    subject: str | None
    priority: int
    created_ms: int
    expires_ms: int
    deliveries: int
    redelivered: bool
    properties: Mapping[str, object] | bytes | None


class UnreadableRaw(Raw):
    """A delivery whose sections could not be decoded: its body is the whole message as it came."""

    __slots__ = ()


def body_bytes(value: object) -> bytes:
    """The body of a message as bytes.

    A `data` section and a binary value are taken as they are, text as UTF-8, nothing as no bytes;
    maps, lists (`amqp-value`, `amqp-sequence`) and numbers as JSON in UTF-8, with binary values
    in base64.
    """
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return json.dumps(plain(value), ensure_ascii=False).encode("utf-8", "surrogatepass")


def plain(value: Any) -> object:
    """A value of any AMQP type as JSON has them."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return {text(name) or "": plain(item) for name, item in value.items()}
    # The library's own types are numbers, strings and tuples of the language with another name.
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, list | tuple) or hasattr(value, "elements"):
        return [plain(item) for item in getattr(value, "elements", value)]
    described = getattr(value, "value", None)
    return str(value) if described is None else plain(described)


def text(value: object) -> str | None:  # noqa: PLR0911 - one for each kind
    """A value for a string column, or None."""
    if value is None:
        return None
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:d}"
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, float):
        return repr(float(value))
    return json.dumps(plain(value), ensure_ascii=False)


def _id(value: object) -> object:
    """Text, or bytes; numbers count by their decimal text, as over the other protocols."""
    return bytes(value) if isinstance(value, bytes | memoryview | bytearray) else text(value)


def _timestamp_us(milliseconds: int) -> int | None:
    return milliseconds * 1000 if 0 < milliseconds <= _INT64_MAX // 1000 else None


def _read_properties(properties: Mapping[str, object] | bytes | None) -> Mapping[str, object]:
    if not properties:
        return {}
    return read_map(properties) if isinstance(properties, bytes) else properties


def _properties(raws: Sequence[Raw]) -> list[list[tuple[str, str | None]]]:
    return [
        [
            (name if type(name) is str else text(name) or "", value if type(value) is str else text(value))
            for name, value in _read_properties(raw.properties).items()
        ]
        if raw.properties
        else []
        for raw in raws
    ]


def _unreadable(raw: Raw) -> Unreadable:
    known = {"message-id": text(raw.id), "correlation-id": text(raw.correlation_id), "subject": raw.subject}
    error = _read_properties(raw.properties)[UNREADABLE_PROPERTY]
    return Unreadable(raw.tag, {name: value for name, value in known.items() if value}, raw.body, str(error))


class Amqp10Decoder(Decoder):
    """Columns of :class:`Raw`."""

    def tags(self, raws: Sequence[Raw]) -> list[int]:
        return [raw.tag for raw in raws]

    def bodies(self, raws: Sequence[Raw]) -> list[bytes]:
        return [raw.body for raw in raws]

    def ids(self, raws: Sequence[Raw], source: IdSource) -> list[object]:
        if source.kind == "message-id":
            return [raw.id if type(raw.id) is str else _id(raw.id) for raw in raws]
        if source.kind == "correlation-id":
            return [_id(raw.correlation_id) for raw in raws]
        name = source.name
        return [_id(_read_properties(raw.properties).get(name)) if raw.properties else None for raw in raws]

    def unreadable(self, raws: Sequence[Raw]) -> list[Unreadable]:
        return [_unreadable(raw) for raw in raws if type(raw) is UnreadableRaw]

    columns: ClassVar[Mapping[str, Callable[[Sequence[Raw]], list[Any]]]] = MappingProxyType(
        {
            "properties": _properties,
            "correlationId": lambda raws: [text(raw.correlation_id) for raw in raws],
            "replyTo": lambda raws: [raw.reply_to for raw in raws],
            "contentType": lambda raws: [raw.content_type for raw in raws],
            "type": lambda raws: [raw.subject for raw in raws],
            "priority": lambda raws: [raw.priority for raw in raws],
            "timestamp": lambda raws: [_timestamp_us(raw.created_ms) for raw in raws],
            "expiration": lambda raws: [_timestamp_us(raw.expires_ms) for raw in raws],
            "redelivered": lambda raws: [raw.redelivered for raw in raws],
            # A redelivery without a count: the broker does not count. The header is a uint, the column is signed.
            "deliveryCount": lambda raws: [
                raw.deliveries + 1 if (raw.deliveries or not raw.redelivered) and raw.deliveries < _INT32_MAX else None
                for raw in raws
            ],
        }
    )
