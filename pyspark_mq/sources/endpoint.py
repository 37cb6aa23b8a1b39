"""The endpoint of a query: its broker, queue or topic, login and TLS, as set by options."""

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
from pyspark_mq.sources.url import CONTROL, BrokerUrl, hide

__all__ = ["FILES", "Endpoint", "Tls", "exclusive_error", "tls_error"]

#: Options that name files read at each connection. A file may be missing for a moment while it is replaced.
FILES = frozenset({"passwordFile", "tls.caFile", "tls.certFile"})
#: How many recent secrets to keep out of errors: brokers quote secrets, and tokens are replaced frequently.
SECRETS_KEPT = 4


@dataclass(frozen=True, slots=True)
class Tls:
    """Options `tls.*`.

    Attributes:
        ca_file: PEM file of trusted authorities; None for the system's authorities.
        cert_file, key_file: PEM files of the client's own certificate and key.
        verify: whether to check the server's certificate and host name.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Return an SSL context for clients with these settings.

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
                # The callback keeps OpenSSL from asking for a key's passphrase on the terminal.
                context.load_cert_chain(self.cert_file, self.key_file, password=lambda: b"")
            except (OSError, ssl.SSLError) as wrong:
                text = f"{self.cert_file!r} with tls.keyFile {self.key_file!r} cannot be used: {wrong}"
                raise OptionError("tls.certFile", text) from None
        return context


#: OpenSSL's errors for a peer that answers in plain text, or closes the connection on a greeting that it cannot read.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"})


def tls_error(error: ssl.SSLError | str, url: BrokerUrl) -> RefusedError:
    """Return this package's error for a failed handshake.

    Args:
        error: Python's exception, or OpenSSL's name of the reason.
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
    """The queue or topic and how to reach it, shared by all sessions of a query.

    Times are seconds. `password_file` is read at each connection. `password` stays out of the repr. `shared` tells
    whether several sessions share the messages of one subscription.
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
    #: Users for whom a broker's management refused to answer over the protocol. They are kept so as not to ask again.
    refused: set[str] = field(default_factory=set, compare=False, repr=False)

    @property
    def clustered(self) -> bool:
        """Whether the broker may have several nodes. With a single address, this is known only for hosted brokers."""
        return len(self.urls) > 1 or any(hosted_by(url.host) for url in self.urls)

    def credentials(self, url: BrokerUrl) -> tuple[str | None, str | None]:
        """Return user and password for a candidate, each None if not set. Options take precedence over the URL.

        A file is read each time, so that a secret can be replaced while the query runs.

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
        """Return the user for a candidate; None if neither option nor URL names one."""
        return self.username if self.username is not None else url.username

    def hide(self, text: str) -> str:
        """Remove the query's passwords from the text of a broker's or library's error.

        A password equal to the user name is not a secret, because errors name the user.
        """
        users = {self.username, *(url.username for url in self.urls)}
        passwords = filter(None, (self.password, *(url.password for url in self.urls)))
        return hide(text, {*self.secrets_read, *passwords} - users)

    @contextmanager
    def hiding(self) -> Iterator[None]:
        """Remove passwords from errors, because brokers may quote passwords."""
        try:
            yield
        except Exception as error:
            hide_in(error, self.hide)
            raise

    def check_product(self, url: BrokerUrl, product: str) -> None:
        """Check a broker's product name against option `broker`. An unknown product may be compatible.

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
        """The queue or topic, as named in errors."""
        if self.queue is not None:
            return f"queue '{self.queue}'"
        if self.topic is None:
            return "the destinations of the rows"
        if self.subscription is None:
            return f"topic '{self.topic}'"
        return f"topic '{self.topic}' ({'shared ' if self.shared else ''}subscription '{self.subscription}')"

    @property
    def name(self) -> str:
        """The bare name of the queue or topic, for column `destination`."""
        return self.queue if self.queue is not None else str(self.topic)


def secret_in(file: str, option: str) -> str:
    """Return the content of a file without the line end.

    Raises:
        OptionError: the file of this option cannot be read, is empty, or has several lines.
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
    """Return the error for a queue in exclusive use elsewhere; None if `reason` does not say so.

    Sessions of this package are never exclusive, so the queue is held by another program, and waiting is useless.
    RabbitMQ uses the same words over every protocol (3.10, 4.3).
    """
    if "exclusive use" in reason:
        what = "has an exclusive consumer elsewhere, and delivers nothing to others; end that consumer"
    elif "exclusive access" in reason:
        what = "is exclusive: only the connection that declared it may read it; declare it without 'exclusive'"
    else:
        return None
    return DestinationError(f"{endpoint.destination} at {url} {what}, or correct the option ({reason})")
