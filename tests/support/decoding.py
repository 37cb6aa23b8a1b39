"""Deliveries asked for columns, IDs and bodies, whatever form they are in: by themselves, in batches, or both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pyspark_mq.decode.batch import DeliveryBatch, Unreadable, listed
from pyspark_mq.dedup import IdSource
from pyspark_mq.sources.connections.session import ReceiveBuffer

__all__ = ["Asked", "take_each"]


class Asked:
    """What the batches of a protocol say of deliveries.

    Args:
        batches: their class.
    """

    def __init__(self, batches: type[DeliveryBatch]) -> None:
        self.batches = batches
        self.columns: Mapping[str, Callable[[Sequence[Any]], list[Any]]] = MappingProxyType(
            {name: self._column(name) for name in getattr(batches, "columns", None) or _columns_below(batches)}
        )

    def _column(self, name: str) -> Callable[[Sequence[Any]], list[Any]]:
        def values(raws: Sequence[Any]) -> list[Any]:
            found = self.read(raws)
            return [] if found is None else listed(found.columns[name](found))

        return values

    def read(self, raws: Sequence[Any] | DeliveryBatch) -> DeliveryBatch | None:
        """One batch of them; None if there are none."""
        if isinstance(raws, DeliveryBatch):
            return raws
        return self.batches.of(raws) if raws else None

    def gather(self, items: Sequence[Any], bytes_max: int) -> Iterator[DeliveryBatch]:
        return self.batches.gather(items, bytes_max)

    def tags(self, raws: Sequence[Any]) -> list[int]:
        return [] if (batch := self.read(raws)) is None else list(batch.tags.tolist())

    def bodies(self, raws: Sequence[Any]) -> list[bytes]:
        return [] if (batch := self.read(raws)) is None else list(batch.body().to_pylist())

    def size_bytes(self, raws: Sequence[Any]) -> int:
        return 0 if (batch := self.read(raws)) is None else batch.size_bytes

    def ids(self, raws: Sequence[Any], source: IdSource) -> list[object]:
        return [] if (batch := self.read(raws)) is None else batch.ids(source)

    def digests(self, raws: Sequence[Any]) -> list[bytes]:
        return [] if (batch := self.read(raws)) is None else batch.digests()

    def not_redelivered(self, raws: Sequence[Any]) -> list[bool]:
        return [] if (batch := self.read(raws)) is None else batch.not_redelivered()

    def hidden(self, raws: Sequence[Any]) -> list[str]:
        return [] if (batch := self.read(raws)) is None else batch.hidden()

    def unreadable(self, raws: Sequence[Any]) -> list[Unreadable]:
        return [] if (batch := self.read(raws)) is None else list(batch.unreadable.values())


def _columns_below(batches: type[DeliveryBatch]) -> Mapping[str, Any]:
    return next(form.columns for form in batches.__subclasses__())


def take_each(buffer: ReceiveBuffer) -> list[Any]:
    """Take all deliveries out of an inbox, each by itself."""
    return [
        one
        for item in buffer.take()
        for one in ([item[at : at + 1] for at in range(len(item))] if isinstance(item, DeliveryBatch) else [item])
    ]
