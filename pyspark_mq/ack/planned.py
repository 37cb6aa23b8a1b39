"""The epochs that are planned but not committed: their messages, and the payloads that were received so far."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pyspark_mq.ack.buffer import MessageRun, joined
from pyspark_mq.dedup import Key

__all__ = ["Epoch", "Planned", "Taken"]

P = TypeVar("P")  #: payload: the object that the caller gets back when the message is emitted


@dataclass(slots=True)
class Epoch(Generic[P]):
    """A planned epoch. Its messages are either all single messages, or all in runs.

    Attributes:
        number: number of the epoch.
        payloads: key of a single message -> its payload, in planned order; None for a message that was not redelivered
            yet. Empty if the messages are in runs.
        missing: number of messages without a payload.
        size_bytes: size of the payloads that were received so far.
        unbound: whether some messages have lost a delivery because its session ended.
        runs: the runs (messages that are kept together, :mod:`.buffer`), in planned order.
        echoes: messages that the epoch does not emit: they are acknowledged when it begins (:mod:`.content_matcher`).
    """

    number: int
    payloads: dict[Key, P | None] = field(default_factory=dict)
    missing: int = 0
    size_bytes: int = 0
    unbound: bool = False
    runs: Sequence[MessageRun[P]] = ()
    echoes: Collection[Key] = ()

    def __len__(self) -> int:
        return len(self.payloads) + sum(map(len, self.runs))


@dataclass(slots=True)
class Taken(Generic[P]):
    """The payloads of messages that were removed from a container.

    Attributes:
        payloads: the payloads; None for each message whose payload was not received yet.
        size_bytes: size of the payloads that were received.
        missing: number of payloads that were not received yet.
        unbound: whether some of the messages may have no open delivery.
    """

    payloads: Sequence[P | None] = ()
    size_bytes: int = 0
    missing: int = 0
    unbound: bool = False


class Planned(Generic[P]):
    """All planned epochs, which can be looked up by number and by message."""

    def __init__(self, size_of: Callable[[Sequence[P]], int]) -> None:
        self._size_of = size_of
        self._epoch_of: dict[Key, Epoch[P]] = {}
        self.epochs: dict[int, Epoch[P]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.epochs.values()))

    def __contains__(self, key: Key) -> bool:
        return key in self._epoch_of

    def get(self, key: Key) -> Epoch[P] | None:
        return self._epoch_of.get(key)

    def knows_none_of(self, keys: set[Key]) -> bool:
        return self._epoch_of.keys().isdisjoint(keys)

    @property
    def size_bytes(self) -> int:
        return sum(epoch.size_bytes for epoch in self.epochs.values())

    def keys(self, epoch: int) -> Sequence[Key]:
        """Return the keys of an epoch's messages, in order; empty if the epoch is committed or unknown."""
        found = self.epochs.get(epoch)
        if found is None:
            return ()
        return joined([run.keys for run in found.runs]) if found.runs else tuple(found.payloads)

    def echoes(self, epoch: int) -> Collection[Key]:
        """Return the keys of those messages of an epoch that it does not emit (:mod:`.content_matcher`)."""
        found = self.epochs.get(epoch)
        return () if found is None else found.echoes

    def parts(self, epoch: int) -> list[Sequence[P]]:
        """Return the payloads that an epoch emits, in planned order: one sequence for each run, or one if it has none.

        Payloads that were not received yet are left out.
        """
        found = self.epochs[epoch]
        if found.runs:
            return [run.payloads for run in found.runs]
        return [[payload for payload in found.payloads.values() if payload is not None]]

    @property
    def has_single(self) -> bool:
        """Whether any epoch has single messages, which are not in runs (:mod:`.buffer`)."""
        return bool(self._epoch_of)

    def spread(self) -> list[MessageRun[P]]:
        """Turn all runs into single messages. Return the former runs; each now has its keys in a list."""
        spread = self.runs
        for epoch in self.epochs.values():
            for run in epoch.runs:
                run.keys = [*run.keys]
                epoch.payloads.update(zip(run.keys, run.payloads, strict=True))
                self._epoch_of.update(dict.fromkeys(run.keys, epoch))
            epoch.runs = ()
        return spread

    @property
    def runs(self) -> list[MessageRun[P]]:
        """The runs of all epochs."""
        return [run for epoch in self.epochs.values() for run in epoch.runs]

    def missing(self, epoch: int) -> list[Key]:
        """Return the keys of an epoch's messages whose payloads were not received yet, in planned order."""
        return [key for key, payload in self.epochs[epoch].payloads.items() if payload is None]

    def put(self, epoch: Epoch[P], keys: Collection[Key], taken: Taken[P], runs: Sequence[MessageRun[P]] = ()) -> None:
        """Add single messages, or runs, to an epoch."""
        epoch.runs = runs
        epoch.payloads.update(zip(keys, taken.payloads, strict=True))
        epoch.missing += taken.missing
        epoch.size_bytes += taken.size_bytes
        epoch.unbound |= taken.unbound
        self._epoch_of.update(dict.fromkeys(keys, epoch))

    def take(self, keys: Iterable[Key]) -> Taken[P]:
        taken: list[P | None] = []
        total = Taken(taken)
        for key in keys:
            epoch = self._epoch_of.pop(key)
            payload = epoch.payloads.pop(key)
            taken.append(payload)
            missing, size_bytes = (1, 0) if payload is None else (0, self._size_of([payload]))
            epoch.missing -= missing
            epoch.size_bytes -= size_bytes
            total.missing += missing
            total.size_bytes += size_bytes
            total.unbound |= epoch.unbound or payload is None
        return total

    def take_whole(self, epoch: Epoch[P]) -> None:
        if len(epoch.payloads) == len(self._epoch_of):
            self._epoch_of = {}
            return
        for key in epoch.payloads:
            del self._epoch_of[key]

    def fill(self, keys: Iterable[Key], payloads: Iterable[P]) -> list[Key]:
        """Add payloads to planned messages that have none.

        Returns:
            the keys of the other messages: they have a payload already, or are not planned.
        """
        filled: dict[int, list[P]] = {}
        others: list[Key] = []
        for key, payload in zip(keys, payloads, strict=True):
            epoch = self._epoch_of.get(key)
            if epoch is None or epoch.payloads[key] is not None:
                others.append(key)
                continue
            epoch.payloads[key] = payload
            epoch.missing -= 1
            filled.setdefault(epoch.number, []).append(payload)
        for number, came in filled.items():
            self.epochs[number].size_bytes += self._size_of(came)
        return others

    def exchange(self, key: Key, payload: P) -> None:
        """Replace the payload of a single message by another payload of the same size."""
        self._epoch_of[key].payloads[key] = payload

    def unbind(self, keys: Collection[Key]) -> None:
        """Record that these messages have lost a delivery, because its session ended."""
        for key in self._epoch_of.keys() & keys:
            self._epoch_of[key].unbound = True
