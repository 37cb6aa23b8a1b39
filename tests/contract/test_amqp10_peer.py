"""A broker that says of itself over AMQP 1.0 what cannot be read ends a session, and not the query."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from urllib.parse import urlsplit

import pytest

from pyspark_mq.brokers.base import AMQP_1_0
from pyspark_mq.errors import BrokerUnavailableError
from pyspark_mq.wire.url import parse_urls
from tests.support.entries import LiveEntry

pytestmark = [pytest.mark.contract("sessions that end"), pytest.mark.network, pytest.mark.protocols(AMQP_1_0)]


class Garbler:
    """Passes connections on to a broker, and in the first few makes a text that the broker says something else.

    Args:
        port: of the broker.
        text: what it says.
        times: in how many connections.
    """

    def __init__(self, port: int, text: bytes, times: int) -> None:
        self._port, self._text, self._left = port, text, times
        self.garbled = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                self._left -= 1
                broker = socket.create_connection(("127.0.0.1", self._port))
                self._open += [client, broker]
                threading.Thread(target=self._pump, args=(client, broker, self._left >= 0), daemon=True).start()

    def _pump(self, client: socket.socket, broker: socket.socket, garble: bool) -> None:
        with contextlib.suppress(OSError), client, broker:
            while True:
                for source in select.select([client, broker], [], [])[0]:
                    data = source.recv(65536)
                    if not data:
                        return
                    if garble and source is broker and self._text in data:
                        data = data.replace(self._text, b"\xff" * len(self._text))
                        self.garbled += 1
                    (broker if source is client else client).sendall(data)

    def close(self) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def said(entry: LiveEntry, what: str) -> bytes:
    """What the broker says when a connection opens."""
    with entry.session() as session:
        session.open()
        proton = session.consumer._connection.proton
        return str(proton.remote_container if what == "container-id" else proton.remote_properties[what]).encode()


@pytest.mark.parametrize("what", ["container-id", "product"])
def test_a_broker_whose_name_is_no_text_is_asked_again(entry: LiveEntry, what: str) -> None:
    if what == "container-id" and not entry.broker.amqp10.names_itself:
        pytest.skip("the broker's name is not read here")
    text = said(entry, what)
    garbler = Garbler(urlsplit(entry.url()).port or 0, text, times=3)
    url = entry.url().replace(f":{urlsplit(entry.url()).port}", f":{garbler.port}")
    try:
        with entry.session(urls=parse_urls(url)) as session, pytest.raises(BrokerUnavailableError, match="read"):
            session.open()
        sent = entry.publish(5)
        with entry.engine(url=url) as engine:
            emitted = engine.batch()
            while emitted < len(sent):
                emitted += engine.trigger()
        assert emitted == len(sent)
        assert garbler.garbled == 3
    finally:
        garbler.close()
