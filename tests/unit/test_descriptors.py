"""Descriptors: what is opened for a session is closed, however early it fails."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from pyspark_mq.errors import MqError
from pyspark_mq.sources.connections.protocols import session_class
from pyspark_mq.sources.connections.session import ReceiveBuffer
from pyspark_mq.spark_source.options import parse_options

PLACES = {
    "amqp-0-9-1": ("rabbitmq", "amqp://127.0.0.1:1"),
    "amqp-1.0": ("artemis", "amqp://127.0.0.1:1"),
    "stomp": ("artemis", "stomp://127.0.0.1:1"),
}


def opened() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("protocol", PLACES)
def test_an_attempt_that_fails_before_it_connects_leaves_no_descriptors(protocol: str, tmp_path: Path) -> None:
    broker, url = PLACES[protocol]
    secret = tmp_path / "secret"
    secret.write_text("x")
    options = {"broker": broker, "url": url, "queue": "q", "username": "me", "passwordFile": str(secret)}
    endpoint = parse_options({**options, "protocol": protocol}).settings.endpoint
    secret.unlink()  # it is being replaced
    make = session_class(protocol)
    gc.collect()
    gc.disable()
    try:
        before = opened()
        kept = []
        for number in range(5):
            consumer = make(endpoint, number, ReceiveBuffer())
            kept.append(consumer)
            with pytest.raises(MqError):
                consumer.open(endpoint.urls[0], 1)
            consumer.close()
        assert opened() == before
    finally:
        gc.enable()
