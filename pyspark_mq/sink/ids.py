"""Stable IDs: a row gets the same ID however often Spark runs its task, and in whatever order the rows come.

An ID is a digest of the writer (a query and its batch, or the ID of a write), the partition, the destination and the
row's columns, combined with the row's number among equal rows of the partition. **The format is frozen** by the vectors
in tests/unit/test_sink_ids.py: a retry after an upgrade must give the same IDs.

A field is encoded as a code, the length of the field in four bytes, and the bytes of the field. Nulls are left out, so
null differs from empty, and a column of nulls changes nothing. Map entries are sorted. Expiration is excluded, because
in many jobs it depends on the time of the run.

Equal rows are counted by 64 bits of their digests, in sorted arrays that take 12 bytes a row. If two different rows
share these 64 bits, they only share a count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from pyspark_mq.errors import RowError

__all__ = ["ROWS_MAX", "Identity", "Seen", "field", "pairs"]

#: Most rows of one task whose digests are kept: some 200 MB.
ROWS_MAX = 16 << 20
_PERSON = b"pyspark-mq sink1"
_NULL = b"\xff\xff\xff\xff"


def field(code: int, value: bytes) -> bytes:
    """Encode one field of a row."""
    return b"%c%b%b" % (code, len(value).to_bytes(4, "big"), value)


def pairs(entries: Iterable[tuple[str, str | None]]) -> bytes:
    """Encode the entries of a map, sorted by name."""
    parts: list[bytes] = []
    for name, value in sorted(entries, key=lambda entry: entry[0].encode()):
        key = name.encode()
        parts += (len(key).to_bytes(4, "big"), key)
        if value is None:
            parts.append(_NULL)
        else:
            data = value.encode()
            parts += (len(data).to_bytes(4, "big"), data)
    return b"".join(parts)


class Identity:
    """IDs of the rows of one task.

    Args:
        writer: identifies the write: a query and its batch, or the ID of the write.
        partition: number of the task's partition.
    """

    def __init__(self, writer: Sequence[str], partition: int) -> None:
        context = b"".join(field(0, text.encode()) for text in (*writer, str(partition)))
        self._base = blake2b(context, digest_size=16, person=_PERSON)

    def digest(self, row: bytes) -> bytes:
        """Return the digest of a row. `row` has the row's encoded fields in the order of their codes."""
        found = self._base.copy()
        found.update(row)
        return found.digest()

    @staticmethod
    def text(digest: bytes, number: int) -> str:
        """Return the ID of the row with this number among equal rows, as a UUID (RFC 9562, version 8)."""
        if number:
            digest = blake2b(digest + number.to_bytes(8, "big"), digest_size=16, person=_PERSON).digest()
        bits = int.from_bytes(digest, "big") & ~(0xF << 76) & ~(3 << 62) | 8 << 76 | 2 << 62
        text = f"{bits:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def keys_of(digests: Iterable[bytes]) -> np.ndarray[Any, Any]:
    """Return the first 64 bits of each digest, as numbers."""
    return np.frombuffer(b"".join(one[:8] for one in digests), np.dtype(">u8")).astype(np.uint64)


class Seen:
    """Keys that a task has seen, each with a value. Sorted arrays of growing length take 12 or 16 bytes a key.

    Args:
        rows_max: the most keys to keep.
    """

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._runs: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        self._rows = 0

    def number(self, digests: Sequence[bytes]) -> list[int]:
        """Number each digest among equal digests, from 0, in order of appearance.

        Raises:
            RowError: there are too many different digests.
        """
        keys = keys_of(digests)
        unique, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        before = np.zeros(len(unique), np.uint32)
        new = np.ones(len(unique), bool)
        for run, values in self._runs:
            places, found = _places(run, unique)
            before[found] = values[places[found]]
            values[places[found]] += counts[found].astype(np.uint32)
            new &= ~found
        if self._rows + int(new.sum()) > self._rows_max:
            raise RowError(
                f"a task has more than {self._rows_max:,} different rows without a messageId, too many to recognise "
                "equal rows: write in more partitions (repartition), or give the rows a 'messageId'"
            )
        self._add(unique[new], counts[new].astype(np.uint32))
        numbers = before[inverse].astype(np.int64)
        if len(unique) < len(keys):
            order = np.argsort(inverse, kind="stable")
            starts = np.repeat(np.cumsum(counts) - counts, counts)
            numbers[order] += np.arange(len(keys)) - starts
        return [int(number) for number in numbers]

    def differing(self, names: Sequence[bytes], contents: Sequence[bytes]) -> int | None:
        """Return the place of the first name that was seen before with other contents, or None.

        At most `rows_max` names are kept, and further names are not recognised.
        """
        keys, values = keys_of(names), keys_of(contents)
        order = np.argsort(keys, kind="stable")
        keys_sorted, values_sorted = keys[order], values[order]
        first = np.append(True, keys_sorted[1:] != keys_sorted[:-1])
        firsts = values_sorted[np.flatnonzero(first)[np.cumsum(first) - 1]]
        wrong = [int(place) for place in order[firsts != values_sorted]]
        unique, kept = keys_sorted[first], values_sorted[first]
        new = np.ones(len(unique), bool)
        for run, known in self._runs:
            places, found = _places(run, unique)
            other = unique[found][known[places[found]] != kept[found]]
            wrong += [int(place) for place in np.flatnonzero(np.isin(keys, other))]
            new &= ~found
        if self._rows + int(new.sum()) <= self._rows_max:
            self._add(unique[new], kept[new])
        return min(wrong, default=None)

    def _add(self, keys: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> None:
        if not len(keys):
            return
        self._rows += len(keys)
        self._runs.append((keys, values))
        while len(self._runs) > 1 and len(self._runs[-2][0]) <= 2 * len(self._runs[-1][0]):
            (one, of_one), (other, of_other) = self._runs.pop(-2), self._runs.pop()
            joined = np.concatenate((one, other))
            order = np.argsort(joined, kind="stable")
            self._runs.append((joined[order], np.concatenate((of_one, of_other))[order]))


def _places(run: np.ndarray[Any, Any], keys: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the place of each key in a sorted array, and whether the key is there."""
    places = np.minimum(np.searchsorted(run, keys), len(run) - 1)
    return places, run[places] == keys
