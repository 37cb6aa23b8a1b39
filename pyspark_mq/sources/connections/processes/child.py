"""A receiver process: ordinary receivers on threads, and one thread that hands over what they bring.

Three kinds of threads. The receivers' own, one for each connection, are those of
:mod:`~..receiver`. The main thread carries out what the parent asks for. The *porter* alone talks: it
goes round the receivers, turns what is in their inboxes into chunks, and sends those and the letters.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections import deque
from itertools import accumulate
from typing import Any

from pyspark_mq.errors import MqError
from pyspark_mq.sources.connections.block import encode
from pyspark_mq.sources.connections.consumer import Consumer, drained
from pyspark_mq.sources.connections.events import Confirmed, Failed, Lost, Mailbox, Opened, Terms
from pyspark_mq.sources.connections.parent import watch_parent
from pyspark_mq.sources.connections.processes.memory import write_file
from pyspark_mq.sources.connections.processes.messages import (
    Allow,
    Answer,
    Ask,
    Attended,
    Begin,
    Confirm,
    Depth,
    End,
    Ended,
    Fail,
    Hello,
    Logged,
    Open,
    Question,
    Rows,
    Signs,
    Stop,
)
from pyspark_mq.sources.connections.processes.wire import Channel
from pyspark_mq.sources.connections.receiver import Receiver
from pyspark_mq.sources.endpoint import Endpoint
from pyspark_mq.sources.protocols import consumer_class
from pyspark_mq.sources.queues.redelivery import TRANSIT_S
from pyspark_mq.sources.runtime import Runtime, Threads, begin_thread

__all__ = ["BOOT", "main"]

#: What the interpreter is started with: the parent's paths come first, then everything is imported as it is there.
BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from pyspark_mq.sources.connections.processes.child import main; main(int(sys.argv[1]))"
)
#: Each chunk has a price: behind a round with deliveries the next is begun so long after its beginning, no sooner.
_ROUND_S = 0.02
#: The parent is told at least so often that everything has been handed over, and how the sessions stand.
_WORD_S = 0.1
#: The porter does nothing for so long: this process was stopped, or had no turn. What came may be unread.
_BREAK_S = TRANSIT_S
#: A chunk is made in a small part of the time that counts as a break.
_ROWS_MAX = 5_000
_BYTES_MAX = 4 << 20
#: Below this a chunk goes through the socket: a mapping takes a page at least, and a process has 65,530 of them
#: (`max_map_count`).
_INLINE_BYTES = 128 << 10


class _Post:
    """One receiver, and what the porter and the main thread know of it."""

    def __init__(self, begin: Begin, arrived: threading.Event, ask_terms: Any, runtime: Runtime) -> None:
        self.begin = begin
        self.mailbox = Mailbox()
        self.mailbox.arrived = arrived  # one bell for all
        self.consumer: Consumer | None = None
        self.stopped = False
        self.answers: deque[Terms] = deque()
        self.answered = threading.Event()
        self.signs: Signs | None = None
        self.depth_at_s = -float("inf")
        make = consumer_class(begin.endpoint.protocol)
        self.decoder = make.decoder

        def make_consumer(endpoint: Endpoint, session: int, arrived: threading.Event) -> Consumer:
            consumer = make(endpoint, session, arrived)
            consumer.keeps_unreadable = begin.keeps_unreadable
            return consumer

        def terms() -> Terms:
            self.answered.clear()
            ask_terms(Question(begin.key))
            self.answered.wait()
            return self.answers.pop()

        self.receiver = Receiver(begin.endpoint, make_consumer, self.mailbox, terms, runtime, again=begin.again)


class _Child:
    """All of the process.

    Args:
        channel: to the parent.
        columns: to make of deliveries.
    """

    def __init__(self, channel: Channel, columns: tuple[str, ...]) -> None:
        self._channel = channel
        self._columns = columns
        self._arrived = threading.Event()
        self._posts: dict[int, _Post] = {}
        self._runtime = Threads()
        self._outbox: deque[object] = deque()
        self._breath_s = time.monotonic()
        self._broke_off = False

    def say(self, message: object) -> None:
        """Have the porter send a message; for every thread, none of which may wait for the parent."""
        self._outbox.append(message)
        self._arrived.set()

    # -- the main thread

    def obey(self, message: object) -> None:
        """Carry out what the parent asks for."""
        if isinstance(message, Begin):
            self._begin(message)
            return
        post = self._posts.get(message.key)  # type: ignore[attr-defined]
        if post is None:
            return
        if isinstance(message, Ask):
            post.receiver.ask(message.session, message.request)
        elif isinstance(message, Allow):
            consumer = post.consumer
            if consumer is not None and consumer.session == message.session:
                consumer.bytes_taken = message.bytes_taken
                consumer.bytes_allowed = message.bytes_allowed
        elif isinstance(message, Answer):
            post.answers.append(message.terms)
            post.answered.set()
        elif isinstance(message, Stop):
            begin_thread("pyspark-mq stop", lambda: self._stop(post), lambda _: self._stopped(post))

    def _begin(self, begin: Begin) -> None:
        try:
            post = _Post(begin, self._arrived, self.say, self._runtime)
        except MqError as wrong:
            self.say(Fail(begin.key, wrong))
            return
        self._posts[begin.key] = post
        post.receiver.start()

    def _stop(self, post: _Post) -> None:
        post.receiver.stop()
        self._stopped(post)

    def _stopped(self, post: _Post) -> None:
        """Have the porter say so, behind the last that it had to tell."""
        post.stopped = True
        self._arrived.set()

    # -- the porter

    def carry(self) -> None:
        """Go round until the parent is gone."""
        said_s = time.monotonic()
        while True:
            began_s = self._breathe()
            self._arrived.clear()
            broke_off, self._broke_off = self._broke_off, False
            busy = self._round()
            if broke_off or began_s - said_s >= _WORD_S:
                said_s = began_s
                self._channel.send(Attended(began_s, broke_off))
            if busy:
                time.sleep(max(0.0, began_s + _ROUND_S - time.monotonic()))
            else:
                self._arrived.wait(max(0.0, said_s + _WORD_S - time.monotonic()))

    def _breathe(self) -> float:
        """What time it is; whoever finds it much later than the last time has stood still."""
        now_s = time.monotonic()
        self._broke_off = self._broke_off or now_s - self._breath_s > _BREAK_S
        self._breath_s = now_s
        return now_s

    def _round(self) -> bool:
        """Send everything that is there; did deliveries come?"""
        busy = False
        while self._outbox:
            self._channel.send(self._outbox.popleft())
        for key, post in list(self._posts.items()):
            stopped = post.stopped
            # The broker's word on the queue is told behind what came before it.
            depth, depth_at_s = post.receiver.depth, post.receiver.depth_at_s
            try:
                for letter in post.mailbox.take():
                    busy = self._tell(key, post, letter) or busy
                busy = self._hand_over(key, post) or busy
            except OSError:
                raise
            except Exception as error:
                logging.getLogger("pyspark_mq").exception("handing over failed")
                text = f"{post.begin.endpoint.destination}: a receiver process failed: {type(error).__name__}: {error}"
                self._channel.send(Fail(key, MqError(text)))
                post.receiver.stop(0.0)
                post.consumer = None
            self._tell_signs(key, post)
            if depth is not None and depth_at_s != post.depth_at_s:
                post.depth_at_s = depth_at_s
                self._channel.send(Depth(key, depth))
            if stopped:
                del self._posts[key]
                self._channel.send(Ended(key))
        return busy

    def _tell(self, key: int, post: _Post, letter: Opened | Lost | Confirmed | Failed) -> bool:
        busy = False
        if isinstance(letter, Opened):
            consumer = letter.consumer
            assert isinstance(consumer, Consumer)
            self._channel.send(Open(key, consumer.session, letter.greeting, letter.window))
            post.consumer, post.signs = consumer, None
        elif isinstance(letter, Lost):
            post.consumer = None
            self._channel.send(End(key, letter.session, letter.ever_paused))
        elif isinstance(letter, Confirmed):
            busy = self._hand_over(key, post)
            self._channel.send(Confirm(key, letter.session, letter.number))
        else:
            self._channel.send(Fail(key, letter.error))
        return busy

    def _hand_over(self, key: int, post: _Post) -> bool:
        consumer = post.consumer
        left = 0 if consumer is None else len(consumer.inbox)
        busy = left > 0
        while consumer is not None and left > 0:
            raws = drained(consumer.inbox, min(left, _ROWS_MAX))
            if not raws:
                break  # the session has ended meanwhile
            left -= len(raws)
            for part in _parts(raws, post.decoder.sizes(raws)):
                self._breathe()
                self._hand_over_part(key, post, consumer.session, part)
        return busy

    def _hand_over_part(self, key: int, post: _Post, session: int, raws: list[Any]) -> None:
        message, books = encode(post.decoder, raws, post.begin.id_source, self._columns)
        if message.size < _INLINE_BYTES:
            size = message.size.to_bytes(8, "little")
            self._channel.send(Rows(key, session), b"".join((memoryview(message), books, size)))
            return
        file = write_file([memoryview(message)])
        try:
            self._channel.send(Rows(key, session), books, file)
        finally:
            os.close(file)

    def _tell_signs(self, key: int, post: _Post) -> None:
        consumer = post.consumer
        if consumer is None:
            return
        behind = consumer.behind or bool(consumer.inbox)
        signs = Signs(key, consumer.session, consumer.paused, behind, consumer.starved)
        if signs != post.signs:
            post.signs = signs
            self._channel.send(signs)


def _parts(raws: list[Any], sizes: list[int]) -> list[list[Any]]:
    """The same in pieces of about `_BYTES_MAX`, or of one delivery that is more."""
    if sum(sizes) <= _BYTES_MAX:
        return [raws]
    parts: list[list[Any]] = []
    piece = -1
    for raw, end, size in zip(raws, accumulate(sizes), sizes, strict=True):
        if (end - size) // _BYTES_MAX != piece:
            piece = (end - size) // _BYTES_MAX
            parts.append([])
        parts[-1].append(raw)
    return parts


class _Forward(logging.Handler):
    """Hands lines for the log to the parent, whose log they belong to."""

    def __init__(self, child: _Child) -> None:
        super().__init__()
        self._child = child

    def emit(self, record: logging.LogRecord) -> None:
        # Arguments and tracebacks are text by now, see `pyspark_mq.logs`.
        record.stack_info = None
        self._child.say(Logged(record))


def main(descriptor: int) -> None:
    """Serve the parent at the other end of a socket, until it is gone.

    Args:
        descriptor: of the socket.
    """
    # Ctrl-C goes to all processes of a terminal; this one ends with its parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch_parent()
    channel = Channel(socket.socket(fileno=descriptor))
    first = channel.receive()
    if first is None:
        return
    hello: Hello = first.message
    child = _Child(channel, hello.columns)
    log = logging.getLogger("pyspark_mq")
    log.setLevel(hello.log_level)
    log.addHandler(_Forward(child))
    log.propagate = False

    # Mostly the parent is gone: the kernel closes the connections, and the broker takes its messages back at once.
    begin_thread("pyspark-mq porter", child.carry, lambda died: os._exit(int(not isinstance(died, OSError))))
    while (frame := channel.receive()) is not None:
        child.obey(frame.message)
    os._exit(0)
