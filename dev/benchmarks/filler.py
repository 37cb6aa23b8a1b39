"""A producer for large backlogs of RabbitMQ: `python -m benchmarks.filler`.

Its arguments are URL QUEUE BYTES HEADERS IDS CORRELATED MESSAGES. Persistent messages with random UUIDs as IDs,
confirmed. HEADERS is `yes` or `no`, and so are IDS, without which each body is another one, and CORRELATED, for UUIDs
as correlation IDs, too. It ends by itself.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator

from benchmarks.contenders import Shape
from testbed.publishers.amqp091 import publish_confirmed

__all__ = ["FILL_RATE_MIN", "HEADERS", "bodies", "command", "ids"]

#: What applications put there: short texts, a number as text.
HEADERS = {"tenant": "north-7", "trace-id": "4bf92f3577b34da6a3ce929d0e0e4736", "schema": "order.v3", "attempt": "1",
           "source": "checkout-service", "region": "eu-central-1"}  # fmt: skip
#: Messages a second that a producer manages on a busy machine.
FILL_RATE_MIN = 4_000


def command(url: str, queue: str, shape: Shape, messages: int, *, correlated: bool) -> list[str]:
    """What runs it."""
    flags = ["yes" if flag else "no" for flag in (shape.headers, shape.ids, correlated)]
    return [sys.executable, "-m", "benchmarks.filler", url, queue, str(shape.body_bytes), *flags, str(messages)]


def bodies(shape: Shape, messages: int) -> Iterator[bytes]:
    """The same one so many times; of messages without IDs each begins with a random UUID."""
    size = shape.body_bytes
    body = os.urandom(size // 2).hex().encode().ljust(size, b".")
    if shape.ids:
        return (body for _ in range(messages))
    return (uuid.uuid4().hex.encode() + body[32:] for _ in range(messages))


def ids(shape: Shape, messages: int) -> Iterator[str | None]:
    """Random UUIDs, or none."""
    return (str(uuid.uuid4()) if shape.ids else None for _ in range(messages))


def main(url: str, queue: str, size: int, headers: bool, has_ids: bool, correlated: bool, messages: int) -> None:
    """Publish; returns when all are confirmed."""
    import pika

    shape = Shape(size, headers, ids=has_ids)
    fixed = {"delivery_mode": 2, "headers": HEADERS if headers else None}
    told = (
        (body, pika.BasicProperties(message_id=key, correlation_id=key if correlated else None, **fixed))
        for body, key in zip(bodies(shape, messages), ids(shape, messages), strict=True)
    )
    publish_confirmed(pika.URLParameters(url), queue, told, timeout_s=60 + messages / FILL_RATE_MIN)


if __name__ == "__main__":
    has_headers, has_ids, correlated = (word == "yes" for word in sys.argv[4:7])
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), has_headers, has_ids, correlated, int(sys.argv[7]))
