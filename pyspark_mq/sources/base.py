"""The contract of a consumer: one connection to a broker, from its opening to its end.

A consumer object is one *session*. It never reconnects: when the connection, the channel or the
subscription ends, it raises :class:`SessionLostError` and is thrown away, and with it every
handle it gave (rule 10: a handle used in another session acknowledges another message). The
receiver then makes a new one.

One thread, the receiver's, calls everything here but :meth:`Consumer.wake`. What the consumer
takes in goes into its `inbox`, which another thread empties from the left; an append to a deque
is all that happens per message on the receiving side.
"""

from __future__ import annotations

import ssl
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pyspark_mq.brokers.base import Broker
from pyspark_mq.dedup import IdSource
from pyspark_mq.errors import OptionError, RefusedError
from pyspark_mq.sources.url import BrokerUrl

__all__ = ["Connection", "Consumer", "Decoder", "Depth", "Greeting", "SessionLostError", "Tls", "tls_error"]


class SessionLostError(Exception):
    """The session ended by itself. Un-acknowledged messages are with the broker again.

    Not an error for users: the receiver answers it by connecting again.
    """


@dataclass(frozen=True, slots=True)
class Tls:
    """Options `tls.*`.

    Attributes:
        ca_file: PEM file of trusted authorities; None for the system's.
        cert_file, key_file: the client's own certificate and key, PEM.
        verify: check the server's certificate and host name.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """A client context with these settings.

        Raises:
            OptionError: a file is missing or holds something else.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as wrong:
            raise OptionError("tls.caFile", f"{self.ca_file!r} cannot be used: {wrong}") from None
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file is not None:
            try:
                # The callback keeps OpenSSL from asking on the terminal for an encrypted key.
                context.load_cert_chain(self.cert_file, self.key_file, password=lambda: b"")
            except (OSError, ssl.SSLError) as wrong:
                text = f"{self.cert_file!r} with tls.keyFile {self.key_file!r} cannot be used: {wrong}"
                raise OptionError("tls.certFile", text) from None
        return context


#: What OpenSSL says when the other side answers in plain text, or hangs up on a greeting it cannot read.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"})


def tls_error(error: ssl.SSLError | str, url: BrokerUrl) -> RefusedError:
    """The error of this package for a failed handshake.

    Args:
        error: what Python raised, or OpenSSL's name of the reason.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return RefusedError(
            f"{url}: the certificate of the broker was not accepted: {error.verify_message}; "
            "set 'tls.caFile' to its authority, or use the host name the certificate is for"
        )
    reason = error if isinstance(error, str) else error.reason or str(error)
    if reason in _NO_TLS:
        plain = {"amqps": "amqp", "stomp+ssl": "stomp"}.get(url.scheme, url.scheme)
        return RefusedError(f"{url}: the port does not speak TLS ({reason}); use {plain}:// or the broker's TLS port")
    return RefusedError(
        f"{url}: TLS failed: {reason}; check 'tls.certFile' and 'tls.keyFile', and what the broker asks of clients"
    )


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the messages; what every session of a query shares.

    Times are seconds. `password` stays out of the repr. `shared`: several sessions take turns with
    the messages of one subscription.
    """

    broker: Broker
    protocol: str
    urls: tuple[BrokerUrl, ...]
    queue: str | None = None
    topic: str | None = None
    subscription: str | None = None
    selector: str | None = None
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    tls: Tls = Tls()
    connect_timeout_s: float = 30.0
    reconnect_timeout_s: float = 600.0
    heartbeat_s: float = 60.0
    shared: bool = False

    def credentials(self, url: BrokerUrl) -> tuple[str | None, str | None]:
        """User and password for a candidate: options come before the url; None where nobody is named."""
        username = self.username if self.username is not None else url.username
        return username, self.password if self.password is not None else url.password

    @property
    def destination(self) -> str:
        """The queue or topic as errors call it."""
        if self.queue is not None:
            return f"queue '{self.queue}'"
        if self.subscription is None:
            return f"topic '{self.topic}'"
        return f"topic '{self.topic}' ({'shared ' if self.shared else ''}subscription '{self.subscription}')"

    @property
    def name(self) -> str:
        """The queue's or topic's bare name, for the column `destination`."""
        return self.queue if self.queue is not None else str(self.topic)


@dataclass(frozen=True, slots=True)
class Depth:
    """What the broker tells of the queue.

    Attributes:
        ready: messages waiting to be handed out.
        others: consumers of the queue beside this session, as the broker sees it: also one whose
            connection has died without the broker knowing.
    """

    ready: int
    others: int


@dataclass(frozen=True, slots=True)
class Greeting:
    """What is known once a session is open.

    Attributes:
        url: the candidate that answered.
        identity: a name the broker keeps over restarts, or empty if it tells none.
        depth: state of the queue before this session took anything; None if the broker does
            not tell.
    """

    url: BrokerUrl
    identity: str
    depth: Depth | None


class Decoder(ABC):
    """Columns of raw deliveries, for one protocol. Stateless; works on lists, never on one message.

    A raw delivery is whatever the consumer appends to its inbox.
    """

    @abstractmethod
    def tags(self, raws: Sequence[Any]) -> list[int]:
        """Handles, ascending in the order of arrival, unique within the session."""

    @abstractmethod
    def bodies(self, raws: Sequence[Any]) -> list[bytes]:
        """Bodies as bytes."""

    @abstractmethod
    def ids(self, raws: Sequence[Any], source: IdSource) -> list[object]:
        """What the message has under the source; None where it has nothing."""

    #: column name -> function from raw deliveries to a list of values: str, int, bool, a list of
    #: (str, str or None) pairs for `properties`, microseconds since 1970 for timestamps; None for
    #: nothing. `messageId`, `body` and `destination` are not among them.
    columns: ClassVar[Mapping[str, Callable[[Sequence[Any]], list[Any]]]]


class Consumer(ABC):
    """One session. See the module's text for who may call what.

    Guarantee: a message is acknowledged only by :meth:`acknowledge` and refused only by
    :meth:`reject`; the end of the session for any reason gives all others back.
    """

    decoder: ClassVar[Decoder]

    def __init__(self, connection: Connection, session: int, arrived: threading.Event) -> None:
        """Nothing is opened yet.

        Args:
            connection: where to.
            session: number of this session, unique in the process.
            arrived: set when there is something for the other thread to look at.
        """
        self.connection = connection
        self.session = session
        self.arrived = arrived
        self.inbox: deque[Any] = deque()
        #: Bytes of bodies appended to the inbox so far; written by the receiving thread only.
        self.bytes_arrived = 0
        #: Bytes taken out so far; written by the emptying thread only.
        self.bytes_taken = 0
        #: Pause when more bytes than this wait in the inbox; written by the emptying thread only.
        self.bytes_allowed = float("inf")
        self.paused = False
        #: Called on the receiving thread when an acknowledgement is confirmed, with its number.
        self.on_confirmed: Callable[[int], None] = lambda number: None  # noqa: ARG005
        #: Called on the receiving thread when the broker told the depth of the queue.
        self.on_depth: Callable[[Depth], None] = lambda depth: None  # noqa: ARG005

    @abstractmethod
    def open(self, url: BrokerUrl, timeout_s: float) -> Greeting:
        """Connect, log in, find the queue. Consumes nothing yet. Blocks up to `timeout_s`.

        Raises:
            BrokerUnavailableError: nobody there, or not now; worth another try.
            RefusedError: credentials, virtual host, permission, TLS; another try is pointless.
            DestinationError: no such queue, or not for us.
        """

    @abstractmethod
    def consume(self, window: int) -> None:
        """Take messages in, at most `window` un-acknowledged at a time, those held included.

        Called again to widen the window: what was handed out stays handed out. A broker that
        counts a new window from zero may hand out as much again.
        """

    @abstractmethod
    def run(self, timeout_s: float) -> None:
        """Send and receive for `timeout_s` or until :meth:`wake`.

        Raises:
            SessionLostError: the session has ended.
            MessageError: the client library cannot read what the broker sends.
        """

    @abstractmethod
    def wake(self) -> None:
        """Make :meth:`run` return soon. The one method for other threads."""

    @abstractmethod
    def acknowledge(self, number: int, upto: int, singles: Sequence[int]) -> None:
        """Acknowledge, and call `on_confirmed(number)` once the broker has taken it.

        Args:
            number: names the request in the confirmation.
            upto: all open deliveries of this session with a tag up to this one; 0 for none.
            singles: further tags, one by one.
        """

    @abstractmethod
    def reject(self, tags: Sequence[int]) -> None:
        """Refuse messages for good: the broker dead-letters them where it is told to, or drops them."""

    @abstractmethod
    def ask_depth(self) -> None:
        """Ask for the depth of the queue; the answer comes through `on_depth`, or never."""

    @abstractmethod
    def resume(self) -> None:
        """Take messages in again after a pause for too many bytes in the inbox."""

    @abstractmethod
    def close(self) -> None:
        """End the session as far as possible within a moment. Never raises."""
