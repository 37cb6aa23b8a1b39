"""Identity of messages: from a delivered value to one hashable key.

A key is the ID itself if the ID is a short string, and otherwise a digest (``bytes``), because files should not hold an
ID of a megabyte, and cannot hold an ID that is not text. A string never equals a digest, so a producer cannot choose a
string that is taken for the digest of another ID.

A message without an ID is identified by its content. In files, its key is a digest of the content, which has
:data:`CONTENT_DIGEST_BYTES` bytes. Within a process, :mod:`pyspark_mq.ack.content_matcher` appends an ordinal of eight
bytes, which tells equal messages apart. No other keys have these lengths.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b, sha256
from typing import Any, TypeAlias, overload

import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "CONTENT_BYTES",
    "DIGEST_BYTES",
    "ID_CHARS_MAX",
    "IdSource",
    "Key",
    "OnMissing",
    "TextKeys",
    "as_text_keys",
    "content_digest",
    "filed",
    "id_keys",
    "id_text",
    "is_content",
    "key_text",
]

Key: TypeAlias = "str | bytes"

#: Longest ID that is its own key. AMQP 0-9-1 has room for 255 bytes in `message_id` (section 4.2.5.3, short strings);
#: JMS providers use 40 to 120 characters. Longer IDs come from properties and are replaced by digests.
ID_CHARS_MAX = 255

#: With 160 bits, the probability that two of 10**12 messages collide is below 10**-24.
DIGEST_BYTES = 20

#: Bytes of a content's digest, and bytes of the key of a message without an ID, which is that digest and an ordinal.
CONTENT_DIGEST_BYTES = 16
CONTENT_BYTES = 24


class OnMissing(Enum):
    """What to do with a message without an ID (option `onMissingMessageId`)."""

    CONTENT = "content"  #: identified by its content; equal messages are counted
    FAIL = "fail"
    REJECT = "reject"
    ROW = "row"  #: emitted each time it is delivered


@dataclass(frozen=True, slots=True)
class IdSource:
    """Where a message's ID is found (option `messageIdFrom`).

    Attributes:
        kind: `message-id`, `correlation-id`, `property`, `json` or `content`.
        name: the property's name for `property`, the path for `json`, otherwise empty.
    """

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind


class TextKeys(Sequence[str]):
    """A sequence of IDs that are all strings.

    Args:
        chunks: arrays of strings without nulls; slices of the sequence share the arrays' memory.
    """

    __slots__ = ("_bounds", "_length", "chunks")

    def __init__(self, chunks: Sequence[pa.Array]) -> None:
        self.chunks = chunks
        self._length = sum(map(len, chunks))
        self._bounds: tuple[int, int] | None = None

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has the same keys."""
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]

    @property
    def bounds(self) -> tuple[int, int]:
        """Byte lengths of the shortest and the longest key. They are cached, because a block needs them twice."""
        if self._bounds is None:
            every = [pc.min_max(pc.binary_length(chunk)).values() for chunk in self.chunks if len(chunk)]
            sizes = [size.as_py() for some in every for size in some]
            self._bounds = min(sizes, default=0), max(sizes, default=0)
        return self._bounds

    @property
    def array(self) -> pa.Array:
        """All keys."""
        return self.chunks[0] if len(self.chunks) == 1 else pa.concat_arrays([pa.array([], pa.string()), *self.chunks])

    @staticmethod
    def joined(parts: Iterable[TextKeys]) -> TextKeys:
        """Join several sequences of keys."""
        return TextKeys([chunk for part in parts for chunk in part.chunks])

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[str]:
        for chunk in self.chunks:
            yield from chunk.to_pylist()

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> TextKeys: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, int):
            begin = range(self._length)[place]
            return next(self._slices(begin, begin + 1))[0].as_py()
        begin, end, _ = place.indices(self._length)
        return TextKeys(list(self._slices(begin, end)))

    def _slices(self, begin: int, end: int) -> Iterator[pa.Array]:
        for chunk in self.chunks:
            low, high = max(0, begin), min(end, len(chunk))
            if low < high:
                yield chunk.slice(low, high - low)
            begin, end = begin - len(chunk), end - len(chunk)


def as_text_keys(keys: Iterable[Any]) -> TextKeys | None:
    """Return keys as arrays of strings; None if a key is not a string or has no UTF-8 encoding."""
    if isinstance(keys, TextKeys):
        return keys
    every = [*keys]
    if not set(map(type, every)) <= {str}:
        return None
    try:
        return TextKeys([pa.array(every, pa.string())])
    except UnicodeEncodeError:  # a lone surrogate, as in JSON
        return None


def id_keys(values: Sequence[object] | TextKeys) -> Sequence[Key | None]:
    """Return the key of each delivered ID; None for a missing or empty ID.

    Text is used as is, including newlines and NUL; bytes that are not text and text longer than :data:`ID_CHARS_MAX`
    are digested; numbers become decimal text. If every ID is text that can be its own key, the keys are an array.
    """
    texts = as_text_keys(values)
    if texts is not None:
        shortest, longest = texts.bounds
        if shortest > 0 and longest <= ID_CHARS_MAX:
            return texts
    return [_id_key(value) for value in values]


def _id_key(value: object) -> Key | None:
    if isinstance(value, bytes | bytearray | memoryview):
        return _digest(bytes(value), b"bytes") if len(value) else None
    if value is None or value == "":
        return None
    text = value if isinstance(value, str) else str(value)
    if len(text) > ID_CHARS_MAX:
        return _digest(text.encode("utf-8", "surrogatepass"), b"text")
    return text


def id_text(value: object) -> str | None:
    """Return a delivered ID as text, in full; None for a missing or empty ID."""
    if value is None or value in ("", b""):
        return None
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def content_digest(named: bytes, body: bytes) -> bytes:
    """Return the digest of a content (SHA-256, cut); equal contents have equal digests.

    Args:
        named: properties and headers of the message, in a form that is the same for each delivery.
        body: body of the message.
    """
    return sha256(len(named).to_bytes(4, "big") + named + body).digest()[:CONTENT_DIGEST_BYTES]


def is_content(key: object) -> bool:
    """Whether a key stands for a content and not for an ID."""
    return type(key) is bytes and len(key) in {CONTENT_DIGEST_BYTES, CONTENT_BYTES}


def filed(keys: Collection[Key]) -> Sequence[Key]:
    """Return keys as files hold them: contents without ordinals."""
    if isinstance(keys, TextKeys):
        return keys
    if bytes not in set(map(type, keys)):  # the usual case; comparing types takes a tenth of the time
        return [*keys]
    return [key[:CONTENT_DIGEST_BYTES] if type(key) is bytes and len(key) == CONTENT_BYTES else key for key in keys]


def _digest(data: bytes, person: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES, person=person).digest()


def key_text(key: Key) -> str:
    """Return the key in readable form."""
    return key if isinstance(key, str) else key.hex()
