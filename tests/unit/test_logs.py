"""What client libraries log: nothing of what they do for this package, all of what they do for others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

import pyspark_mq.sources.amqp091.session
import pyspark_mq.sources.stomp.session  # noqa: F401 - imported for what it does to the loggers
from pyspark_mq.sources.runtime import begin_thread


def in_thread(name: str, work: Callable[[], None]) -> None:
    if name.startswith("pyspark-mq"):
        begin_thread(name, work, lambda error: None).join(10)  # noqa: ARG005
        return
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join(10)


@pytest.mark.parametrize("logger", ["pika", "pika.connection", "stomp.py"])
def test_a_library_is_heard_by_others_of_the_process(logger: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger):
        in_thread("somebody", lambda: logging.getLogger(logger).warning("of theirs"))
        in_thread("pyspark-mq supervisor", lambda: logging.getLogger(logger).error("of ours"))
    assert [record.message for record in caplog.records] == ["of theirs"]
