"""The memory of a query without IDs: it remembers nothing."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pyspark_mq.ack import Ledger
from pyspark_mq.dedup import Key
from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.journal.lists import Segment
from pyspark_mq.sources.journal.memory import Memory
from pyspark_mq.sources.position import JournalFiles, Position
from pyspark_mq.sources.settings import Settings

__all__ = ["NoMemory"]

_LOG = logging.getLogger("pyspark_mq")


class NoMemory:
    """The interface of :class:`.Memory` for the lower guarantees. Writes nothing but what a raised one would need.

    Args:
        settings: the query's.
        files: of the journal; None if there is no place for them.
    """

    left: Collection[int] = ()
    forgotten = 0

    def __init__(self, settings: Settings, files: JournalFiles | None) -> None:
        self._settings = settings
        self._files = files

    def known(self, queue: str) -> None:  # noqa: ARG002
        """None: keys are mere serial numbers of deliveries."""
        return

    def look(self, now_s: float, *, connected: bool) -> None:
        """Take no note."""

    def plan(
        self,
        epoch: int,  # noqa: ARG002
        planned: Mapping[str, Sequence[Any]],  # noqa: ARG002
        ledgers: Mapping[str, Ledger[Any, Any]],  # noqa: ARG002
        begun: Collection[int] = (),  # noqa: ARG002
        *,
        blind: bool = False,  # noqa: ARG002
    ) -> str:
        """Name no file."""
        return ""

    def plan_beside(self, end: Position, ledgers: Mapping[str, Ledger[Any, Any]]) -> None:
        """Write nothing."""

    def begin_commit(self, epoch: int) -> Segment:  # noqa: ARG002
        """Make a segment that nothing is put into."""
        return Segment(0, "", "", 0, 0)

    def commit(self, segment: Segment) -> None:
        """Take no note."""

    def planned(self, start: Position, end: Position) -> dict[str, list[Key]]:
        """Give up all messages of an epoch, which is run empty: they come again in later epochs.

        If the guarantee is raised again, its file would say that they are committed.

        Raises:
            CheckpointError: there is no place to write that down.
        """
        if not end.file:
            return {}
        if self._files is None:
            guarantee = self._settings.guarantee.value
            raise CheckpointError(
                f"{self._settings.destination}: epoch {end.epoch} was planned with guarantee 'exactly-once' and is not "
                f"committed. '{guarantee}' runs it empty, and there is no place to write that down: set "
                "'checkpointLocation' (or 'idLog') at the source, or run the query with 'exactly-once' until the epoch "
                "is committed. Nothing was acknowledged"
            )
        # What is known beside it, were it planned blindly, has to be there for whoever goes on from it.
        memory = Memory(self._settings, self._files)
        if memory.is_blind(end):
            memory.recall(start, committed=True)
            memory.plan_beside(end, {})
        memory.give_up(end, memory.planned(start, end))
        return {}

    def queues(self, position: Position) -> list[str]:  # noqa: ARG002
        """Name none: without IDs nothing says which queues an epoch has."""
        return []

    def adopt(self, start: Position, open_: Position | None) -> dict[str, list[Key]]:  # noqa: ARG002
        """Warn of IDs that are not used."""
        if start.file:
            _LOG.warning(
                "%s: the checkpoint has message IDs, and guarantee '%s' does not use them: what the former query had "
                "committed and not acknowledged yet comes again",
                self._settings.destination, self._settings.guarantee.value,
            )  # fmt: skip
        return {}

    def give_up(self, end: Position, ids: Mapping[str, Sequence[Key]]) -> None:
        """Write nothing: what is given up is in no file."""
