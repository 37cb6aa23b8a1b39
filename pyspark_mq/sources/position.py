"""The end of an epoch, as the offset holds it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Part", "Position"]


@dataclass(frozen=True, slots=True)
class Part:
    """What a position says of one queue.

    Attributes:
        planned: the epoch's IDs of this queue in order, encoded.
        carried: IDs of earlier epochs that may still come again, encoded in pieces.
        until_s: for each piece, up to when it has to be carried, seconds since 1970; None where no clock
            runs yet. Shorter than `carried` in offsets of 0.1.0.
    """

    planned: str = ""
    carried: tuple[str, ...] = ()
    until_s: tuple[int | None, ...] = ()

    def pieces(self) -> list[tuple[str, int | None]]:
        """The carried IDs, each piece with its end."""
        ends = self.until_s + (None,) * (len(self.carried) - len(self.until_s))
        return list(zip(self.carried, ends, strict=True))

    def committed(self) -> Part:
        """The same once the epoch is committed: what was planned may come again."""
        if not self.planned:
            return self
        pieces = [*self.pieces(), (self.planned, None)]
        return Part("", tuple(text for text, _ in pieces), tuple(until_s for _, until_s in pieces))


@dataclass(frozen=True, slots=True)
class Position:
    """The end of an epoch over all queues of a query.

    Attributes:
        epoch: 0 before the first.
        parts: name of a queue or topic -> what is said of it, in the order in which the epoch emits them. Queues that
            the query no longer reads may be among them.
        broker_id: the name of the broker they are at, empty while unknown.
        released: may the epoch be replayed without those of its messages that do not come back? So marked by
            `pyspark-mq release`, never by the source.
    """

    epoch: int
    parts: Mapping[str, Part] = field(default_factory=dict)
    broker_id: str = ""
    released: bool = False
