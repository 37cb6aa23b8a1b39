"""One connection of RabbitMQ's stream protocol. It blocks, is used by one thread, and does not reconnect.

If the connection ends, for whatever reason, :class:`StreamLost` is raised and the connection cannot be used afterwards.
If the broker refuses permanently (for example the login), an error from :mod:`pyspark_mq.errors` is raised instead. The
broker's version is checked at login, because a broker closes the connection at a command that it does not know.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from pyspark_mq.errors import ConfigurationError, RefusedError
from pyspark_mq.streams import frames
from pyspark_mq.streams.access import Access
from pyspark_mq.streams.chunk import Chunk, read_chunk
from pyspark_mq.streams.frames import FieldReader, StreamFrameError, StreamLost
from pyspark_mq.wire.endpoint import tls_error
from pyspark_mq.wire.url import BrokerUrl, hide, place_of

__all__ = ["NO_STREAM", "Member", "NoStream", "StreamConnection", "StreamLost", "Subscription"]

_RECEIVE_BYTES = 256 << 10
#: Header of a frame: the size of everything after the size itself, the command, and the command's version.
_HEAD = struct.Struct(">IHH")
#: Largest accepted frame with a chunk, and largest accepted other frame. The protocol itself does not limit chunks.
_CHUNK_BYTES_MAX, _FRAME_BYTES_MAX = 1 << 30, 1 << 20
#: Maximum number of members (nodes with a copy of the stream) that are used. No cluster has more members in practice.
_MEMBERS_MAX = 16
#: Maximum number of characters of a broker's message that an error shows.
_REASON_MAX = 300
_NUMBERS = {"first_chunk_id", "committed_chunk_id"}
_REFUSALS = frozenset({7, 8, 9, 10, 11, 12, 16})
#: Response codes: the stream does not exist, or has no member on this node.
NO_STREAM, _NOT_HERE = 2, 6
_SUBSCRIPTIONS = 256
#: The first version whose statistics report the committed end of a stream. RabbitMQ 3.10 does not report it.
_VERSION_MIN = (3, 11)
#: Values in command Subscribe: the subscription begins at an offset, or at a time.
_AT, _SINCE = 4, 5


class Member(NamedTuple):
    """A broker node with a copy of a stream, by the address at which clients reach the node."""

    host: str
    port: int


class NoStream(Exception):  # noqa: N818
    """The stream does not exist (code 2), or has no member on this node (code 6).

    Attributes:
        member: the node that reports this.
    """

    def __init__(self, stream: str, code: int, member: Member) -> None:
        self.stream, self.code, self.member = stream, code, member
        super().__init__(f"stream '{stream}': {frames.REASONS[code]}")


class StreamConnection:
    """A connection to one broker node. The connection logs in when it is constructed.

    Args:
        access: login, virtual host, TLS settings and time limits.
        member: the node to connect to.
        url: the URL from option `url` that errors mention.

    Raises:
        StreamLost: the node does not answer, or does not speak the stream protocol.
        RefusedError: the node refused the user, password, virtual host or TLS certificate.
        ConfigurationError: the broker is older than RabbitMQ 3.11.
    """

    def __init__(self, access: Access, member: Member, url: BrokerUrl) -> None:
        self._access, self._url = access, url
        #: The node that was to be reached (`member`), and the node that answers, by the address that it reports at
        #: login (`advertised`). Behind a load balancer these may be two different nodes.
        self.member = self.advertised = member
        self._socket: socket.socket | None = None
        self._buffer, self._at = b"", 0
        self._heartbeat_s = access.heartbeat_s
        self._sent_s = time.monotonic()
        self._last = 0
        self._next_subscription = 0
        self._subscription: Subscription | None = None
        #: How many seconds the broker may take to answer a request or to send the rest of a frame.
        self.patience_s = access.connect_timeout_s
        try:
            self._connect()
            self._greet()
        except BaseException:
            self.close()
            raise

    # -- connecting and login

    def _connect(self) -> None:
        timeout_s = self._access.connect_timeout_s
        try:
            plain = socket.create_connection(self.member, timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain
            if self._url.tls:
                # A node's certificate is issued for the address that the node advertises.
                self._socket = self._access.context().wrap_socket(plain, server_hostname=self.member.host)
        except ssl.SSLError as failed:
            raise tls_error(failed, self._url) from None
        except (OSError, ValueError, OverflowError) as failed:  # a broker may advertise an invalid host or port
            text = f"{self.place} cannot be reached: {failed}"
            if self._socket is not None:
                text = f"{self.place} does not answer with TLS: {failed}; without TLS, use {self._url.partner}://"
            raise StreamLost(text) from None

    def _greet(self) -> None:
        names = {"product": "pyspark-mq", "platform": "Python"}
        greeting = self.request(
            frames.PEER_PROPERTIES, frames.array(frames.text(key) + frames.text(value) for key, value in names.items())
        )
        self.properties = greeting.pairs()
        self.version = tuple(map(int, re.findall(r"\d{1,9}", self.properties.get("version", ""))[:2]))
        if self.version < _VERSION_MIN:
            known = self.properties.get("version", "of an unknown version")
            raise ConfigurationError(
                f"{self._url}: this is RabbitMQ {known!r}, which does not report the committed end of a stream; "
                "reading streams needs RabbitMQ 3.11 or later"
            )
        self.request(frames.SASL_HANDSHAKE, b"")
        secret = f"\0{self._access.username}\0{self._access.password}".encode()
        self.request(frames.SASL_AUTHENTICATE, frames.text("PLAIN") + frames.u32(len(secret)) + secret)
        tune = self._await(lambda command, _: command == frames.TUNE)
        frame_bytes, heartbeat_s = tune.u32(), tune.u32()
        self._heartbeat_s = wanted = min(filter(None, (heartbeat_s, int(self._access.heartbeat_s))))
        self._send(frames.TUNE, frames.u32(frame_bytes) + frames.u32(wanted))
        opened = self.request(frames.OPEN, frames.text(self._access.urls[0].virtual_host)).pairs()
        host, port = opened.get("advertised_host", ""), opened.get("advertised_port", "")
        if host and port.isdecimal():
            self.advertised = Member(host, int(port[:9]))

    @property
    def place(self) -> str:
        """Host and port of the node, for errors."""
        return place_of(self.member.host, self.member.port)

    # -- requests

    def request(self, command: int, content: bytes, stream: str = "") -> FieldReader:
        """Send a request and wait for the answer.

        Args:
            command: number of the command.
            content: the request's fields after the correlation number.
            stream: the stream that the request is about, for errors.

        Returns:
            a reader of the fields that follow the answer's response code.

        Raises:
            NoStream: the stream does not exist, or has no member on this node.
            RefusedError: the broker refuses the request permanently.
            StreamLost: the connection ended, or the broker cannot fulfil the request now.
        """
        self._last += 1
        self._send(command, frames.u32(self._last) + content)

        def is_answer(answered: int, fields: FieldReader) -> bool:
            return answered & ~frames.RESPONSE == command and answered != frames.TUNE and fields.u32() == self._last

        reader = self._await(is_answer)
        # An answer to Metadata has a response code for each stream instead of one for the whole answer.
        code = frames.OK if command == frames.METADATA else reader.u16()
        if code == frames.OK:
            return reader
        if code in {NO_STREAM, _NOT_HERE}:
            raise NoStream(stream, code, self.advertised)
        reason = frames.REASONS.get(code, f"code {code}")
        if code in _REFUSALS:
            raise RefusedError(
                f"{self._url} as user '{self._access.username}': {reason}; correct 'url', 'username' or 'password', or "
                "grant the user permission to read the stream"
            )
        raise StreamLost(f"{self.place} refused command {command}: {reason}")

    def stats(self, stream: str) -> dict[str, int]:
        """Return a stream's statistics by name, such as `first_chunk_id` and `committed_chunk_id`.

        The two statistics named here are the offsets at which the first and the last committed chunk begin; -1 means
        that there is no such chunk yet.
        """
        answer = self.request(frames.STREAM_STATS, frames.text(stream), stream)
        found = dict(answer.array(lambda: (answer.text(), answer.i64())))
        if lacking := sorted(_NUMBERS - found.keys()):
            raise StreamFrameError(f"the statistics of stream '{stream}' lack {', '.join(lacking)}")
        return found

    def partitions(self, super_stream: str) -> list[str]:
        """Return the partitions of a super stream in order; an empty list if no super stream has this name."""
        try:
            answer = self.request(frames.PARTITIONS, frames.text(super_stream))
        except NoStream:
            return []
        return answer.array(answer.text)

    def members(self, stream: str) -> list[Member]:
        """Return the nodes that have a copy of a stream, the leader first; an empty list if the broker reports none.

        Raises:
            NoStream: the stream does not exist.
        """
        answer = self.request(frames.METADATA, frames.array([frames.text(stream)]))
        nodes = dict(answer.array(lambda: (answer.u16(), Member(answer.text(), answer.u32()))))
        found: list[Member] = []
        for name, code, leader, replicas in answer.array(
            lambda: (answer.text(), answer.u16(), answer.u16(), answer.array(answer.u16))
        ):
            if code == NO_STREAM:
                raise NoStream(name, code, self.advertised)
            found += [nodes[node] for node in (leader, *replicas) if node in nodes]
        return list(dict.fromkeys(found))[:_MEMBERS_MAX]

    # -- subscriptions

    @contextmanager
    def subscribed(self, stream: str, offset: int | None = None, since_ms: int = 0) -> Iterator[Subscription]:
        """Subscribe to a stream for the duration of the `with` block, at first with a credit of one chunk.

        If the block raises an error, the connection cannot be used any more.

        Args:
            offset: the offset at which the subscription begins; None to begin at a time.
            since_ms: the time at which the subscription begins if `offset` is None.

        Raises:
            NoStream: the stream does not exist, or has no member on this node.
        """
        number = self._next_subscription
        self._next_subscription = (number + 1) % _SUBSCRIPTIONS
        kind, where = (_SINCE, since_ms) if offset is None else (_AT, offset)
        # Without the selector the broker would omit its own chunks, and the gaps would look like lost messages.
        properties = frames.array([frames.text("chunk_selector") + frames.text("all")])
        start = frames.u16(kind) + frames.u64(where)
        content = frames.u8(number) + frames.text(stream) + start + frames.u16(1) + properties
        self.request(frames.SUBSCRIBE, content, stream)
        self._subscription = Subscription(self, number, stream)
        yield self._subscription
        self._subscription = None
        self.request(frames.UNSUBSCRIBE, frames.u8(number), stream)

    def credit(self, number: int, count: int) -> None:
        self._send(frames.CREDIT, frames.u8(number) + frames.u16(count))

    # -- frames

    def _await(self, is_answer: Callable[[int, FieldReader], bool]) -> FieldReader:
        """Receive frames until `is_answer` accepts a frame, and return its reader. Raise StreamLost if none arrives."""
        deadline = time.monotonic() + self.patience_s
        try:
            while True:
                command, reader = self.receive(deadline)
                if is_answer(command, reader):
                    return reader
        except TimeoutError as silent:
            raise StreamLost(str(silent)) from None
        except StreamFrameError as wrong:
            raise StreamLost(f"{self.place} does not speak the stream protocol: {wrong}") from None

    def receive(self, deadline: float) -> tuple[int, FieldReader]:
        """Receive one frame. A frame for the current subscription is passed on to the subscription, too.

        Returns:
            the frame's command, and a reader of the frame's fields.

        Raises:
            TimeoutError: no frame arrived before `deadline`.
            StreamLost: the connection ended.
        """
        if time.monotonic() > deadline:
            raise TimeoutError(f"{self.place} did not answer in time: it sent only frames that are not the answer")
        size, command, _ = _HEAD.unpack(self._take(_HEAD.size, deadline))
        if not 4 <= size <= (_CHUNK_BYTES_MAX if command == frames.DELIVER else _FRAME_BYTES_MAX):
            raise StreamFrameError(f"{self.place} sent a frame of {size} bytes")
        # The deadline applies to the first bytes of a frame. A frame that has begun is read to its end.
        data = self._take(size - 4, deadline, started=True)
        reader = FieldReader(data)
        if command == frames.DELIVER:
            if self._subscription is not None:
                self._subscription.take(data)
        elif command == frames.METADATA_UPDATE:
            reader.u16()
            if self._subscription is not None and reader.text() == self._subscription.stream:
                self._subscription.ended = True
        elif command == frames.CLOSE:
            reader.u32()
            code = reader.u16()
            reason = hide(reader.text(), [self._access.password])[:_REASON_MAX]
            raise StreamLost(f"{self.place} closed the connection: {code} {reason}")
        return command, reader

    def _take(self, size: int, deadline: float, *, started: bool = False) -> bytes:
        """Read exactly `size` bytes, and send heartbeats meanwhile."""
        parts, missing = [], size
        while True:
            parts.append(self._buffer[self._at : self._at + missing])
            self._at += missing
            missing -= len(parts[-1])
            if missing == 0:
                return b"".join(parts)
            self._buffer, self._at = self._receive(deadline, started=started or missing < size), 0

    def _receive(self, deadline: float, *, started: bool) -> bytes:
        assert self._socket is not None
        if started:
            deadline = time.monotonic() + self.patience_s
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                if started:
                    raise StreamLost(f"{self.place} stopped in the middle of a frame")
                raise TimeoutError(f"{self.place} sent nothing in time")
            try:
                self._socket.settimeout(min(left_s, self._heartbeat_s / 2))
                part = self._socket.recv(_RECEIVE_BYTES)
            except TimeoutError:
                self._send(frames.HEARTBEAT, b"")
                continue
            except OSError as failed:
                raise StreamLost(f"{self.place}: {failed}") from None
            if not part:
                raise StreamLost(f"{self.place} closed the connection without a reason")
            if time.monotonic() - self._sent_s > self._heartbeat_s / 2:
                self._send(frames.HEARTBEAT, b"")
            return part

    def _send(self, command: int, content: bytes) -> None:
        assert self._socket is not None
        try:
            self._socket.settimeout(self._access.connect_timeout_s)
            self._socket.sendall(frames.frame(command, content))
        except OSError as failed:
            raise StreamLost(f"{self.place}: {failed}") from None
        self._sent_s = time.monotonic()

    def close(self) -> None:
        """Close the socket without the protocol's closing handshake, as the broker keeps no state of the connection."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()


class Subscription:
    """A subscription to one stream. A connection has one subscription at a time.

    The broker sends one chunk for each credit. A subscription begins with one credit, and :meth:`want` grants more.

    Attributes:
        ended: whether the broker has ended the subscription.
    """

    def __init__(self, connection: StreamConnection, number: int, stream: str) -> None:
        self._connection, self._number, self.stream = connection, number, stream
        self._open = 1
        self._chunks: deque[bytes] = deque()
        self.ended = False

    def take(self, delivery: bytes) -> None:
        """Queue a delivered chunk, unless the chunk is for an earlier subscription.

        Args:
            delivery: the content of a Deliver frame: the number of the subscription, then the chunk.

        Raises:
            StreamFrameError: the broker has sent more chunks than it had credit for.
        """
        if delivery[:1] == frames.u8(self._number):
            if len(self._chunks) == self._open:
                raise StreamFrameError("the broker sent more chunks than it had credit for")
            self._chunks.append(delivery)

    def next(self, wait_s: float) -> Chunk:
        """Wait for the next chunk and return it.

        Raises:
            StreamLost: the broker has ended the subscription or the connection.
            TimeoutError: no chunk arrived within `wait_s` seconds.
            ChunkError: a delivered chunk has a damaged header.
        """
        deadline = time.monotonic() + wait_s
        while not self._chunks:
            if self.ended:
                place = self._connection.place
                raise StreamLost(f"{place} has ended the subscription to stream '{self.stream}'")
            self._connection.receive(deadline)
        self._open -= 1
        return read_chunk(self._chunks.popleft(), 1)

    def want(self, chunks: int) -> None:
        """Grant credit so that up to `chunks` chunks may be in flight.

        If more than half of these chunks may already be in flight, grant nothing yet.
        """
        if self._open <= chunks // 2:
            self._connection.credit(self._number, chunks - self._open)
            self._open = chunks
