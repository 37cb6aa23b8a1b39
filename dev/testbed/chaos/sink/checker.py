"""What is in the queue after a chaos test, read by bare clients, and the verdict. Nothing here is shared with the sink.

Each message read is moved to a second queue, as it is, for the source to read: ActiveMQ Classic hands no more than a
page of messages to a client that acknowledges none.
"""

from __future__ import annotations

import queue as threads
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from testbed.brokers.java import PASSWORD, USER

__all__ = ["SinkVerdict", "move", "verdict"]

_QUIET_S = 5.0
#: Times that each number is written.
_EACH = 2
_OF_DELIVERY = frozenset(
    {"message-id", "subscription", "ack", "redelivered", "destination", "content-length", "expires"}
)


def move(broker: str, protocol: str, url: str, queue: str, to: str) -> list[tuple[str, str]]:
    """Move all messages to another queue; the ID and the body of each."""
    if protocol == "amqp-0-9-1":
        return _by_pika(url, queue, to)
    if protocol == "amqp-1.0":
        prefix = "/queues/" if broker == "rabbitmq" else ""
        return _by_proton(url, prefix + queue, prefix + to, native=broker == "rabbitmq")
    prefix = "" if broker == "artemis" else "/queue/"
    return _by_stomp(url, prefix + queue, prefix + to)


def _by_pika(url: str, queue: str, to: str) -> list[tuple[str, str]]:
    import pika  # noqa: PLC0415 - one of three is used

    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    found = []
    for method, properties, body in channel.consume(queue, inactivity_timeout=_QUIET_S):
        if method is None:
            break
        found.append((properties.message_id, body.decode()))
        channel.basic_publish("", to, body, properties)
        channel.basic_ack(method.delivery_tag)
    connection.close()
    return found


def _by_proton(url: str, queue: str, to: str, *, native: bool) -> list[tuple[str, str]]:
    from proton import Timeout, symbol  # noqa: PLC0415
    from proton.reactor import ReceiverOption, SenderOption  # noqa: PLC0415
    from proton.utils import BlockingConnection  # noqa: PLC0415

    class Source(ReceiverOption):  # type: ignore[misc, unused-ignore]
        def apply(self, link: object) -> None:
            link.source.capabilities.put_object(symbol("queue"))  # type: ignore[attr-defined]

    class Target(SenderOption):  # type: ignore[misc, unused-ignore]
        def apply(self, link: object) -> None:
            link.target.capabilities.put_object(symbol("queue"))  # type: ignore[attr-defined]

    connection = BlockingConnection(url, allowed_mechs="PLAIN ANONYMOUS")
    receiver = connection.create_receiver(queue, credit=100, options=None if native else Source())
    sender = connection.create_sender(to, options=None if native else Target())
    found = []
    while True:
        try:
            message = receiver.receive(timeout=_QUIET_S)
        except Timeout:
            break
        own: dict[str, Any] = dict(message.properties or {})
        found.append((str(message.id if native else own["mq_id"]), str(message.body)))
        message.annotations = message.instructions = None
        sender.send(message)
        receiver.accept()
    connection.close()
    return found


def _by_stomp(url: str, queue: str, to: str) -> list[tuple[str, str]]:
    import stomp  # noqa: PLC0415

    arrived: threads.SimpleQueue[tuple[dict[str, str], str]] = threads.SimpleQueue()

    class Listener(stomp.ConnectionListener):  # type: ignore[misc, unused-ignore]
        def on_message(self, frame: object) -> None:
            arrived.put((frame.headers, frame.body))  # type: ignore[attr-defined]

    parts = urlsplit(url)
    connection = stomp.Connection12([(parts.hostname, parts.port)])
    connection.set_listener("", Listener())
    connection.connect(USER, PASSWORD, wait=True)
    kind = {"destination-type": "ANYCAST", "subscription-type": "ANYCAST"} if not queue.startswith("/") else {}
    connection.subscribe(queue, "1", ack="client-individual", headers=kind)
    found = []
    while True:
        try:
            headers, body = arrived.get(timeout=_QUIET_S)
        except threads.Empty:
            break
        found.append((headers["mq_id"], body))
        kept = {name: value for name, value in headers.items() if name not in _OF_DELIVERY}
        connection.send(to, body, headers={**kept, **kind, "persistent": "true"})
        connection.ack(headers["ack"])
    connection.disconnect(receipt="end")
    return found


@dataclass(frozen=True, slots=True)
class SinkVerdict:
    """What is wrong with a queue.

    Attributes:
        messages: all that were in it.
        lost: rows of committed batches that are not there.
        copies: messages whose ID another message with the same body has.
        other_ids: rows that are there with more IDs than they are rows.
        shared_ids: IDs of more than one body.
        unexpected: messages that are no row.
        lost_behind, twice_behind: rows that are missing, or there once too often, behind the source.
    """

    messages: int
    lost: int
    copies: int
    other_ids: int
    shared_ids: int
    unexpected: int
    lost_behind: int
    twice_behind: int

    @property
    def holds(self) -> bool:
        wrong = (self.lost, self.other_ids, self.shared_ids, self.unexpected, self.lost_behind, self.twice_behind)
        return self.messages > 0 and not any(wrong)


def verdict(found: Sequence[tuple[str, str]], behind: Iterable[str], committed: int, filling: str) -> SinkVerdict:
    """Checker a run.

    Args:
        found: ID and body of each message.
        behind: bodies of the rows that the source makes of them.
        committed: below it are the numbers whose batches Spark has committed. Others may be there as well.
        filling: of each body, behind its number.
    """
    ids, bodies = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for key, body in found:
        ids[body].add(key)
        bodies[key].add(body)
    wanted = [f"{number} {filling}" for number in range(committed)]
    rows = Counter(behind)
    return SinkVerdict(
        messages=len(found),
        lost=sum(max(0, _EACH - len(ids[body])) for body in wanted),
        copies=len(found) - len({*found}),
        other_ids=sum(max(0, len(some) - _EACH) for some in ids.values()),
        shared_ids=sum(len(some) > 1 for some in bodies.values()),
        unexpected=sum(
            not body.partition(" ")[0].isdecimal() or body.partition(" ")[2] != filling for _, body in found
        ),
        lost_behind=sum(max(0, _EACH - rows[body]) for body in wanted),
        twice_behind=sum(max(0, count - len(ids[body])) for body, count in rows.items()),
    )
