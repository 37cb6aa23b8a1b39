"""stomp.py without its sockets and threads: it writes frames, and others send them."""

from __future__ import annotations

from stomp.transport import BaseTransport

from pyspark_mq.sources.url import BrokerUrl

__all__ = ["Transport"]


class Transport(BaseTransport):  # type: ignore[misc]
    """A transport for stomp.py that adds what it writes to the bytes to be sent. Never waits."""

    def __init__(self, host: str, url: BrokerUrl, outgoing: bytearray) -> None:
        super().__init__(auto_decode=False)
        self.vhost = host
        self.current_host_and_port = (url.host, url.port)
        self._outgoing = outgoing

    def send(self, encoded_frame: bytes) -> None:
        self._outgoing += encoded_frame
