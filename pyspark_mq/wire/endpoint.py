"""The endpoint of a query, from its options: the broker, the queue or topic, the login and TLS."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_mq.brokers import Broker, broker_of
from pyspark_mq.brokers.hosted import hosted_by
from pyspark_mq.errors import DestinationError, OptionError, RefusedError, hide_in
from pyspark_mq.wire.url import CONTROL, BrokerUrl, hide

__all__ = ["FILES", "Endpoint", "Tls", "exclusive_error", "tls_error"]

#: Options that name files which are read for each connection. If such a file cannot be read, a later attempt may
#: succeed, because a file may be missing for a moment while it is replaced.
FILES = frozenset({"passwordFile", "tls.caFile", "tls.certFile"})
#: Number of recent secrets from a password file that are removed from errors. Brokers may quote secrets in errors, and
#: tokens are replaced often.
SECRETS_KEPT = 4


@dataclass(frozen=True, slots=True)
class Tls:
    """The values of the options `tls.*`.

    Attributes:
        ca_file: PEM file of trusted authorities; None for the system's authorities.
        cert_file, key_file: PEM files of the client's own certificate and key; None if not set.
        verify: whether to check the server's certificate and host name.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Return an SSL context for connections to the broker with these settings.

        Raises:
            OptionError: a file is missing or has the wrong content.
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
                # Without this callback OpenSSL would ask for the passphrase of an encrypted key on the terminal.
                context.load_cert_chain(self.cert_file, self.key_file, password=lambda: b"")
            except (OSError, ssl.SSLError) as wrong:
                text = f"{self.cert_file!r} with tls.keyFile {self.key_file!r} cannot be used: {wrong}"
                raise OptionError("tls.certFile", text) from None
        return context


#: OpenSSL's errors if the other side does not speak TLS: it answers in plain text, or closes the connection.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"})


def tls_error(error: ssl.SSLError | str, url: BrokerUrl) -> RefusedError:
    """Return this package's error for a TLS handshake that has failed.

    Args:
        error: Python's exception, or OpenSSL's name for the reason.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return RefusedError(
            f"{url}: the certificate of the broker was not accepted: {error.verify_message}; set 'tls.caFile' to the "
            "certificate's authority, or use the host name that the certificate is for"
        )
    reason = error if isinstance(error, str) else error.reason or str(error)
    if reason in _NO_TLS:
        text = f"the port does not speak TLS ({reason}); use {url.partner}:// or the broker's TLS port"
        return RefusedError(f"{url}: {text}")
    return RefusedError(
        f"{url}: TLS failed: {reason}; check 'tls.certFile' and 'tls.keyFile', and what the broker requires of clients"
    )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A queue or topic, and how to connect to its broker. All sessions of a query share this object.

    Times are in seconds. The repr does not show passwords.

    Attributes:
        protocol: the protocol of the connections.
        urls: the brokers of option `url`, which are tried one after the other.
        password_file: path of the file with the password, which is read for each connection; None if not set.
        shared: whether several sessions share the messages of one subscription.
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
    password_file: str | None = None
    tls: Tls = Tls()
    connect_timeout_s: float = 30.0
    reconnect_timeout_s: float = 600.0
    heartbeat_s: float = 60.0
    shared: bool = False
    #: The newest secrets read from `password_file` in this process.
    secrets_read: deque[str] = field(default_factory=lambda: deque(maxlen=SECRETS_KEPT), compare=False, repr=False)
    #: Users whose queries the broker's management address has refused. They are remembered, so that sessions do not
    #: send such queries again.
    refused: set[str] = field(default_factory=set, compare=False, repr=False)

    @property
    def clustered(self) -> bool:
        """Whether the broker may have several nodes: `url` has several addresses, or a cloud provider hosts the broker.

        A cluster behind any other single address is not recognised.
        """
        return len(self.urls) > 1 or any(hosted_by(url.host) for url in self.urls)

    def credentials(self, url: BrokerUrl) -> tuple[str | None, str | None]:
        """Return the user and the password for a broker, each None if not set. Options take precedence over the URL.

        A password file is read each time, so that the password can be replaced while the query runs.

        Raises:
            OptionError: the file of option `passwordFile` cannot be read, or is empty.
        """
        if self.password_file is not None:
            secret = secret_in(self.password_file, "passwordFile")
            if secret not in self.secrets_read:
                self.secrets_read.append(secret)
            return self.user(url), secret
        return self.user(url), self.password if self.password is not None else url.password

    def user(self, url: BrokerUrl) -> str | None:
        """Return the user for a broker; None if neither option `username` nor the URL names a user."""
        return self.username if self.username is not None else url.username

    def hide(self, text: str) -> str:
        """Remove the query's passwords from a text that comes from a broker or a library.

        A password that equals the user name is not removed, because errors name the user.
        """
        users = {self.username, *(url.username for url in self.urls)}
        passwords = filter(None, (self.password, *(url.password for url in self.urls)))
        return hide(text, {*self.secrets_read, *passwords} - users)

    @contextmanager
    def hiding(self) -> Iterator[None]:
        """Remove passwords from errors that are raised in this context, because brokers may quote passwords."""
        try:
            yield
        except Exception as error:
            hide_in(error, self.hide)
            raise

    def check_product(self, url: BrokerUrl, product: str) -> None:
        """Check that the broker at a URL is the one that option `broker` names, by its product name.

        A product that this package does not know is accepted, because it may be compatible.

        Raises:
            OptionError: the product is another broker that this package supports.
        """
        found = broker_of(product)
        if found is not None and found.name != self.broker.name:
            raise OptionError(
                "broker", f"'{self.broker.name}' is set, but {url} calls itself '{product}'; use '{found.name}'"
            )

    @property
    def destination(self) -> str:
        """The queue or topic, in the words of error messages."""
        if self.queue is not None:
            return f"queue '{self.queue}'"
        if self.topic is None:
            return "the destinations of the rows"
        if self.subscription is None:
            return f"topic '{self.topic}'"
        return f"topic '{self.topic}' ({'shared ' if self.shared else ''}subscription '{self.subscription}')"

    @property
    def name(self) -> str:
        """The name of the queue or topic without its kind, as column `destination` shows it."""
        return self.queue if self.queue is not None else str(self.topic)


def secret_in(file: str, option: str) -> str:
    """Read the password, or the token, from a file that has one line.

    Args:
        option: the option that names the file.

    Raises:
        OptionError: the file cannot be read, is empty, or has several lines.
    """
    try:
        secret = Path(file).read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as failed:
        reason = failed.strerror if isinstance(failed, OSError) else "it is not UTF-8 text"
        raise OptionError(option, f"{file!r} cannot be read by the driver: {reason}") from None
    if not secret or CONTROL.search(secret):
        how = "holds more than one line, or control characters" if secret else "is empty"
        raise OptionError(option, f"{file!r} {how}: put only the password, or the token, into it")
    return secret


def exclusive_error(reason: str, url: BrokerUrl, endpoint: Endpoint) -> DestinationError | None:
    """Return the error for a queue that another program uses exclusively; None if `reason` does not say this.

    Sessions of this package are never exclusive, so waiting for the end of another session would not help. RabbitMQ
    states the reason in the same words over each protocol (3.10, 4.3), but for an exclusive consumer over AMQP 1.0 in
    4.0, which is `amqp:internal-error`, "… failed: exclusive_consume_unavailable".
    """
    if "exclusive use" in reason or "exclusive_consume_unavailable" in reason:
        what = "has an exclusive consumer elsewhere, and delivers nothing to others; end that consumer"
    elif "exclusive access" in reason:
        what = "is exclusive: only the connection that declared it may read it; declare it without 'exclusive'"
    else:
        return None
    return DestinationError(f"{endpoint.destination} at {url} {what}, or correct the option ({reason})")
