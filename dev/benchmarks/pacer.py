"""Publishes at a steady rate: `python -m benchmarks.pacer URL QUEUE RATE SECONDS`.

Each body is the moment at which its message was given to the client, in microseconds since 1970. Over AMQP 0-9-1,
persistent, without waiting for confirmations. It ends by itself; what it could not keep up with it says on standard
error.
"""

from __future__ import annotations

import sys
import time
import uuid

#: Being later than this at the end means that it was not the rate that was asked for.
_LATE_S = 0.5


def publish(url: str, queue: str, rate: float, seconds: float) -> None:
    """So many a second, evenly, for so long."""
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    began = time.monotonic()
    for number in range(round(rate * seconds)):
        left_s = began + number / rate - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        properties = pika.BasicProperties(message_id=str(uuid.uuid4()), delivery_mode=2)
        channel.basic_publish("", queue, str(time.time_ns() // 1000).encode(), properties)
    late_s = time.monotonic() - began - seconds
    if late_s > _LATE_S:
        print(f"publishing {rate:g} a second took {late_s:.1f} s longer than it should", file=sys.stderr, flush=True)
    connection.close()


if __name__ == "__main__":
    publish(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
