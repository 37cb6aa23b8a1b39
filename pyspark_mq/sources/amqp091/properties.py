"""Properties of a message that pika cannot decode, as far as they can be read. Pure.

pika 1.3.2 and 1.4.4 fail on headers that RabbitMQ takes and passes on: a date beyond the year 9999, which is what
milliseconds or nanoseconds are where seconds belong, and tables nested some hundred times. A header table gives its
length, so everything around it can be read.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Mapping

from pyspark_mq.sources.base import UNREADABLE_PROPERTY

__all__ = ["UnreadableProperties"]

#: Properties of class basic in the order of their flags, the highest bit first (AMQP 0-9-1, 4.2.6.1), and their types.
_FIELDS = (
    ("content_type", "text"),
    ("content_encoding", "text"),
    ("headers", "table"),
    ("delivery_mode", "octet"),
    ("priority", "octet"),
    ("correlation_id", "text"),
    ("reply_to", "text"),
    ("expiration", "text"),
    ("message_id", "text"),
    ("timestamp", "long"),
    ("type", "text"),
)


class UnreadableProperties:
    """What stands for `pika.BasicProperties`: the same attributes, as far as columns are made of them.

    Args:
        encoded: flags and fields, as the content header has them.
        error: why they cannot be decoded.
    """

    def __init__(self, encoded: bytes, error: str) -> None:
        self.encoded = encoded
        self.error = error
        self.headers: Mapping[str, object] = {UNREADABLE_PROPERTY: error}
        self.content_type = self.content_encoding = self.correlation_id = self.reply_to = None
        self.expiration = self.message_id = self.type = None
        self.delivery_mode = self.priority = self.timestamp = None
        with contextlib.suppress(struct.error, IndexError):  # what came before that is known
            self._read()

    def _read(self) -> None:
        data = self.encoded
        (flags,) = struct.unpack_from(">H", data)
        at = 2
        for index, (name, kind) in enumerate(_FIELDS):
            if not flags & (1 << (15 - index)):
                continue
            if kind == "text":
                end = at + 1 + data[at]
                value: object = _text(data[at + 1 : end])
            elif kind == "octet":
                value, end = data[at], at + 1
            elif kind == "long":
                (value,), end = struct.unpack_from(">Q", data, at), at + 8
            else:
                end = at + 4 + struct.unpack_from(">I", data, at)[0]
                value = self.headers
            if end > len(data):
                return
            setattr(self, name, value)
            at = end


def _text(data: bytes) -> object:
    # As pika does it.
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data
