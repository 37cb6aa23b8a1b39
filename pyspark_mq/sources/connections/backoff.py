"""Decides how long to wait before the next attempt to connect, and when to give up (rule 13)."""

from __future__ import annotations

import logging

from pyspark_mq.errors import BrokerError, BrokerUnavailableError, MqError
from pyspark_mq.sources.connections.session import SessionLostError
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.wire.connection import ENDS_MAX
from pyspark_mq.wire.endpoint import Endpoint

__all__ = ["Backoff"]

_LOG = logging.getLogger("pyspark_mq")

#: Shortest and longest pause between attempts to connect. Each pause is twice the previous pause, and has jitter, so
#: that not all clients return to a restarted broker at once.
_BACKOFF_FIRST_S = 0.1
_BACKOFF_LAST_S = 5.0
#: Pause after a session in which the broker confirmed something. It only has to be long enough to avoid a busy loop,
#: because on an unstable network it is added to each reconnect.
_GOOD_REST_S = 0.02
#: If `_IDLE_ENDS` idle sessions have ended, each after less than `_IDLE_LIMIT_S`, a proxy or a load balancer probably
#: ended them, or the broker did because a message took too long.
_IDLE_ENDS, _IDLE_LIMIT_S = 3, 3_600.0


class Backoff:
    """Computes the pause before the next session of one connection, and decides when to give up.

    By rule 13 a session was successful if the broker has confirmed something in it. Each other session that ends after
    it has received messages adds one to their delivery counts, which may reach a delivery limit. So the pause before
    the next session doubles each time, and if the broker ends many sessions in a row, the query fails. All reasons that
    the broker states count, even if their texts differ: they contain names of connections and processes, so the texts
    for one cause differ, too.

    Attributes:
        first: whether no session has been opened yet.
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
        """Longest time in seconds without a session: `connectTimeout` at first, and then `reconnectTimeout`."""
        return self._endpoint.connect_timeout_s if self.first else self._endpoint.reconnect_timeout_s

    def succeeded(self) -> None:
        """Record that a session was successful: the broker has confirmed something in it."""
        self._ends = 0

    def idle(self, lived_s: float) -> int:
        """Record that a session has ended that received no messages.

        Such an end does not count as a failure, because the broker has answered, but the pause is not reset. A proxy or
        a load balancer may end idle connections. After some such ends, a warning about this is logged once.

        Args:
            lived_s: duration of the session in seconds.

        Returns:
            the level of :mod:`logging` for log lines about the end of the session.
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

    def interrupted(self, lived_s: float, partial_bytes: int) -> None:
        """Record that a session has ended while its first message was arriving. The broker counts this as a delivery.

        RabbitMQ closes a connection on which it cannot send for `tcp_listen_options.send_timeout`: a heartbeat or the
        next message waits behind one that takes longer than that. So each session may end in the same way.

        Args:
            lived_s: duration of the session in seconds.
            partial_bytes: number of bytes of the message that had arrived.

        Raises:
            BrokerError: too many sessions in a row have ended in this way.
        """
        self._ends += 1
        text = (
            f"{self._endpoint.destination}: {self._ends} connections in a row have ended while a message was arriving, "
            f"the last after {lived_s:.0f} s and {partial_bytes:,} bytes of the message. If the broker's log says that "
            "sending timed out, the message takes longer than the broker allows: raise its limit (RabbitMQ: "
            "'tcp_listen_options.send_timeout', or 'stomp.tcp_listen_options.send_timeout' for STOMP)"
        )
        if self._ends >= ENDS_MAX:
            raise BrokerError(
                f"{text}. No message is lost: the messages stay in the queue. But each end of a session counts towards "
                "delivery limits, so the query stops here"
            )
        if self._ends == _IDLE_ENDS:
            _LOG.warning("%s", text)

    def reset_s(self) -> float:
        """Forget earlier failures, after a successful or a long session. Return the shortest pause.

        The pause is not zero, because a broker may end each session a moment after it has confirmed something.
        """
        self._since_s, self._next_s = None, _BACKOFF_FIRST_S
        return _GOOD_REST_S * self._runtime.jitter()

    def rest_s(self, problem: Exception, since_s: float, level: int = logging.WARNING) -> float:
        """Return the pause in seconds before the next attempt, and log why the last attempt failed.

        Args:
            problem: the error of the last attempt.
            since_s: time when that attempt began.
            level: level of the log line.

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
                f"({', '.join(map(str, self._endpoint.urls))}); last problem: {_error_text(problem)}. No message is "
                "lost: unacknowledged messages stay in the queue. Restart the query when the broker is available "
                f"again, or raise '{option}'"
            )
            raise BrokerUnavailableError(text) from problem
        _LOG.log(level, "%s; retrying in %.1f s", _error_text(problem), pause_s)
        return pause_s

    def record_refusal(self, problem: SessionLostError) -> None:
        """Record the end of a session that may have received messages, and in which the broker confirmed nothing.

        The end counts only if the broker has stated a reason, because the next session may end for the same reason.
        Network faults do not count, because they may end any number of sessions.

        Raises:
            BrokerError: the broker has ended too many sessions in a row.
        """
        if not problem.stated:
            return
        self._ends += 1
        if self._ends >= ENDS_MAX:
            raise BrokerError(
                f"{self._endpoint.destination}: the broker ended {self._ends} sessions in a row before it confirmed "
                f"anything, the last with: {problem}. No message is lost: the messages stay in the queue. But each end "
                "of a session counts towards delivery limits, so the query stops here. If the broker cannot deliver a "
                f"message over {self._endpoint.protocol}, the broker's log says why: remove that message, or read the "
                "queue with another 'protocol'"
            ) from problem


def _error_text(problem: Exception) -> str:
    """Return the text of an error, without its short name in brackets, so that another error can quote it."""
    return problem.text if isinstance(problem, MqError) else str(problem)
