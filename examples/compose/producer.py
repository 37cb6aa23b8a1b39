"""Ten orders a second into the queue `orders`, each with an ID of its own, until it is stopped.

    python examples/compose/producer.py HOST PORT USER PASSWORD_FILE

It declares the queue.
"""

from __future__ import annotations

import json
import sys
import uuid
from itertools import count
from pathlib import Path

import pika


def main(host: str, port: str, user: str, password_file: str) -> None:
    """Declare the queue and publish, each message confirmed before the next."""
    login = pika.PlainCredentials(user, Path(password_file).read_text("utf-8").strip())
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port), credentials=login))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    for number in count():
        properties = pika.BasicProperties(message_id=str(uuid.uuid4()), delivery_mode=2)
        channel.basic_publish("", "orders", json.dumps({"id": number, "item": f"order {number}"}), properties)
        connection.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
