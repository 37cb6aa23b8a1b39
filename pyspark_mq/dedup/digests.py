"""Digests of 16 bytes: the form in which the memory keeps the IDs of committed messages.

A digest depends on the queue, on the kind of the key, and on the key itself, so the same ID in two queues has two
digests. Files keep digests too, so the digest of an ID is the same in every process of a query.

Digests are in numbered *batches*: for example, an epoch's digests are a batch. A batch is a sorted array. A search asks
a Bloom filter first, which rules out most digests that are not in any batch, and then searches the batches for the rest
(Bloom, 1970; here with two places for each digest, and one byte for each place).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import blake2b, shake_256
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_mq.dedup.identity import ID_CHARS_MAX, Key, as_text_keys

__all__ = ["DIGEST_BYTES", "Batches", "Digester", "from_bytes"]

#: Number of bytes in a digest. With 128 bits, the probability that two of 10**12 messages have the same digest is below
#: 10**-14.
DIGEST_BYTES = 16
_HALF, _WORD = np.dtype("<u8"), np.dtype("<u4")
_SUMS, _UPPER = 4, np.uint64(32)
#: Number of words (four bytes each) that stand for a queue's name, and maximum number of words that are hashed for a
#: key: the words for the queue, one word for the key's kind and length, and at most one word for each of the key's
#: characters.
_QUEUE_WORDS = 4
_WORDS_MAX = _QUEUE_WORDS + 1 + ID_CHARS_MAX
_TEXT, _BYTES = 0, 1
#: Minimum number of places in the Bloom filter for each digest. The filter grows by doubling, so there are 8 to 16
#: places for each digest. With this size, 2 to 6 % of the unknown digests pass the filter, and batches are searched for
#: them.
_PLACES = 8
#: The second place of a digest in the filter depends on the upper bits of the digest's first half, from this bit on.
_SHIFT = np.uint64(31)


class Digester:
    """Computes the digests of keys with a secret of the query. A digest consists of four multilinear hashes.

    Each hash is the upper half of `c + sum(m[i] * word[i])` modulo 2**64. The 32-bit words encode the queue, the kind
    and length of the key, and the key. The constant `c` and the multipliers `m[i]` are derived from the secret. Two
    different keys have the same hash with a probability of 2**-32, even if a producer chooses them (D. Lemire and O.
    Kaser, "Strongly universal string hashing is fast", The Computer Journal 57, 2014). They have the same digest with a
    probability of 2**-128. A producer who knows the secret could construct keys with the same digest. But the secret is
    in the checkpoint, to which producers do not need access.

    Args:
        secret: random bytes. Every epoch's file has the secret, so that digests are the same in every process.
    """

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        stretched = shake_256(secret).digest(_HALF.itemsize * _SUMS * (1 + _WORDS_MAX))
        table = np.frombuffer(stretched, _HALF).reshape(-1, _SUMS)
        self._constants, self._multipliers = table[0], table[1:]

    def begin(self, queue: str) -> Any:
        """Return the queue's part of a digest's four sums, as an array. :meth:`digests` adds the keys' parts."""
        name = blake2b(queue.encode("utf-8", "surrogatepass"), digest_size=_WORD.itemsize * _QUEUE_WORDS).digest()
        return self._constants + np.frombuffer(name, _WORD).astype(_HALF) @ self._multipliers[:_QUEUE_WORDS]

    def digests(self, begin: Any, keys: Collection[Key]) -> Any:
        """Return an array with a row for each key, in order. A row has the two 64-bit halves of the key's digest.

        Args:
            begin: the result of :meth:`begin` for the queue.
            keys: the keys.
        """
        texts = as_text_keys(keys)
        if texts is not None:
            return np.concatenate([from_bytes(b""), *(self._hashed(begin, _TEXT, chunk) for chunk in texts.chunks)])
        every, found = [*keys], np.empty((len(keys), 2), _HALF)
        for kind, type_ in ((_TEXT, str), (_BYTES, bytes)):
            places = [place for place, key in enumerate(every) if isinstance(key, type_)]
            data = [key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key for key in every]
            found[places] = self._hashed(begin, kind, pa.array([data[place] for place in places], pa.binary()))
        return found

    def _hashed(self, begin: Any, kind: int, array: pa.Array) -> Any:
        """Return the digests of keys of one kind.

        Args:
            begin: the result of :meth:`begin` for the queue.
            kind: `_TEXT` or `_BYTES`, the type of the keys.
            array: the keys, as an Arrow array of strings or bytes.
        """
        found = np.empty((len(array), 2), _HALF)
        if not len(array):
            return found
        ends = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
        data = np.frombuffer(array.buffers()[2] or b"", np.uint8)
        sizes = np.diff(ends)
        for size in np.unique(sizes).tolist():
            rows = (sizes == size).nonzero()[0]
            if len(rows) == len(array):
                those = data[ends[0] : ends[-1]].reshape(len(rows), size)
            else:
                those = data[ends[rows, None] + np.arange(size)]
            width = -(-size // _WORD.itemsize)
            padded = np.zeros((len(rows), width * _WORD.itemsize), np.uint8)
            padded[:, :size] = those
            words = padded.view(_WORD).astype(_HALF)
            sums = begin + np.uint64(2 * size + kind) * self._multipliers[_QUEUE_WORDS]
            sums = sums + words @ self._multipliers[_QUEUE_WORDS + 1 : _QUEUE_WORDS + 1 + width]
            sums >>= _UPPER
            found[rows] = sums[:, ::2] << _UPPER | sums[:, 1::2]
        return found


def from_bytes(data: bytes) -> Any:
    """Return an array of digests, a row for each, from bytes in which the digests follow one another."""
    return np.frombuffer(data, _HALF).reshape(-1, 2)


class Batches:
    """Numbered batches of digests, and a Bloom filter for all digests. A batch that does not exist counts as empty."""

    def __init__(self) -> None:
        #: Number -> batch, sorted by the first halves of the digests.
        self._sorted: dict[int, Any] = {}
        #: Number of a batch -> arrays of digests that were added but are not sorted into the batch yet. An epoch with
        #: several queues adds an array for each queue.
        self._added: dict[int, list[Any]] = {}
        self._filter: Any = np.zeros(1, bool)
        #: Number of digests that are marked in the filter, including digests that were forgotten since.
        self._marked = 0

    def __len__(self) -> int:
        """Return the number of digests. A digest that is in two batches counts twice."""
        return sum(map(len, self._batches.values()))

    def size(self, number: int) -> int:
        return len(self._batches.get(number, ()))

    def put(self, number: int, digests: Any) -> None:
        """Add digests to a batch, which may be new. The batch must not have the same digest twice."""
        if len(digests):
            self._added.setdefault(number, []).append(digests)

    def pile(self, digests: Any) -> None:
        """Add digests as a new batch, and join batches so that each one is at least twice as large as the next.

        This keeps the number of batches small. The method chooses the numbers of batches, so use it only on an object
        to which no other method adds digests.
        """
        top = len(self._batches)
        self.put(top, digests)
        while top and self.size(top - 1) < 2 * self.size(top):
            self.join((top - 1, top), top - 1)
            top -= 1

    def get(self, numbers: Iterable[int]) -> Any:
        """Return the digests of these batches in one array."""
        batches = self._batches
        return np.concatenate([from_bytes(b""), *(batches[number] for number in numbers if number in batches)])

    def join(self, numbers: Sequence[int], into: int) -> Any:
        """Join batches into one batch with the number `into`. Return the digests of this batch."""
        digests = self.get(numbers)
        for number in numbers:
            self._sorted.pop(number, None)
        if len(digests):
            self._put(into, digests)
        return digests

    def forget(self, number: int) -> Any:
        """Remove a batch, and return its digests."""
        digests = self._batches.pop(number, from_bytes(b""))
        if self._marked > 2 * len(self):
            self._make_filter()
        return digests

    def find(self, digests: Any, numbers: Collection[int] | None = None) -> Iterator[int]:
        """Yield the index of each of these digests that is in one of the batches `numbers`, or in any batch if None.

        If several batches have a digest, its index is yielded several times.
        """
        batches = self._batches
        if not batches or not len(digests):
            return
        firsts = np.ascontiguousarray(digests[:, 0])
        maybe = (self._filter[self._places(firsts)] & self._filter[self._places(firsts >> _SHIFT)]).nonzero()[0]
        if not len(maybe):
            return
        firsts = firsts[maybe]
        for number in batches if numbers is None else batches.keys() & numbers:
            there = batches[number]
            column = there[:, 0]
            begins = np.minimum(column.searchsorted(firsts), len(there) - 1)
            for suspect in (column[begins] == firsts).nonzero()[0]:
                wanted, place = int(maybe[suspect]), int(begins[suspect])
                while place < len(there) and column[place] == firsts[suspect]:
                    if there[place, 1] == digests[wanted, 1]:
                        yield wanted
                        break
                    place += 1

    # -- internals

    @property
    def _batches(self) -> dict[int, Any]:
        """Number of each batch -> its sorted digests. A look-up first sorts in digests that were added before."""
        if self._added:
            added, self._added = self._added, {}
            for number, parts in added.items():
                fresh = np.concatenate(parts)
                self._put(number, np.concatenate([self._sorted[number], fresh]) if number in self._sorted else fresh)
                self._marked += len(fresh)
                if self._marked * _PLACES > len(self._filter):
                    self._make_filter()
                else:
                    self._mark(fresh)
        return self._sorted

    def _put(self, number: int, digests: Any) -> None:
        # Store the array column by column, so that a search reads the first halves from neighbouring memory.
        self._sorted[number] = np.asfortranarray(digests[digests[:, 0].argsort()])

    def _make_filter(self) -> None:
        self._marked = sum(map(len, self._sorted.values()))
        self._filter = np.zeros(1 << max(0, self._marked * _PLACES - 1).bit_length(), bool)
        for digests in self._sorted.values():
            self._mark(digests)

    def _mark(self, digests: Any) -> None:
        self._filter[self._places(digests[:, 0])] = True
        self._filter[self._places(digests[:, 0] >> _SHIFT)] = True

    def _places(self, halves: Any) -> Any:
        return halves & np.uint64(len(self._filter) - 1)
