"""Converts error conditions of AMQP 1.0 (2.8.14 to 2.8.18) into errors of this package."""

from __future__ import annotations

from pyspark_mq.errors import BrokerUnavailableError, DestinationError, MqError, OptionError, RefusedError
from pyspark_mq.wire.endpoint import Endpoint, exclusive_error
from pyspark_mq.wire.socket_loop import hint
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["PROTOCOL_NAME", "is_stated", "open_error"]

#: The protocol's name in errors.
PROTOCOL_NAME = "AMQP 1.0"
_UNAUTHORIZED = ("amqp:unauthorized-access", "amqp:not-allowed")
#: Error conditions (AMQP 1.0, 2.8.15 to 2.8.18) after which another attempt would fail, too -> end of the error's text.
_REFUSALS = {
    "amqp:not-found": "does not exist; create it first, or correct the option",
    "amqp:unauthorized-access": "may not be accessed by this user",
    "amqp:not-allowed": "may not be accessed by this user, or is in use by another consumer",
    "amqp:link:redirect": "is served by another broker; name that broker in 'url'",
    "amqp:connection:redirect": "is served by another broker; name that broker in 'url'",
    "amqp:invalid-field": "cannot be read this way",
    "amqp:precondition-failed": "cannot be read this way",
    "amqp:not-implemented": "cannot be read this way",
    "amqp:illegal-state": "cannot be read this way",
}
#: Words in the descriptions of various conditions by which brokers say that a subscription or queue is in use
#: elsewhere.
_IN_USE = ("already connected", "consumer limit", "exclusive")


#: Words in descriptions of ends after which the next session may well succeed: the broker was stopped, or one side did
#: not hear from the other for too long. A RabbitMQ that is stopped states `amqp:internal-error`, "Connection forced: …"
#: (4.0, 4.3), and ActiveMQ Classic states `amqp:decode-error` (6.3).
_NO_REASON = ("Connection forced", "Could not process AMQP commands", "idle-timeout expired")


def is_stated(name: str, description: str) -> bool:
    """Whether an error condition is a reason that may end the next connection, too.

    Args:
        name: name of the condition.
        description: its description, in the broker's words.
    """
    return name != "amqp:connection:forced" and not any(words in description for words in _NO_REASON)


def open_error(condition: tuple[str, str], url: BrokerUrl, endpoint: Endpoint, *, opened: bool, login: bool) -> MqError:
    """Return this package's error for an attempt to open a session that has failed.

    Args:
        condition: name and description of the broker's error condition. If the broker stated no condition, the name is
            empty, and the description is another reason.
        opened: whether the broker had opened the connection before it failed.
        login: whether the broker has refused the login.
    """
    name, description = condition
    reason = _reason(name, description)
    if login or (name in _UNAUTHORIZED and not opened):
        user = endpoint.user(url)
        who = f"user '{user}'" if user is not None else "an unnamed user"
        return RefusedError(
            f"{url}: the broker refused the login of {who}; check options 'username' and 'password', or the login in "
            f"'url' ({reason})"
        )
    if name == "amqp:connection:framing-error" or "header mismatch" in description:
        return BrokerUnavailableError(f"{url}: {reason}{hint(url, PROTOCOL_NAME)}")
    return _link_error(name, description, url, endpoint)


def _link_error(name: str, description: str, url: BrokerUrl, endpoint: Endpoint) -> MqError:
    """Return this package's error for a link to a queue or topic that the broker has refused."""
    destination, reason = endpoint.destination, _reason(name, description)
    exclusive = exclusive_error(reason, url, endpoint)
    if exclusive is not None:
        return exclusive
    if name == "amqp:resource-locked" or any(words in description.lower() for words in _IN_USE):
        # It may be in use by a former connection of this query, whose end the broker has not noticed yet. So try again.
        return BrokerUnavailableError(
            f"{url}: {destination} is in use by another connection, or still by a former one ({reason})"
        )
    if endpoint.broker.will_be_back(reason):
        return BrokerUnavailableError(f"{url}: {destination} cannot be used at the moment ({reason})")
    if name == "amqp:invalid-field" and endpoint.selector is not None:
        problem = f"{endpoint.selector!r} for {destination} was not understood by {url} ({reason})"
        return OptionError("selector", problem)
    if name in _REFUSALS:
        return DestinationError(f"{destination} at {url} {_REFUSALS[name]} ({reason})")
    return BrokerUnavailableError(f"{url}: {destination}: {reason}")


def _reason(name: str, description: str) -> str:
    return f"{name}: {description}" if name else description
