"""Translates the ERROR frames of STOMP brokers into errors of this package."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_mq.decode.stomp_headers import as_text
from pyspark_mq.errors import (
    BrokerUnavailableError,
    DestinationError,
    MqError,
    OptionError,
    RefusedError,
)
from pyspark_mq.sources.connections.session import SessionLostError
from pyspark_mq.sources.endpoint import Endpoint, exclusive_error
from pyspark_mq.sources.url import BrokerUrl

__all__ = ["error_text", "login_error", "subscribe_error"]


def error_text(headers: Mapping[str, str], body: bytes) -> str:
    """Return the text of an ERROR frame: its header `message`, and the first line of its body."""
    title = as_text(headers.get("message")) or ""
    lines = body.decode("utf-8", "backslashreplace").strip().splitlines()
    first = lines[0].strip() if lines else ""
    if title in first or not first:
        return first or title or "an error without a reason"
    return f"{title}: {first}" if title else first


def login_error(reason: str, url: BrokerUrl, endpoint: Endpoint) -> MqError:
    """Return this package's error for an ERROR frame that answers CONNECT."""
    lower = reason.lower()
    if "virtual host" in lower and "denied" in lower:
        if not endpoint.broker.virtual_hosts:
            # ActiveMQ ignores header `host` of CONNECT. So a broker that rejects the virtual host is RabbitMQ, even if
            # the options name another broker.
            endpoint.check_product(url, "RabbitMQ")
        return RefusedError(
            f"{url}: the broker refused virtual host '{url.virtual_host}'; check the path of "
            f"'url' (%2F is '/') and the user's permissions ({reason})"
        )
    if "already connected" in lower or "client id" in lower or "clientid" in lower:
        # The other connection may be an earlier connection of this source.
        return BrokerUnavailableError(
            f"{url}: {endpoint.destination} is in use by another connection, or by an earlier connection of this "
            f"source whose end the broker has not noticed yet ({reason})"
        )
    if any(word in lower for word in ("password", "access refused", "security", "authenticat", "login", "credential")):
        user = endpoint.user(url)
        who = f"the login of user '{user}'" if user is not None else "a login without a user name"
        return RefusedError(
            f"{url}: the broker refused {who}; check options 'username' and 'password', or the login in 'url' "
            f"({reason})"
        )
    return BrokerUnavailableError(f"{url}: the broker refused the connection ({reason})")


#: Words in ERROR frames that answer SUBSCRIBE, in lower case, with the error text for them. The first match is used.
_REFUSALS = (
    (
        ("authorized to create",),
        "{destination} does not exist in {place} and this user may not create it; declare it first ({reason})",
    ),
    (
        ("not_found", "not found", "does not exist", "no queue"),
        "{destination} does not exist in {place}; declare it first, or correct the option ({reason})",
    ),
    (
        ("precondition", "inequivalent"),
        "{destination} in {place} exists with other properties; delete it or use another 'subscription' ({reason})",
    ),
    (
        ("access_refused", "access refused", "authorized", "permission", "security"),
        "this user may not access {destination} in {place} ({reason})",
    ),
)


def subscribe_error(reason: str, url: BrokerUrl, endpoint: Endpoint) -> Exception:
    """Return this package's error for an ERROR frame that answers SUBSCRIBE."""
    lower = reason.lower()
    if endpoint.selector is not None and ("selector" in lower or "filter" in lower):
        problem = f"{endpoint.selector!r} for {endpoint.destination} was not understood by {url} ({reason})"
        return OptionError("selector", problem)
    if endpoint.broker.will_be_back(reason):
        return SessionLostError(f"{endpoint.destination} cannot be used at the moment ({reason})")
    exclusive = exclusive_error(reason, url, endpoint)
    if exclusive is not None:
        return exclusive
    if "exclusive" in lower or "in use" in lower:
        return SessionLostError(f"{endpoint.destination} is in use by another consumer ({reason})")
    place = f"virtual host '{url.virtual_host}' of {url}" if endpoint.broker.virtual_hosts else str(url)
    for words, text in _REFUSALS:
        if any(word in lower for word in words):
            return DestinationError(text.format(destination=endpoint.destination, place=place, reason=reason))
    return SessionLostError(reason)
