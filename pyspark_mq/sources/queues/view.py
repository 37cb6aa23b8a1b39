"""A queue at one moment, as admission sees it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["QueueView"]


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue at one moment, for whoever decides how much to take of it.

    Attributes:
        received, weight: messages that are received and not planned, and their bytes.
        unacked, window: deliveries of the open sessions that are not acknowledged, and how many there may be.
        blocked: whether nothing can come any more.
        depths: messages waiting at the broker, by its last report to each receiver; empty if it reports none.
        behind: whether more has come to a session than it has read.
        has_open_epochs: whether anything is planned or emitted that is not committed.
    """

    received: int
    weight: int
    unacked: int
    window: int
    blocked: bool
    depths: tuple[int, ...]
    behind: bool
    has_open_epochs: bool
