"""Converts errors of pika, and reasons that RabbitMQ states, into errors of this package."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Sequence

from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    IncompatibleProtocolError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    StreamLostError,
)

from pyspark_mq.errors import BrokerUnavailableError, DestinationError, MqError, RefusedError
from pyspark_mq.wire.endpoint import Endpoint, exclusive_error, tls_error
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["connect_error", "handshake_hint", "queue_error", "reason_of", "was_stated"]

#: Reply code with which RabbitMQ closes connections when it is stopped (AMQP 0-9-1, "reply-code").
_CONNECTION_FORCED = 320
#: Name of pika's error for a connection that has ended without a reason. Other errors of pika quote this name.
_LOST = StreamLostError.__name__
_TLS_ALERT = re.compile(r"\[SSL: (\w*ALERT\w*)\]")


def _causes(error: object) -> list[BaseException]:
    """Return an error of pika, followed by the errors that caused it."""
    found: list[BaseException] = []
    pending: list[object] = [error]
    while pending:
        item = pending.pop(0)
        if not isinstance(item, BaseException) or item in found:
            continue
        found.append(item)
        pending += [getattr(item, "exception", None), *getattr(item, "exceptions", ()), *item.args]
        pending.append(item.__cause__)
    return found


def reason_of(error: object) -> str:
    """Return the most informative text among those of an error and its causes."""
    causes = _causes(error)
    for cause in reversed(causes):
        if isinstance(cause, ConnectionClosedByBroker | ChannelClosedByBroker):
            return f"{cause.reply_code} {cause.reply_text}"
        if str(cause) and not isinstance(cause, AMQPConnectionError):
            return f"{type(cause).__name__}: {cause}"
    return (str(causes[-1]) or type(causes[-1]).__name__) if causes else str(error)


def was_stated(error: object) -> bool:
    """Whether the broker has stated a reason that may end the next session, too.

    A shutdown of the broker (reply code 320) does not count as such a reason.
    """
    said = [cause for cause in _causes(error) if isinstance(cause, ConnectionClosedByBroker | ChannelClosedByBroker)]
    return any(cause.reply_code != _CONNECTION_FORCED for cause in said)


def connect_error(error: object, url: BrokerUrl, endpoint: Endpoint) -> MqError:
    """Return this package's error for an attempt to connect that has failed."""
    causes, reason = _causes(error), reason_of(error)
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            return tls_error(cause, url)
        # With TLS 1.3 the broker may refuse a certificate after the handshake. Then only the text of the error is left.
        alert = _TLS_ALERT.search(str(cause))
        if alert is not None:
            return tls_error(alert[1], url)
        # pika also reports a refusal if the connection was only lost at this stage. RabbitMQ states why it refuses.
        if _LOST in str(cause):
            continue
        if isinstance(cause, ProbableAuthenticationError) or _closed_with(cause, 403):
            return RefusedError(
                f"{url}: the broker refused the login of user '{endpoint.user(url) or 'guest'}'; check options "
                f"'username' and 'password', or the login in 'url' ({reason})"
            )
        if isinstance(cause, ProbableAccessDeniedError) or _closed_with(cause, 530):
            if "is down" in reason:
                break
            return RefusedError(
                f"{url}: the broker refused virtual host '{url.virtual_host}'; check the path of "
                f"'url' (%2F is '/') and the user's permissions ({reason})"
            )
    return BrokerUnavailableError(f"{url}: {reason}{handshake_hint(causes, url)}")


def _closed_with(cause: BaseException, code: int) -> bool:
    return isinstance(cause, ConnectionClosedByBroker) and cause.reply_code == code


def handshake_hint(causes: Sequence[BaseException], url: BrokerUrl) -> str:
    """Return a text for an error of an attempt to connect. It says that the port may speak another protocol.

    Args:
        causes: the errors that caused the failure.
    """
    refused = any(isinstance(cause, ConnectionRefusedError | socket.gaierror) for cause in causes)
    if refused or url.tls:
        return ""
    if any(isinstance(cause, IncompatibleProtocolError) for cause in causes):
        return f"; does the port speak AMQP 0-9-1? A TLS port needs {url.partner}://"
    return f"; if this is a TLS port use {url.partner}://, and check that it speaks AMQP 0-9-1"


def queue_error(error: object, url: BrokerUrl, endpoint: Endpoint) -> MqError:
    """Return this package's error for a channel that the broker has closed while the queue was looked up."""
    destination = endpoint.destination
    reason = reason_of(error)
    exclusive = exclusive_error(reason, url, endpoint)
    if exclusive is not None:
        return exclusive
    for cause in _causes(error):
        if not isinstance(cause, ChannelClosedByBroker):
            continue
        if cause.reply_code == 404 and not endpoint.broker.will_be_back(reason):
            return DestinationError(
                f"{destination} does not exist in virtual host '{url.virtual_host}' of {url}; "
                f"declare it first, or correct the option ({reason})"
            )
        if cause.reply_code == 403:
            return DestinationError(f"this user may not access {destination} at {url} ({reason})")
        if cause.reply_code == 406:
            return DestinationError(
                f"{destination} at {url} exists with other properties; delete it or use "
                f"another 'subscription' ({reason})"
            )
    return BrokerUnavailableError(f"{url}: {destination}: {reason}")
