"""The keys that identify messages: hashable values that are made from IDs, or from the contents of messages.

The key of a message is its ID if this is a string of at most :data:`ID_CHARS_MAX` characters. Otherwise the key is a
digest of the ID (``bytes``), because files should not contain IDs of a megabyte, and cannot contain IDs that are not
text. A string never equals a digest, so a producer cannot choose an ID that is taken for the digest of another ID.

A message without an ID is identified by its content. In files, its key is a digest of the content, which has
:data:`CONTENT_DIGEST_BYTES` bytes. Within a process, :mod:`pyspark_mq.ack.content_matcher` appends an ordinal number of
eight bytes, which tells messages with equal contents apart. Keys of other messages do not have these lengths.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b, sha256
from typing import Any, TypeAlias, TypeGuard, overload

import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "CONTENT_DIGEST_BYTES",
    "ID_CHARS_MAX",
    "LONG_ID_BYTES",
    "NAMELESS",
    "IdSource",
    "Key",
    "OnMissing",
    "TextKeys",
    "as_text_keys",
    "content_digest",
    "content_of",
    "filed",
    "id_keys",
    "id_text",
    "is_content",
    "key_text",
    "numbered",
    "parted",
]

Key: TypeAlias = "str | bytes"

#: Maximum length of an ID, in characters. Longer IDs are replaced by digests. AMQP 0-9-1 allows 255 bytes in
#: `message_id` (section 4.2.5.3, short strings), and the IDs of JMS providers have 40 to 120 characters, so
#: usually only IDs that are taken from a property, the correlation ID or the body are longer.
ID_CHARS_MAX = 255

#: Number of bytes in the digest of an ID. With 160 bits, the probability that two of 10**12 messages have the same
#: digest is below 10**-24.
LONG_ID_BYTES = 20

#: Number of bytes in the digest of a content; in the ordinal that follows the digest within a process; and in both
#: together.
CONTENT_DIGEST_BYTES, _ORDINAL_BYTES = 16, 8
_NUMBERED_BYTES = CONTENT_DIGEST_BYTES + _ORDINAL_BYTES
#: Takes the place of the digest in the keys of messages that have no identity (`onMissingMessageId=row`).
NAMELESS = bytes(CONTENT_DIGEST_BYTES)


class OnMissing(Enum):
    """Values of option `onMissingMessageId`: what the source does with a message without an ID."""

    CONTENT = "content"  #: identified by its content; messages with equal contents are counted
    FAIL = "fail"
    REJECT = "reject"
    ROW = "row"  #: emitted each time it is delivered


@dataclass(frozen=True, slots=True)
class IdSource:
    """The parsed value of option `messageIdFrom`: from where the ID of a message is taken.

    Attributes:
        kind: `message-id`, `correlation-id`, `property`, `json` or `content`.
        name: for `property` the property's name, for `json` the path in the body; otherwise empty.
    """

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind


class TextKeys(Sequence[str]):
    """A sequence of keys that are all strings, kept in Arrow arrays instead of Python objects.

    Args:
        chunks: arrays of strings without nulls. Slices of the sequence share the memory of these arrays.
    """

    __slots__ = ("_bounds", "_length", "chunks")

    def __init__(self, chunks: Sequence[pa.Array]) -> None:
        self.chunks = chunks
        self._length = sum(map(len, chunks))
        self._bounds: tuple[int, int] | None = None

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has the same keys in the same order."""
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]

    @property
    def bounds(self) -> tuple[int, int]:
        """The lengths in bytes of the shortest and the longest key. They are computed only once."""
        if self._bounds is None:
            every = [pc.min_max(pc.binary_length(chunk)).values() for chunk in self.chunks if len(chunk)]
            sizes = [size.as_py() for some in every for size in some]
            self._bounds = min(sizes, default=0), max(sizes, default=0)
        return self._bounds

    @property
    def array(self) -> pa.Array:
        """All keys in one array."""
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
    """Put keys into Arrow arrays of strings. Return None if a key is not a string, or cannot be encoded in UTF-8."""
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
    """Return a key for each ID, in order; None for an ID that is missing or empty.

    The key of a text is the text itself, including newlines and NUL, or a digest if the text is longer than
    :data:`ID_CHARS_MAX`. The key of bytes is a digest. The key of a number is its decimal text. If all keys are text,
    they are returned as :class:`TextKeys`.
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
    """Return an ID as text, as column `messageId` shows it; None for an ID that is missing or empty."""
    if value is None or value in ("", b""):
        return None
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def content_digest(named: bytes, body: bytes) -> bytes:
    """Return the digest of a message's content: the first bytes of its SHA-256.

    Args:
        named: the message's properties and headers, encoded in a form that is the same for each delivery.
        body: the message's body.
    """
    return sha256(len(named).to_bytes(4, "big") + named + body).digest()[:CONTENT_DIGEST_BYTES]


def is_content(key: object) -> TypeGuard[bytes]:
    """Whether a key was made from the content of a message, and not from an ID."""
    return type(key) is bytes and len(key) in (CONTENT_DIGEST_BYTES, _NUMBERED_BYTES)


def content_of(key: bytes) -> bytes:
    """Return the digest of the content from which a key was made."""
    return key[:CONTENT_DIGEST_BYTES]


def numbered(digest: bytes, ordinal: int) -> bytes:
    """Return the key that a message without an ID has within a process. The ordinal tells equal contents apart."""
    return digest + ordinal.to_bytes(_ORDINAL_BYTES, "big")


def filed(keys: Collection[Key]) -> Sequence[Key]:
    """Return keys in the form that files use: keys that were made from contents lose their ordinals."""
    if isinstance(keys, TextKeys):
        return keys
    if bytes not in set(map(type, keys)):  # the usual case: this check takes a tenth of the time of the last line
        return [*keys]
    return [content_of(key) if is_content(key) else key for key in keys]


def parted(keys: Collection[Key]) -> tuple[Sequence[Key], Sequence[Key]]:
    """Split keys into those of messages with an ID, and those of messages without an ID.

    Keys of messages without an ID are returned as digests of contents, without ordinals, as in files. Keys that stand
    for no content (:data:`NAMELESS`) are left out.
    """
    if isinstance(keys, TextKeys):  # the usual case
        return keys, ()
    if bytes not in set(map(type, keys)):  # this check takes a tenth of the time of the lines below
        return [*keys], []
    every = filed(keys)
    contents = [key for key in every if is_content(key)]
    ids = [] if len(contents) == len(every) else [key for key in every if not is_content(key)]
    return ids, contents if NAMELESS not in contents else [key for key in contents if key != NAMELESS]


def _digest(data: bytes, person: bytes) -> bytes:
    return blake2b(data, digest_size=LONG_ID_BYTES, person=person).digest()


def key_text(key: Key) -> str:
    """Return a key in readable form: a text as it is, the bytes of a digest in hexadecimal."""
    return key if isinstance(key, str) else key.hex()
