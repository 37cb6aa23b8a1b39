"""Uses stomp.py without its sockets and threads: stomp.py only builds frames, and the session sends them."""

from __future__ import annotations

import math
import re

from stomp.transport import BaseTransport

from pyspark_mq.wire.url import BrokerUrl

__all__ = ["Transport", "heart_beats"]

#: Header `heart-beat`: two numbers of milliseconds between heartbeats, for each direction (STOMP 1.2, "Heart-beating").
_HEART_BEAT = re.compile(r" *([0-9]{1,10}) *, *([0-9]{1,10}) *")
#: For how many heartbeat intervals the broker may be silent before the connection counts as lost.
_SILENCE = 2.5
#: Heartbeats are sent at half the agreed interval, because brokers differ in how late a heartbeat may be.
_SEND_FACTOR = 0.5


class Transport(BaseTransport):  # type: ignore[misc]
    """A transport for stomp.py that only appends each frame to a buffer of outgoing bytes, so it never blocks."""

    def __init__(self, host: str, url: BrokerUrl, outgoing: bytearray) -> None:
        super().__init__(auto_decode=False)
        self.vhost = host
        self.current_host_and_port = (url.host, url.port)
        self._outgoing = outgoing

    def send(self, encoded_frame: bytes) -> None:
        self._outgoing += encoded_frame


def heart_beats(written: str, ours_s: float) -> tuple[float, float] | None:
    """Determine the heartbeat intervals to which both sides have agreed.

    Args:
        written: header `heart-beat` of the broker's frame CONNECTED.
        ours_s: the interval in seconds that the session has proposed for both directions.

    Returns:
        the seconds between heartbeats that the session sends, and the seconds for which the broker may be silent, each
        of them infinite if there are no heartbeats in this direction. None if the header is malformed.
    """
    beats = _HEART_BEAT.fullmatch(written)
    if beats is None:
        return None
    sends_ms, wants_ms = map(int, beats.groups())
    # The longer of the intervals that both sides propose applies.
    send_s = max(ours_s, wants_ms / 1000) * _SEND_FACTOR if wants_ms else math.inf
    return send_s, max(ours_s, sends_ms / 1000) * _SILENCE if sends_ms else math.inf
