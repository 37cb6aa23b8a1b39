"""The prefetch windows of a queue: how many unacknowledged messages each session may hold. A table decides.

Some brokers count the end of a session as a failed delivery of all messages that the session held, and dead-letter a
message after a number of deliveries. If a job crashes again and again soon after its start, this must not happen to all
messages of its queue. So a process keeps a small ("slow") window until it has proved that it makes progress.
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
from pyspark_mq.sources.settings import Settings

__all__ = ["WINDOWS", "Trigger", "Window", "Windows", "window_of"]

_LOG = logging.getLogger("pyspark_mq")

#: Size of a slow window, in addition to the messages that are expected to be redelivered.
_FEW = 2_000
#: Number of messages by which the window of a replay is larger than its epoch, because other messages may be delivered
#: between the planned ones.
_REPLAY_SPARE = 100


class Window(Enum):
    """The sizes of a window, which is the number of unsettled deliveries that the broker may have sent to a session."""

    SLOW = "slow"  #: a small window, until this process has made progress; at least as large as a replay's epoch
    EPOCH = "epoch"  #: the messages of one epoch
    WIDE = "wide"  #: option `prefetch`


class Trigger(Enum):
    """An event that changes the sizes of windows."""

    UNPROVEN = "unproven"  #: there may have been a former process; or a session follows a session that ended
    REPLAY = "replay"  #: an open epoch of a former process is expected
    NO_CRASH_LOOP = "no crash loop"  #: there was no former process, or all its epochs are committed
    #: Like NO_CRASH_LOOP, but the run may have a single epoch, and returns the other messages when it ends.
    ONE_EPOCH = "one epoch"
    COMMITTED = "committed"  #: an epoch of this process is committed


#: Trigger -> the window that new sessions get, and the minimum window of open sessions. None means no change.
WINDOWS: Mapping[Trigger, tuple[Window | None, Window | None]] = MappingProxyType(
    {
        # The window of an open session is large enough, because redeliveries in it are acknowledged at once or with the
        # next epoch.
        Trigger.UNPROVEN: (Window.SLOW, None),
        Trigger.REPLAY: (Window.SLOW, Window.SLOW),
        Trigger.NO_CRASH_LOOP: (Window.WIDE, Window.WIDE),
        Trigger.ONE_EPOCH: (Window.EPOCH, Window.EPOCH),
        # Widen windows before acknowledgements are sent. Over some protocols a wider window needs a new consumer, which
        # must be there before the broker delivers more messages to the old one.
        Trigger.COMMITTED: (None, Window.WIDE),
    }
)


def window_of(size: Window, settings: Settings, *, planned: int, expected: int, replays: bool) -> int:
    """Return the window of one session, as a number of messages.

    Args:
        size: which of the sizes of a window to compute.
        settings: the query's settings, with this queue as the endpoint.
        planned: number of messages in epochs that are planned but not committed, over all sessions.
        expected: `planned` plus the number of messages that are acknowledged but not settled, including those of the
            former process.
        replays: whether an epoch that a former process planned is not committed yet. Until its commit, the window has
            the size of this epoch or of a slow window, whichever is larger, but not the sum of both. So repeated
            failures count as deliveries of only a few messages besides those of the epoch.
    """
    window = settings.prefetch
    if size is Window.WIDE:
        return window
    if settings.endpoint.broker.counts_session_ends:
        # A smaller window would not be enough, even if the epoch is small: a quorum queue delivers returned messages in
        # the order in which they were returned, so all other messages that former processes held may come before those
        # of the epoch (RabbitMQ 3.10).
        if replays:
            few = max(_FEW, planned + _REPLAY_SPARE)
        else:
            few = expected + (settings.max_messages if size is Window.EPOCH else max(_FEW, settings.min_messages))
        window = min(window, math.ceil(few / settings.consumers))
    # All messages of a planned epoch must fit into the windows, even if option `prefetch` is smaller now.
    return max(window, math.ceil(planned / settings.consumers))


class Windows:
    """Applies the table :data:`WINDOWS` to the sessions of one queue."""

    def __init__(self, settings: Settings, in_flight: InFlightTable[Any], connections: Connections) -> None:
        self._settings = settings
        self._in_flight = in_flight
        self._connections = connections
        self._replayed = 0
        self.enter(Trigger.UNPROVEN)

    def enter(self, trigger: Trigger) -> None:
        """Change the windows of new and open sessions as :data:`WINDOWS` says for this trigger."""
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
        """Set small ("slow") windows, because a replay waits for the messages of this epoch."""
        self._replayed = epoch
        self.enter(Trigger.REPLAY)

    @property
    def replay_is_open(self) -> bool:
        """Whether the epoch that was replayed last is not committed yet."""
        return self._replayed in self._in_flight.planned.epochs

    def poll(self) -> None:
        """If a session is open, let later sessions begin with a small ("slow") window. Called regularly."""
        if self._connections.windows:
            self.enter(Trigger.UNPROVEN)

    @property
    def total(self) -> int:
        """Maximum number of unacknowledged messages that all open sessions may hold together."""
        return sum(self._connections.windows.values())

    def unacked_in(self, session: int) -> int:
        """Return the number of unacknowledged deliveries of an open session, including those that a replay skipped."""
        return self._in_flight.unacked_in(session) + self._connections.live[session].skipped

    def _taken(self) -> dict[int, int]:
        """Return a dict: number of each session whose window is full -> its window."""
        windows = self._connections.windows
        return {session: window for session, window in windows.items() if self.unacked_in(session) >= window}

    @property
    def blocked(self) -> bool:
        """Whether the broker cannot deliver more messages until some are acknowledged.

        True if the windows of all sessions are full. Also True if some windows are full, the queue is not known to be
        empty, and the other sessions have never received a message: the queue then has a single active consumer.
        """
        taken = self._taken()
        others = self._connections.windows.keys() - taken
        waits = all(self._connections.depths())
        served = any(self._connections.live[one].deliveries for one in others)
        return bool(taken) and (not others or (waits and not served))

    def double_taken(self, missing: int) -> bool:
        """Double the windows that are full, because the missing messages are not in them.

        Returns:
            whether any window was full.
        """
        taken = self._taken()
        for session, window in taken.items():
            _LOG.warning(
                "%s: %d planned messages are not among the first %d delivered; asking for more",
                self._settings.endpoint.destination, missing, window,
            )  # fmt: skip
            self._connections.set_window(session, 2 * window, strictly=True)
        return bool(taken)
