"""stomp.py without its sockets and threads: it only writes frames; the session sends them."""

from __future__ import annotations

import math
import re

from stomp.transport import BaseTransport

from pyspark_mq.sources.url import BrokerUrl

__all__ = ["Transport", "heart_beats"]

#: Milliseconds between the heartbeats of each side (STOMP 1.2, "Heart-beating").
_HEART_BEAT = re.compile(r" *([0-9]{1,10}) *, *([0-9]{1,10}) *")
#: How much silence to tolerate, in heartbeat intervals: a little more than two missed heartbeats.
_SILENCE = 2.5
#: Heartbeats are sent at half the agreed interval, because brokers differ in how late a heartbeat may be.
_SEND_FACTOR = 0.5


class Transport(BaseTransport):  # type: ignore[misc]
    """A transport for stomp.py that appends frames to the outgoing bytes. Never blocks."""

    def __init__(self, host: str, url: BrokerUrl, outgoing: bytearray) -> None:
        super().__init__(auto_decode=False)
        self.vhost = host
        self.current_host_and_port = (url.host, url.port)
        self._outgoing = outgoing

    def send(self, encoded_frame: bytes) -> None:
        self._outgoing += encoded_frame


def heart_beats(written: str, ours_s: float) -> tuple[float, float] | None:
    """Return the interval at which to send, and the longest silence of the broker, in seconds; infinity for none.

    Args:
        written: header `heart-beat` of CONNECTED.
        ours_s: our offer for both directions.

    Returns:
        None if the header is malformed.
    """
    beats = _HEART_BEAT.fullmatch(written)
    if beats is None:
        return None
    sends_ms, wants_ms = map(int, beats.groups())
    # The slower side decides.
    send_s = max(ours_s, wants_ms / 1000) * _SEND_FACTOR if wants_ms else math.inf
    return send_s, max(ours_s, sends_ms / 1000) * _SILENCE if sends_ms else math.inf
