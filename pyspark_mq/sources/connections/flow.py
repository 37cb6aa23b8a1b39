"""Flow control: when a session stops reading because too many bytes are buffered, and when it resumes. Pure functions.

Every decision about bytes is here. The counts stay with the threads that make them, so none of them has two writers:

* the session counts the bytes that arrive (:class:`.ReceiveBuffer`);
* the worker counts how many of these bytes have become blocks, and how much larger they are there;
* the query's thread counts how many bytes it has taken, and how many messages and bytes its queues hold.

A query may hold twice `maxBytesPerTrigger`: one epoch runs while messages for the next one arrive. Each queue may keep
what it holds, and gets an equal share of the rest (:func:`share`). Each session of the queue may buffer an equal part
of what its queue may still receive (:func:`allowed`), and pauses when it has more than that (:func:`is_full`). Paused
sessions resume when the query holds fewer than one and a half times `maxBytesPerTrigger` (:func:`resumes`): at that
moment the messages of the next epoch have arrived, and those of the epoch after it can arrive while the next epoch
runs.

A replay does not pause, because any number of other messages may be delivered before the planned ones. Instead, other
messages beyond the queue's share are skipped (:func:`skips`).

The number of messages that the broker may deliver is limited, too: by windows, see
:mod:`pyspark_mq.sources.queues.windows`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

__all__ = ["allowed", "is_full", "resumes", "share", "skips"]

Q = TypeVar("Q")

#: Bytes that a query may hold, and bytes below which its paused sessions resume, as multiples of `maxBytesPerTrigger`.
_HELD, _RESUMED = 2, 1.5
#: Only one part in `_UNMADE_PARTS` of a session's bytes may wait until the worker makes blocks of them, because a
#: delivery may be six times as large in its block. The bytes of one block (`_BLOCK_BYTES`) may always wait.
_UNMADE_PARTS, _BLOCK_BYTES = 4, 4 << 20


def share(held: Mapping[Q, int], max_bytes: int) -> dict[Q, float]:
    """Return how many bytes each queue may hold, given how many it holds."""
    rest = max(0.0, _HELD * max_bytes - sum(held.values()))
    return {queue: size + rest / len(held) for queue, size in held.items()}


def resumes(held: Mapping[Q, int], max_bytes: int) -> bool:
    """Whether paused sessions may resume, given how many bytes each queue holds."""
    return sum(held.values()) < _RESUMED * max_bytes


def allowed(most: float, held: int, sessions: int, *, replaying: bool) -> float:
    """Return how many bytes each session of a queue may buffer.

    Args:
        most: how many bytes the queue may hold.
        held: how many bytes it holds.
        sessions: number of sessions.
        replaying: whether a replay waits for planned messages.
    """
    return (most if replaying else max(0.0, most - held)) / sessions


def skips(most: float, held: int) -> bool:
    """Whether a replay skips messages that it does not wait for, because the queue holds as many bytes as it may.

    Args:
        most: how many bytes the queue may hold.
        held: how many bytes it holds.
    """
    return held >= most


def is_full(arrived: int, made: int, grown: int, taken: int, most: float) -> bool:
    """Whether a session has to pause, because too many bytes have arrived that the query has not taken yet.

    Args:
        arrived: number of bytes that have arrived in the session.
        made: how many of these bytes have become blocks.
        grown: number of bytes by which deliveries are larger in blocks than on arrival.
        taken: number of bytes that the query has taken out of blocks.
        most: number of bytes that the session may buffer.
    """
    unmade = arrived - made
    return arrived + grown - taken > most or (unmade > _BLOCK_BYTES and unmade * _UNMADE_PARTS > most)
