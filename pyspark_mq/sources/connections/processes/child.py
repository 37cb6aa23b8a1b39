"""A receiver process: a host of receivers, which emits its events over a socket.

Two kinds of threads beside those of the receivers: the main thread carries out what the parent asks for, and the host's
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
from pyspark_mq.sources.connections.requests import Stop
from pyspark_mq.sources.connections.worker import Worker
from pyspark_mq.sources.runtime import Threads, begin_thread

__all__ = ["BOOT", "main"]

#: What the interpreter is started with: the parent's paths come first, then everything is imported as it is there.
BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from pyspark_mq.sources.connections.processes.child import main; main(int(sys.argv[1]))"
)


class _Forward(logging.Handler):
    """Keeps lines for the log of the parent, whose log they belong to, until the host's thread sends them."""

    def __init__(self) -> None:
        super().__init__()
        self.records: deque[logging.LogRecord] = deque()

    def emit(self, record: logging.LogRecord) -> None:
        # Arguments and tracebacks are text by now, see `pyspark_mq.logs`.
        record.stack_info = None
        self.records.append(record)


def main(descriptor: int) -> None:
    """Serve the parent at the other end of a socket, until it is gone.

    Args:
        descriptor: of the socket.
    """
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
        while forward.records:
            channel.send(forward.records.popleft())
        send_event(channel, event)

    runtime = Threads()
    # All processes of a machine share that clock.
    host = Worker(session_class, hello.schema, emit, runtime, time.monotonic, count(hello.first_session))

    def go_round() -> None:
        for rest_s in host.life():
            host.arrived.wait(rest_s)

    # Mostly the parent is gone: the kernel closes the connections, and the broker takes its messages back at once.
    begin_thread("pyspark-mq host", go_round, lambda died: os._exit(int(not isinstance(died, OSError))))
    while (frame := channel.receive()) is not None:
        if isinstance(frame.message, Stop):
            host.stop_in_background(frame.message)
        else:
            host.handle(frame.message)
    os._exit(0)
