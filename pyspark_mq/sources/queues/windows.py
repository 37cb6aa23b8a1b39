"""The windows of a queue: how many unacknowledged messages each session may be handed. One table decides.

Each end of a session counts towards the delivery limit of everything that was handed out, so a job that crashes at
once, again and again, should not age its whole queue: it starts with a slow window, until an epoch is committed.
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

__all__ = ["EPOCHS_IN_WINDOW", "WINDOWS", "Trigger", "Window", "Windows", "window_of"]

_LOG = logging.getLogger("pyspark_mq")

#: Epochs that share a window, and its least messages: one runs, or waits to be acknowledged, while the next is filled.
EPOCHS_IN_WINDOW = 2
#: Until the first epoch after a restart is committed, besides what is expected again.
_FEW = 2_000
#: Handed out to a replay besides its epoch, for what comes in between.
_REPLAY_SPARE = 100


class Window(Enum):
    """A size of a window."""

    SLOW = "slow"  #: nothing proves that this process gets anywhere; of a replay, what its epoch needs
    WIDE = "wide"  #: option `prefetch`
    SHARED = "shared"  #: room for an epoch that waits and the next one, whatever their sizes


class Trigger(Enum):
    """What changes windows."""

    UNPROVEN = "unproven"  #: a former process may have been; or a session is open, and another one follows its end
    REPLAY = "replay"  #: an epoch that a former process left open is expected
    NO_CRASH_LOOP = "no crash loop"  #: there was no former process, or all that it planned is committed
    COMMITTED = "committed"  #: an epoch of this process is
    WITHOUT_START = "without_start"  #: Spark before 4.2 plans an epoch before it shows that the one before is committed


#: Moment -> the window of sessions to be opened, and what those that are open have at least. None leaves it.
WINDOWS: Mapping[Trigger, tuple[Window | None, Window | None]] = MappingProxyType(
    {
        # A session that is open has enough to begin with: what comes again is acknowledged on sight.
        Trigger.UNPROVEN: (Window.SLOW, None),
        Trigger.REPLAY: (Window.SLOW, Window.SLOW),
        Trigger.NO_CRASH_LOOP: (Window.WIDE, Window.WIDE),
        # Before the acknowledgements make room: where a wider window is a new consumer, nothing is on its way then.
        Trigger.COMMITTED: (None, Window.WIDE),
        Trigger.WITHOUT_START: (None, Window.SHARED),
    }
)


def window_of(size: Window, settings: Settings, *, planned: int, expected: int, replays: bool) -> int:
    """Return the window of one session, in messages.

    Args:
        planned: messages of open epochs, in all sessions together.
        expected: the same, and those that are acknowledged and not settled.
        replays: an epoch of a former process is open. Until it is committed a session is handed what that needs, or a
            few, and not both: what makes it fail again and again should age little else.
    """
    if size is Window.SHARED:
        return EPOCHS_IN_WINDOW
    window = settings.prefetch
    if size is Window.WIDE:
        return window
    if settings.endpoint.broker.counts_drops:
        # No fewer for a small epoch: a quorum queue puts what comes back after what has come back before, so that
        # epoch may come after all that its former processes were handed (RabbitMQ 3.10).
        few = max(_FEW, planned + _REPLAY_SPARE) if replays else max(_FEW, settings.min_messages) + expected
        window = min(window, math.ceil(few / settings.consumers))
    # An epoch comes again whole, whatever the prefetch is by now.
    return max(window, math.ceil(planned / settings.consumers))


class Windows:
    """Keeps the sessions of one queue to the table."""

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
        """Change what the table changes at a moment."""
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
        """Start slowly again, for an epoch that the in-flight table expects by now."""
        self._replayed = epoch
        self.enter(Trigger.REPLAY)

    @property
    def replay_is_open(self) -> bool:
        """Whether the epoch that was replayed last is not committed yet."""
        return self._replayed in self._in_flight.planned.epochs

    def poll(self) -> None:
        """Have whatever is opened from now on start slowly, if a session is open."""
        if self._connections.windows:
            self.enter(Trigger.UNPROVEN)

    @property
    def total(self) -> int:
        """Unacknowledged messages that all open sessions together may be handed."""
        return sum(self._connections.windows.values())

    @property
    def next_total(self) -> int:
        """Unacknowledged messages that all sessions which are to be opened may be handed."""
        return self._connections.first_window * self._settings.consumers

    def unacked_in(self, session: int) -> int:
        """Count the deliveries of an open session that nobody has acknowledged, with those that were skipped."""
        return self._in_flight.unacked_in(session) + self._deliveries.skipped_in(session)

    def _taken(self) -> dict[int, int]:
        """Sessions that may be handed no more, and their windows."""
        windows = self._connections.windows
        return {session: window for session, window in windows.items() if self.unacked_in(session) >= window}

    @property
    def blocked(self) -> bool:
        """Whether nothing can come any more.

        Every window is taken; or some are, something may wait, and no other session has ever been handed anything:
        next to a single active consumer the others get nothing.
        """
        taken = self._taken()
        others = self._connections.windows.keys() - taken
        waits = all(self._connections.depths())
        return bool(taken) and (not others or (waits and not any(self._deliveries.taken_in[one] for one in others)))

    def double_taken(self, missing: int) -> bool:
        """Ask for more where nothing that was handed out is one of the missing messages; whether that was so."""
        taken = self._taken()
        for session, window in taken.items():
            _LOG.warning(
                "%s: %d planned messages are not among the first %d handed out; asking for more",
                self._settings.endpoint.destination, missing, window,
            )  # fmt: skip
            self._connections.set_window(session, 2 * window, strictly=True)
        return bool(taken)
