"""The end of an epoch, as the offset holds it, and how much an epoch may hold. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from pyspark_mq.dedup import CodecError, Key, decode_ids, encode_ids
from pyspark_mq.errors import CheckpointError

__all__ = ["FINDERS", "FindRecords", "Limit", "Part", "Position", "Records", "decode", "end_of"]

#: So many processes that find IDs open in an offset wait for them anew. More would let pile up what is left by a query
#: that ends early again and again.
FINDERS = 2


@dataclass(frozen=True, slots=True)
class Limit:
    """How much the next epoch may hold.

    Attributes:
        messages: at most so many; None for all that can be had now.
    """

    messages: int | None


@dataclass(frozen=True, slots=True)
class Part:
    """One queue in a position.

    Attributes:
        planned: the epoch's IDs of this queue in order, encoded.
        carried: IDs of earlier epochs that may still come again, encoded in pieces.
        until_s: for each piece, up to when it has to be carried, seconds since 1970; None where that is open, and below
            `FINDERS` where it is and so many processes have found it so. It may be shorter than `carried`.
    """

    planned: str = ""
    carried: tuple[str, ...] = ()
    until_s: tuple[int | None, ...] = ()

    def pieces(self) -> list[tuple[str, int | None]]:
        """The carried IDs, each piece with its end."""
        ends = self.until_s + (None,) * (len(self.carried) - len(self.until_s))
        return list(zip(self.carried, ends, strict=True))

    def without(self, given_up: str, name: str) -> Part:
        """Return the same without some of the planned IDs, which are given encoded; errors as `besides` has them."""
        if not given_up:
            return self
        return replace(self, planned=self.besides(Part(given_up), name))

    def besides(self, before: Part, name: str) -> str:
        """Return the planned IDs that the committed epoch before does not list, encoded; empty for none.

        Args:
            before: the part of the epoch before.
            name: of the queue, for errors.

        Raises:
            CheckpointError: IDs of either cannot be read.
        """
        destination = repr(name)
        left_out = {key for text in before.committed().carried for key in decode(text, destination)}
        return encode_ids([key for key in decode(self.planned, destination) if key not in left_out])

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
        records: the folder where it is written down what of it was given up, by the same command; empty for none.
        blind: it was planned before Spark had shown what is committed (before 4.2), so it carries nothing of that.
    """

    epoch: int
    parts: Mapping[str, Part] = field(default_factory=dict)
    broker_id: str = ""
    released: bool = False
    records: str = ""
    blind: bool = False

    def without(self, given_up: Mapping[str, str]) -> Position:
        """The same without some of the planned IDs: name of a queue -> what of it was given up, encoded."""
        if not given_up:
            return self
        parts = {name: part.without(given_up.get(name, ""), name) for name, part in self.parts.items()}
        return replace(self, parts=parts)

    def before(self) -> Position:
        """The part of its offset that is about earlier epochs."""
        parts = {name: replace(part, planned="") for name, part in self.parts.items()}
        return replace(self, parts=parts)


class Records(Protocol):
    """Records of what was given up of epochs, kept beside the checkpoint: an offset cannot be changed (rule 15)."""

    def write_record(self, end: Position, given_up: Mapping[str, str]) -> None:
        """Keep what was given up of an epoch; durable when it returns.

        Args:
            end: of the epoch, with all that was planned. An epoch of the same number may be planned with others, where
                a checkpoint was restored.
            given_up: name of a queue -> encoded IDs.

        Raises:
            CheckpointError: it cannot be kept.
        """

    def forget_records(self, epoch: int) -> None:
        """Forget what was given up of epochs from this number on: it is planned now, as the checkpoint was restored.

        Raises:
            CheckpointError: that cannot be done.
        """

    def read_record(self, end: Position) -> Mapping[str, str]:
        """The messages of an epoch that were given up; empty for none.

        Raises:
            CheckpointError: that cannot be found out.
        """

    def note_synced(self, epoch: int) -> None:
        """Note, durably, that this machine has everything up to the commit of an epoch on its disks.

        Raises:
            CheckpointError: that cannot be noted.
        """

    def forget_synced(self) -> None:
        """Remove the note, if there is one: from now on epochs are acknowledged that it knows nothing of.

        Raises:
            CheckpointError: it cannot be removed.
        """

    def lost_power(self, epoch: int) -> bool:
        """Has the machine been started anew since the last note, and was that of another epoch?

        Raises:
            CheckpointError: that cannot be found out.
        """


#: Where that is kept for an epoch; None if there is no place.
FindRecords: TypeAlias = Callable[[Position], "Records | None"]


def end_of(until_s: int | None) -> int | None:
    """The end of a piece, seconds since 1970; None where it is open. See :class:`Part`."""
    return None if until_s is None or until_s < FINDERS else until_s


def decode(text: str, destination: str) -> list[Key]:
    """The IDs in a piece of an offset.

    Args:
        text: the IDs, encoded.
        destination: what errors call the queue.

    Raises:
        CheckpointError: they cannot be read.
    """
    try:
        return decode_ids(text)
    except CodecError as broken:
        raise CheckpointError(
            f"{destination}: the message IDs in the checkpoint's offset cannot be read ({broken}). Restore the "
            "checkpoint, or start with a new checkpointLocation"
        ) from None
