"""The windows of a queue: how many unacknowledged messages each session may hold. One table decides.

Each end of a session counts towards the delivery limit of all its messages. A job that keeps crashing early must not
use up the limit of its whole queue, so it keeps a slow window until an epoch is committed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

from pyspark_mq.ack import InFlightTable
from pyspark_mq.sources.connections.connections import Connections
from pyspark_mq.sources.queues.deliveries import Deliveries
from pyspark_mq.sources.settings import Settings

__all__ = ["WINDOWS", "Trigger", "Window", "Windows", "window_of"]

_LOG = logging.getLogger("pyspark_mq")

#: Window until the first epoch after a restart is committed, in addition to expected redeliveries.
_FEW = 2_000
#: Room in the window of a replay beyond the epoch's messages, for other messages that are delivered between them.
_REPLAY_SPARE = 100


class Window(Enum):
    """A size of a window."""

    SLOW = "slow"  #: a small window, as long as no progress of this process is proven; a replay's epoch fits into it
    EPOCH = "epoch"  #: the messages of one epoch
    WIDE = "wide"  #: option `prefetch`


class Trigger(Enum):
    """An event that changes windows."""

    UNPROVEN = "unproven"  #: there may have been a former process; or a session follows a session that ended
    REPLAY = "replay"  #: an open epoch of a former process is expected
    NO_CRASH_LOOP = "no crash loop"  #: there was no former process, or all its epochs are committed
    #: Like NO_CRASH_LOOP, but the run may have a single epoch, and returns the other messages when it ends.
    ONE_EPOCH = "one epoch"
    COMMITTED = "committed"  #: an epoch of this process is committed


#: Trigger -> the window of new sessions, and the minimum window of open sessions. None leaves a window unchanged.
WINDOWS: Mapping[Trigger, tuple[Window | None, Window | None]] = MappingProxyType(
    {
        # An open session has enough to start with: redeliveries are acknowledged on sight, or with the next epoch.
        Trigger.UNPROVEN: (Window.SLOW, None),
        Trigger.REPLAY: (Window.SLOW, Window.SLOW),
        Trigger.NO_CRASH_LOOP: (Window.WIDE, Window.WIDE),
        Trigger.ONE_EPOCH: (Window.EPOCH, Window.EPOCH),
        # Widen before acknowledgements make room: if widening takes a new consumer, nothing is on its way yet.
        Trigger.COMMITTED: (None, Window.WIDE),
    }
)


def window_of(size: Window, settings: Settings, *, planned: int, expected: int, replays: bool) -> int:
    """Return the window of one session, in messages.

    Args:
        planned: messages of open epochs, of all sessions.
        expected: the messages in `planned`, plus messages acknowledged but not settled.
        replays: whether an epoch of a former process is open. Until the commit of that epoch, a session gets as many
            messages as the epoch needs or a few messages, whichever is more, but not the sum of both. So repeated
            failures use up the delivery limit of only a few other messages.
    """
    window = settings.prefetch
    if size is Window.WIDE:
        return window
    if settings.endpoint.broker.counts_session_ends:
        # No fewer for a small epoch: a quorum queue appends returned messages to those returned before, so the epoch's
        # messages may follow everything delivered to former processes (RabbitMQ 3.10).
        if replays:
            few = max(_FEW, planned + _REPLAY_SPARE)
        else:
            few = expected + (settings.max_messages if size is Window.EPOCH else max(_FEW, settings.min_messages))
        window = min(window, math.ceil(few / settings.consumers))
    # A whole epoch is redelivered, whatever the prefetch is now.
    return max(window, math.ceil(planned / settings.consumers))


class Windows:
    """Applies the table to the sessions of one queue."""

    def __init__(
        self, settings: Settings, in_flight: InFlightTable[Any, Any], connections: Connections, deliveries: Deliveries
    ) -> None:
        self._settings = settings
        self._in_flight = in_flight
        self._connections = connections
        self._deliveries = deliveries
        self._replayed = 0
        self.enter(Trigger.UNPROVEN)

    def enter(self, trigger: Trigger) -> None:
        """Apply the table's row for a trigger."""
        first, least = WINDOWS[trigger]
        if first is not None:
            self._connections.first_window = self._of(first)
        if least is not None:
            self._connections.widen(self._of(least), strictly=least is Window.SLOW)

    def _of(self, size: Window) -> int:
        in_flight = self._in_flight
        expected = in_flight.expected + in_flight.recalled
        return window_of(
            size, self._settings, planned=len(in_flight.planned), expected=expected, replays=self.replay_is_open
        )

    def begin_replay(self, epoch: int) -> None:
        """Return to slow windows, for an epoch that the in-flight table expects."""
        self._replayed = epoch
        self.enter(Trigger.REPLAY)

    @property
    def replay_is_open(self) -> bool:
        """Whether the last replayed epoch is not committed yet."""
        return self._replayed in self._in_flight.planned.epochs

    def poll(self) -> None:
        """Give new sessions a slow window from now on, if a session is open."""
        if self._connections.windows:
            self.enter(Trigger.UNPROVEN)

    @property
    def total(self) -> int:
        """Unacknowledged messages that all open sessions together may hold."""
        return sum(self._connections.windows.values())

    def unacked_in(self, session: int) -> int:
        """Count the unacknowledged deliveries of an open session, including skipped deliveries."""
        return self._in_flight.unacked_in(session) + self._deliveries.skipped_in(session)

    def _taken(self) -> dict[int, int]:
        """Sessions with a full window, and their windows."""
        windows = self._connections.windows
        return {session: window for session, window in windows.items() if self.unacked_in(session) >= window}

    @property
    def blocked(self) -> bool:
        """Whether no more messages can arrive.

        This is so if every window is full. It is also so if some windows are full, messages may wait, and no other
        session has ever received a message, because a single active consumer leaves nothing to other consumers.
        """
        taken = self._taken()
        others = self._connections.windows.keys() - taken
        waits = all(self._connections.depths())
        return bool(taken) and (not others or (waits and not any(self._deliveries.taken_in[one] for one in others)))

    def double_taken(self, missing: int) -> bool:
        """Double the full windows, because they do not include the missing messages; return whether any was full."""
        taken = self._taken()
        for session, window in taken.items():
            _LOG.warning(
                "%s: %d planned messages are not among the first %d delivered; asking for more",
                self._settings.endpoint.destination, missing, window,
            )  # fmt: skip
            self._connections.set_window(session, 2 * window, strictly=True)
        return bool(taken)
