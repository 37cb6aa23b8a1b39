"""Translates the ERROR frames that answer SUBSCRIBE into errors of this package."""

from __future__ import annotations

from pyspark_mq.errors import DestinationError, OptionError
from pyspark_mq.sources.connections.session import SessionLostError
from pyspark_mq.wire.endpoint import Endpoint, exclusive_error
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["subscribe_error"]

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
