"""A receiver process: a thread worker that emits its events over a socket.

Two kinds of threads beside those of the keepers: the main thread carries out what the parent asks for, and the worker's
alone talks.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections import deque
from itertools import count

from pyspark_mq.sources.connections.block import use_little_memory
from pyspark_mq.sources.connections.events import Event, Progress
from pyspark_mq.sources.connections.parent import watch_parent
from pyspark_mq.sources.connections.processes.wire import Channel, Hello, send_event
from pyspark_mq.sources.connections.protocols import session_class
from pyspark_mq.sources.connections.thread_worker import ThreadWorker
from pyspark_mq.sources.runtime import Threads

__all__ = ["BOOT", "main"]

#: What the interpreter is started with: the parent's paths come first, then everything is imported as it is there.
BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from pyspark_mq.sources.connections.processes.child import main; main(int(sys.argv[1]))"
)


class _Forward(logging.Handler):
    """Log lines for the parent, kept until the worker's thread sends them."""

    def __init__(self) -> None:
        super().__init__()
        self.records: deque[logging.LogRecord] = deque()

    def emit(self, record: logging.LogRecord) -> None:
        # Arguments and tracebacks are text by now, see `pyspark_mq.logs`.
        record.stack_info = None
        self.records.append(record)


def main(descriptor: int) -> None:
    """Serve the parent at the other end of a socket, until it is gone."""
    # Ctrl-C goes to all processes of a terminal; this one ends with its parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch_parent()
    use_little_memory()
    channel = Channel(socket.socket(fileno=descriptor))
    first = channel.receive()
    if first is None:
        return
    hello: Hello = first.message
    forward = _Forward()
    log = logging.getLogger("pyspark_mq")
    log.setLevel(hello.log_level)
    log.addHandler(forward)
    log.propagate = False

    def emit(event: Event | Progress) -> None:
        try:
            while forward.records:
                channel.send(forward.records.popleft())
            send_event(channel, event)
        except OSError:
            # The parent is gone: the kernel closes the connections, and the broker takes its messages back at once.
            os._exit(0)

    # All processes of a machine share that clock.
    worker = ThreadWorker(session_class, hello.schema, emit, Threads(), time.monotonic, count(hello.first_session))
    while (frame := channel.receive()) is not None:
        worker.send(frame.message)
    os._exit(0)
