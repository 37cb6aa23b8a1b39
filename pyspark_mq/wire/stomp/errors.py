"""Translates the ERROR frames of STOMP brokers into errors of this package."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_mq.decode.stomp_headers import as_text
from pyspark_mq.errors import BrokerUnavailableError, MqError, RefusedError
from pyspark_mq.wire.endpoint import Endpoint
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["error_text", "login_error"]


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
