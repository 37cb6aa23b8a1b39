"""Creates pika's connection parameters from an endpoint: address, login and TLS."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pika

from pyspark_mq.wire.endpoint import Endpoint
from pyspark_mq.wire.socket_loop import addresses_of
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["connection_parameters"]


def connection_parameters(
    endpoint: Endpoint,
    url: BrokerUrl,
    timeout_s: float,
    login: tuple[str | None, str | None],
    name: str,
    attempt: int = 0,
) -> pika.ConnectionParameters:
    """Return the parameters for one attempt to connect.

    Args:
        login: user and password, as :meth:`.Endpoint.credentials` returns them.
        name: name of the connection, which the broker's management interface shows.
        attempt: number of failed attempts so far. The first attempt tries all addresses of the host, one after the
            other. Each later attempt tries one address, because pika uses the first address that accepts a connection,
            even if no broker answers there.
    """
    # Divide the timeout by the number of addresses, because pika waits for the whole timeout at each of them.
    addresses = [url.host]
    with suppress(OSError):
        addresses = [address[0] for *_, address in addresses_of(url.host, url.port)] or addresses
    one_of_them = attempt > 0 and len(addresses) > 1
    return pika.ConnectionParameters(
        host=addresses[attempt % len(addresses)] if one_of_them else url.host,
        port=url.port,
        virtual_host=url.virtual_host,
        credentials=_credentials(endpoint, url, login),
        heartbeat=round(endpoint.heartbeat_s),
        socket_timeout=timeout_s / len(addresses),
        stack_timeout=timeout_s,
        client_properties={"product": "pyspark-mq", "connection_name": name},
        ssl_options=pika.SSLOptions(endpoint.tls.context(), url.host) if url.tls else None,
    )


def _credentials(endpoint: Endpoint, url: BrokerUrl, login: tuple[str | None, str | None]) -> Any:
    username, password = login
    if username is None and url.tls and endpoint.tls.cert_file is not None:
        # If there is a client certificate but no user, the certificate is the login (SASL EXTERNAL).
        return pika.credentials.ExternalCredentials()
    return pika.PlainCredentials("guest" if username is None else username, "guest" if password is None else password)
