"""Runs: new messages that came in a row, and of which nothing else is known. Pure.

Nearly every message comes once, is planned with its neighbours and committed with them. As long as that is so, a block
of them is one object: no key, tag or payload is looked at by itself. The first event that means a single message of a
run, or a delivery that may repeat one, has the ledger *spread* it into its containers by message.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

__all__ = ["MessageRun", "joined"]

K = TypeVar("K", bound=Hashable)  #: identity of a message
P = TypeVar("P")  #: whatever the caller wants back when the message is emitted


@dataclass(eq=False)
class MessageRun(Generic[K, P]):
    """Messages of one session, each with one delivery.

    Attributes:
        tags: ascending.
        weight: bytes of the payloads.
        digests: of the keys, an array, as the memory has given them; None without one.
    """

    session: int
    tags: Sequence[int]
    keys: Sequence[K]
    payloads: Sequence[P]
    weight: int
    digests: Any

    def __len__(self) -> int:
        return len(self.tags)

    def split(self, count: int, weigh: Callable[[Sequence[P]], int]) -> tuple[MessageRun[K, P], MessageRun[K, P]]:
        """Return the first `count` messages and the others."""
        weight = weigh(self.payloads[:count])
        return self._part(slice(count), weight), self._part(slice(count, None), self.weight - weight)

    def _part(self, places: slice, weight: int) -> MessageRun[K, P]:
        digests = None if self.digests is None else self.digests[places]
        return MessageRun(self.session, self.tags[places], self.keys[places], self.payloads[places], weight, digests)


def joined(parts: Sequence[Sequence[K]]) -> Sequence[K]:
    """Return the keys of several sequences as one. Sequences of one class that has a method `joined` know how."""
    kinds = {*map(type, parts)}
    how = getattr(type(parts[0]), "joined", None) if len(kinds) == 1 else None
    joined_: Sequence[K] = list(chain.from_iterable(parts)) if how is None else how(parts)
    return joined_


def lowest_tags(runs: Iterable[MessageRun[Any, Any]]) -> dict[int, int]:
    """Return the lowest tag of runs, by session."""
    lowest: dict[int, int] = {}
    for run in runs:
        lowest[run.session] = min(run.tags[0], lowest.get(run.session, run.tags[0]))
    return lowest
