"""Creates stable IDs for rows: a row gets the same ID whenever Spark runs its task, in whatever order the rows arrive.

An ID is a digest of the writer (a query and its batch, or the ID of a write), the partition, the destination and the
row's columns, combined with the row's number among equal rows of the partition. **The format is frozen** by the vectors
in tests/unit/test_sink_ids.py: a retry after an upgrade must give the same IDs.

In the digest, a column is encoded as its code, the length of its value in four bytes, and the bytes of the value. A
column whose value is null is left out. So null differs from an empty value, and a column that has only nulls does not
change IDs. Map entries are sorted by name. The column `expiration` is not included, because in many jobs it depends on
the time of the run.

To number equal rows, a task counts them by the first 64 bits of their digests, in sorted arrays that take 12 bytes for
each different row. If two different rows have the same 64 bits, they are numbered together. Their IDs still differ,
because an ID is made from the whole digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from pyspark_mq.errors import RowError

__all__ = ["ROWS_MAX", "Identity", "Seen", "field", "pairs"]

#: Maximum number of different rows that one task can count. Their digests then take about 200 MB.
ROWS_MAX = 16 << 20
_PERSON = b"pyspark-mq sink1"
_NULL = b"\xff\xff\xff\xff"


def field(code: int, value: bytes) -> bytes:
    """Encode one column of a row, or another part of an ID, for the digest."""
    return b"%c%b%b" % (code, len(value).to_bytes(4, "big"), value)


def pairs(entries: Iterable[tuple[str, str | None]]) -> bytes:
    """Encode the entries of a map column for the digest, sorted by name."""
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
    """Creates the IDs of the rows of one task.

    Args:
        writer: the parts that identify the write: a query and its batch, or the ID of the write.
        partition: number of the task's partition.
    """

    def __init__(self, writer: Sequence[str], partition: int) -> None:
        context = b"".join(field(0, text.encode()) for text in (*writer, str(partition)))
        self._base = blake2b(context, digest_size=16, person=_PERSON)

    def digest(self, row: bytes) -> bytes:
        """Return the digest of a row in this write.

        Args:
            row: the row's encoded fields, in the order of their codes.
        """
        found = self._base.copy()
        found.update(row)
        return found.digest()

    @staticmethod
    def text(digest: bytes, number: int) -> str:
        """Return the ID of a row, as a UUID (RFC 9562, version 8).

        Args:
            digest: the row's digest.
            number: number of the row among equal rows of its task, from 0.
        """
        if number:
            digest = blake2b(digest + number.to_bytes(8, "big"), digest_size=16, person=_PERSON).digest()
        bits = int.from_bytes(digest, "big") & ~(0xF << 76) & ~(3 << 62) | 8 << 76 | 2 << 62
        text = f"{bits:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def keys_of(digests: Iterable[bytes]) -> np.ndarray[Any, Any]:
    """Return the first 64 bits of each digest, as an array of numbers."""
    return np.frombuffer(b"".join(one[:8] for one in digests), np.dtype(">u8")).astype(np.uint64)


class Seen:
    """Digests that a task has seen, each with a count (:meth:`number`) or with another digest (:meth:`differing`).

    A digest is represented by its first 64 bits, its key. Keys are stored in a few sorted arrays of growing length,
    which take 12 bytes for each key with a count, and 16 bytes for each key with a digest.

    Args:
        rows_max: maximum number of keys.
    """

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._runs: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        self._rows = 0

    def number(self, digests: Sequence[bytes]) -> list[int]:
        """Return the number of each digest among the equal digests that the task has seen so far, starting from 0.

        Raises:
            RowError: the task has seen more than `rows_max` different digests.
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
        """Return the index of the first name that the task has seen before with different contents; None if none.

        Once `rows_max` different names are stored, new names are not stored, so a repeated new name is not recognised.

        Args:
            names: digests that identify rows by their IDs.
            contents: digests of the same rows.
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
    """Return the index of each key in a sorted array, and whether the array has the key."""
    places = np.minimum(np.searchsorted(run, keys), len(run) - 1)
    return places, run[places] == keys
