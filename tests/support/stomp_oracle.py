"""What a stream of STOMP says, without any code of the source's.

Frames are cut by the transport of stomp.py, headers are read by its parser. Of what stomp.py cannot read (texts with
NULs, wrong lengths) the writer of the stream says what it has written. Columns follow from the headers by the rules of
docs/protocols.md, for one message at a time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stomp.transport import BaseTransport
from stomp.utils import HEARTBEAT_FRAME, parse_headers
from stomp.utils import Frame as StompPyFrame

__all__ = ["Delivery", "cut_by_stomp_py", "escape", "headers_of"]

#: stomp.py passes over a header without a name; under this one it does not.
_NO_NAME = "\ue000"
_ESCAPES = str.maketrans({"\\": "\\\\", "\r": "\\r", "\n": "\\n", ":": "\\c"})
#: Headers of MESSAGE and SEND in the specification, and those with a column of their own: none is a property.
_NO_PROPERTIES = {
    "ack", "content-length", "content-type", "correlation-id", "destination", "message-id", "priority", "receipt",
    "redelivered", "reply-to", "subscription", "timestamp", "transaction", "type",
}  # fmt: skip
_INT32_MAX, _INT64_MAX = 2**31 - 1, 2**63 - 1


def escape(text: str) -> str:
    """A header as it is written in all frames but CONNECT and CONNECTED (STOMP 1.2, "Value Encoding")."""
    return text.translate(_ESCAPES)


class _Played(BaseTransport):
    """stomp.py behind a connection that brings these bytes at once, and ends."""

    def __init__(self, data: bytes) -> None:
        super().__init__(auto_decode=False, is_eol_fc=lambda end: end in (b"\n", b"\r\n"))
        self._pieces = [b"", data]
        self.found: list[tuple[str, bytes]] = []
        self.override_threading(lambda loop: loop())

    def receive(self) -> bytes:
        return self._pieces.pop()

    def process_frame(self, f: StompPyFrame, frame_str: bytes) -> None:
        if f is not HEARTBEAT_FRAME:
            self.found.append((f.cmd, f.body))


def cut_by_stomp_py(data: bytes) -> list[tuple[str, bytes]]:
    """Command and body of each frame. The stream begins with a frame, and no header has a NUL in it."""
    transport = _Played(data)
    transport.start()
    return transport.found


def headers_of(lines: Sequence[bytes], last: str = "") -> dict[str, str]:
    """The headers in these lines.

    Args:
        lines: without their ends. One without a colon is a header with an empty value.
        last: a header of which the last entry counts when it is repeated; of all others the first does.
    """
    texts = [line.decode("utf-8", "surrogateescape") for line in lines]
    whole = [text if ":" in text else f"{text}:" for text in texts]
    named = [f"{_NO_NAME}{text}" if text.startswith(":") else text for text in whole]
    headers: dict[str, str] = parse_headers(named)
    if last:
        headers |= {name: found for name, found in parse_headers(texts[::-1]).items() if name == last}
    return {"" if name == _NO_NAME else name: found for name, found in headers.items()}


def _unescaped(part: str) -> str | None:
    """With its octets in place of `%..`."""
    text = re.sub("%([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16) + 0xE000), part)
    octets = b"".join(
        bytes([ord(one) - 0xE000]) if 0xE000 <= ord(one) < 0xE100 else one.encode("utf-8", "surrogateescape")
        for one in text
    )
    return octets.decode("utf-8", "backslashreplace")


_KIND = re.compile("(queue|topic|temp-queue|temp-topic)://(.*)", re.DOTALL)
_OF_CLASSIC = re.compile("/(queue|topic|remote-temp-queue|remote-temp-topic)/(.*)", re.DOTALL)


def _reply(text: str | None, dialect: Any) -> str | None:
    """Where a reply is wanted, as rows name it (docs/request-reply.md)."""
    if not text or dialect.routed:
        return text and text.removeprefix("/reply-queue/")
    found = (_OF_CLASSIC if dialect.kinds_in_names else _KIND).fullmatch(text)
    kind, name = (found[1].removeprefix("remote-"), found[2]) if found else ("queue", text)
    again = _KIND.fullmatch(name)
    return name if kind == "queue" and not (again and again[2]) else f"{kind}://{name}"


@dataclass(frozen=True)
class Delivery:
    """One message, and what the source is to make of it.

    Attributes:
        dialect: how the broker speaks, of `BROKERS`.
        error: how the reason begins for which it is unreadable; empty if it is not.
    """

    tag: int
    headers: Mapping[str, str]
    body: bytes
    dialect: Any
    error: str = ""

    def id(self, kind: str, name: str = "") -> str | bytes | None:
        """The ID by a source of IDs; bytes if it is no text."""
        own = kind == "message-id"
        found = self.headers.get({"message-id": self.dialect.id_header, "correlation-id": kind}.get(kind, name))
        if found is None:
            return None
        try:
            found.encode()
        except UnicodeEncodeError:
            as_bytes = found.encode("utf-8", "surrogateescape")
            return None if own and self.dialect.own_id is not None else as_bytes
        if own and self.dialect.own_id is not None:
            return found if self.dialect.own_id.search(found) else None
        return found.split(self.dialect.id_separator)[-1] if own and self.dialect.id_separator else found

    @property
    def hidden(self) -> list[str]:
        """What hides the broker's ID."""
        hides = self.dialect.own_id is not None and self.id("message-id") is None
        return [str(_shown(self.headers.get(self.dialect.id_header)))] if hides else []

    @property
    def known(self) -> dict[str, str]:
        """Of an unreadable message."""
        wanted = (self.dialect.id_header, "message-id", "correlation-id", "type")
        return {name: str(_shown(self.headers[name])) for name in wanted if name in self.headers}

    @property
    def properties(self) -> dict[str, str | None]:
        """Those that an application has set."""
        internal, prefixes = self.dialect.internal_headers, tuple(self.dialect.internal_prefixes)
        return {
            str(_shown(name)): _shown(found)
            for name, found in self.headers.items()
            if name not in _NO_PROPERTIES and name not in internal and not any(map(name.startswith, prefixes))
        }

    def column(self, name: str) -> Any:
        """The value of a column other than `properties`."""
        texts = {"correlationId": "correlation-id", "contentType": "content-type"}
        if name == "replyTo":
            return _reply(_shown(self.headers.get("reply-to")), self.dialect)
        if name in {*texts, "type"}:
            return _shown(self.headers.get(texts.get(name, name)))
        return {
            "priority": self._number("priority", _INT32_MAX),
            "timestamp": self._timestamp_us,
            "expiration": self._expiration_us,
            "redelivered": self.headers.get("redelivered") == "true",
            "deliveryCount": self._delivery_count,
            "routingKey": self._routing[1],
            "exchange": self._routing[0],
            "userId": self._shown_first("user-id" if self._of_rabbitmq else "JMSXUserID"),
            "appId": self._shown_first("app-id" if self._of_rabbitmq else "JMSXAppID"),
            "contentEncoding": self._shown_first(
                "content-encoding", *([] if self._of_rabbitmq else ["JMS_AMQP_ContentEncoding"])
            ),
            "persistent": None if self.error and "persistent" not in self.headers else self._is("persistent"),
            "groupId": self._shown_first(*self._by_broker(["JMSXGroupID"], ["_AMQ_GROUP_ID"])),
            "groupSequence": self._group_sequence,
        }[name]

    @property
    def _of_rabbitmq(self) -> bool:
        return bool(self.dialect.cumulative)

    def _by_broker(self, rabbitmq: list[str], artemis: list[str]) -> list[str]:
        return rabbitmq if self._of_rabbitmq else [] if self.dialect.stalls else artemis

    def _is(self, name: str) -> bool:
        return self.headers.get(name) == "true"

    def _shown_first(self, *names: str) -> str | None:
        return next((_shown(self.headers[name]) for name in names if name in self.headers), None)

    @property
    def _group_sequence(self) -> int | None:
        names = self._by_broker(["JMSXGroupSeq"], ["_AMQ_GROUP_SEQUENCE", "JMSXGroupSeq"])
        numbers = (self._number(name, _INT64_MAX) for name in names)
        return next((number for number in numbers if number is not None), None)

    @property
    def _routing(self) -> tuple[str | None, str | None]:
        """Exchange and routing key."""
        shape = r"/(?:(queue|topic)/|exchange/([^/]*)/?)([^/]*)"
        found = re.fullmatch(shape, self.headers.get("destination", ""), re.DOTALL) if self._of_rabbitmq else None
        if found is None:
            return None, None
        kind, exchange, key = found.groups()
        parts = {"queue": "", "topic": "amq.topic"}.get(kind, exchange), key
        return tuple(_unescaped(part) for part in parts)  # type: ignore[return-value]

    def _number(self, name: str, most: int) -> int | None:
        text = self.headers.get(name, "")
        return int(text) if re.fullmatch("[0-9]{1,19}", text) and int(text) <= most else None

    @property
    def _timestamp_us(self) -> int | None:
        unit = self.dialect.timestamp_us
        moment = self._number("timestamp", _INT64_MAX // unit)
        return None if moment is None else moment * unit

    @property
    def _expiration_us(self) -> int | None:
        if self.dialect.expires_header:
            return (self._number(self.dialect.expires_header, _INT64_MAX // 1000) or 0) * 1000 or None
        sent_us, lives_ms = self._timestamp_us, self._number("expiration", _INT64_MAX // 1000)
        if sent_us is None or lives_ms is None or sent_us + lives_ms * 1000 > _INT64_MAX:
            return None
        return sent_us + lives_ms * 1000

    @property
    def _delivery_count(self) -> int | None:
        if not self.dialect.count_header:
            return None
        counted = self._number(self.dialect.count_header, _INT32_MAX - 1)
        if counted is not None:
            return counted + 1
        return None if self.headers.get("redelivered") == "true" else 1


def _shown(text: str | None) -> str | None:
    """Bytes that are no text are shown with escapes."""
    return None if text is None else text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
