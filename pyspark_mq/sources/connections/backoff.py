"""Delays between failed attempts, and when to give up (rule 13)."""

from __future__ import annotations

import logging

from pyspark_mq.errors import BrokerError, BrokerUnavailableError, MqError
from pyspark_mq.sources.connections.session import SessionLostError
from pyspark_mq.sources.endpoint import Endpoint
from pyspark_mq.sources.runtime import Runtime

__all__ = ["Backoff"]

_LOG = logging.getLogger("pyspark_mq")

#: Shortest and longest pause between attempts to connect. Each pause is twice the previous pause, and has jitter, so
#: that not all clients return to a restarted broker at once.
_BACKOFF_FIRST_S = 0.1
_BACKOFF_LAST_S = 5.0
#: Pause after a good session: just enough to avoid spinning, because a flapping link pays this pause every time.
_GOOD_REST_S = 0.02
#: Most consecutive sessions that the broker ends for a stated reason with nothing confirmed. This is about half the
#: delivery limit of quorum queues in RabbitMQ 4 (20), and one less than the limit of Artemis (10), because deliveries
#: before ours count, too.
_ENDS_MAX = 9
#: So many ends of idle sessions look like the limit of a proxy or a load balancer, if none lasted this long.
_IDLE_ENDS, _IDLE_LIMIT_S = 3, 3_600.0


class Backoff:
    """Delays between failed attempts, and when to give up.

    Rule 13: a session was good if something was confirmed in it. Each session that ends after receiving messages adds
    one to their delivery counts, which count towards delivery limits. So the delay before the next session doubles; if
    the broker ends session after session, the query fails. The broker's reasons are not compared with each other,
    because they contain names of connections and processes, so the same cause gives different texts.

    Attributes:
        first: True until a session has been opened.
    """

    first = True

    def __init__(self, endpoint: Endpoint, runtime: Runtime) -> None:
        self._endpoint = endpoint
        self._runtime = runtime
        self._since_s: float | None = None
        self._next_s = _BACKOFF_FIRST_S
        self._ends = 0
        self._idle_ends = 0

    @property
    def patience_s(self) -> float:
        """Longest time without a session, in seconds."""
        return self._endpoint.connect_timeout_s if self.first else self._endpoint.reconnect_timeout_s

    def succeeded(self) -> None:
        """Record a good session."""
        self._ends = 0

    def idle(self, lived_s: float) -> int:
        """Record a session that received nothing: a broker was there. The delays stay as they are.

        A proxy or a load balancer may end every idle connection. After some ends the log says so, once.

        Args:
            lived_s: duration of the session, in seconds.

        Returns:
            int: the level of :mod:`logging` for messages about the end.
        """
        self._since_s = None
        self._idle_ends += lived_s < _IDLE_LIMIT_S
        if self._idle_ends < _IDLE_ENDS or lived_s >= _IDLE_LIMIT_S:
            return logging.WARNING
        if self._idle_ends == _IDLE_ENDS:
            _LOG.warning(
                "%s: %d connections have ended while no message came, the last after %.0f s. The source reconnects "
                "each time. If a proxy or a load balancer ends idle connections, set 'heartbeat' (now %gs) "
                "below its limit. Further ends of this kind are logged at level INFO",
                self._endpoint.destination,
                self._idle_ends,
                lived_s,
                self._endpoint.heartbeat_s,
            )
        return logging.INFO

    def reset_s(self) -> float:
        """Forget earlier failures, after a good or a long session; return the shortest delay.

        The shortest delay is not zero, because a broker may end each session a moment after its confirmation.
        """
        self._since_s, self._next_s = None, _BACKOFF_FIRST_S
        return _GOOD_REST_S * self._runtime.jitter()

    def rest_s(self, problem: Exception, since_s: float, level: int = logging.WARNING) -> float:
        """Return the pause before the next attempt, in seconds.

        Args:
            problem: why the last attempt failed.
            since_s: time when that attempt began.
            level: of the message that is logged.

        Raises:
            BrokerUnavailableError: attempts have failed for too long.
        """
        self._since_s = since_s if self._since_s is None else self._since_s
        pause_s = self._next_s * self._runtime.jitter()
        self._next_s = min(self._next_s * 2, _BACKOFF_LAST_S)
        if self._runtime.monotonic_s() + pause_s - self._since_s > self.patience_s:
            option = "connectTimeout" if self.first else "reconnectTimeout"
            text = (
                f"{self._endpoint.destination}: no broker could be used within {option}={self.patience_s:g}s "
                f"({', '.join(map(str, self._endpoint.urls))}); last problem: {_error_text(problem)}. Nothing is lost: "
                "unacknowledged messages stay in the queue. Restart the query when the broker is back, or raise "
                f"'{option}'"
            )
            raise BrokerUnavailableError(text) from problem
        _LOG.log(level, "%s; retrying in %.1f s", _error_text(problem), pause_s)
        return pause_s

    def record_refusal(self, problem: SessionLostError) -> None:
        """Record a session that received, or may have received, messages and ended with nothing confirmed.

        Only ends for which the broker states a reason count, because the reason will hold for the next session, too.
        Network faults may hit any number of sessions.

        Raises:
            BrokerError: the broker has ended too many sessions in a row.
        """
        if not problem.stated:
            return
        self._ends += 1
        if self._ends >= _ENDS_MAX:
            raise BrokerError(
                f"{self._endpoint.destination}: the broker ended {self._ends} sessions in a row before anything was "
                f"confirmed, the last with: {problem}. Nothing is lost: the messages stay in the queue. But each end "
                "counts towards delivery limits, so the query stops here. If the broker cannot deliver a message over "
                f"{self._endpoint.protocol}, the broker's log says why: remove that message, or read the queue with "
                "another 'protocol'"
            ) from problem


def _error_text(problem: Exception) -> str:
    """Return an error's text for quoting, without its short name: the error that quotes it has a short name, too."""
    return problem.text if isinstance(problem, MqError) else str(problem)
