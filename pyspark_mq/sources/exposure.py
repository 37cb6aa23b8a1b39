"""Warnings about secrets that a query's options expose to others, for example over an unencrypted connection.

These are warnings, not errors, because in a network of trusted machines an unencrypted connection may be intended. The
functions look only at options, and open no connection.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from pyspark_mq.wire.endpoint import Endpoint
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["Exposure", "exposures", "of_management", "of_store", "of_url"]


class Exposure(NamedTuple):
    """A warning that others can see a secret.

    Attributes:
        option: the option that exposes the secret.
        what: tells the user which secret is visible, and where.
        remedy: tells the user what to change.
    """

    option: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"option '{self.option}': {self.what}: {self.remedy}"


def exposures(endpoint: Endpoint, management: str = "", store: str = "") -> Iterator[Exposure]:
    """Yield a warning for each secret that a query's options expose.

    Args:
        management: the URL of `managementUrl`, without a login; empty if the option is not set.
        store: the value of `dedupStore`.
    """
    for url in endpoint.urls:
        yield from of_url(url)
    if management:
        yield from of_management(management)
    yield from of_store(store)


def of_url(url: BrokerUrl) -> Iterator[Exposure]:
    """Yield a warning if others on the network can read the connection to a broker."""
    if not url.tls and not _is_here(url.host):
        what = f"the login and all messages cross the network to {url} unencrypted"
        yield Exposure("url", what, f"use {url.partner}://, unless every machine on the way is trusted")


def of_management(url: str) -> Iterator[Exposure]:
    """Yield a warning if others on the network can read the login for the management interface."""
    parts = urlsplit(url)
    if parts.scheme == "http" and not _is_here(parts.hostname or ""):
        what = f"user and password cross the network to {url} unencrypted"
        yield Exposure("managementUrl", what, "use https://, unless every machine on the way is trusted")


def of_store(store: str) -> Iterator[Exposure]:
    """Yield a warning for each way in which others can read the password for Redis or the message IDs there."""
    if "://" not in store:
        return
    parts = urlsplit(store)
    if parts.password is not None or "password" in parse_qs(parts.query):
        what = "Spark shows its value, and so the password in it, in plans (explain(), the UI)"
        yield Exposure(
            "dedupStore", what, "put the password into a file, and name the file in 'dedupStorePasswordFile'"
        )
    if parts.scheme == "redis" and not _is_here(parts.hostname or ""):
        what = f"the login and all message IDs cross the network to {parts.hostname} unencrypted"
        yield Exposure("dedupStore", what, "use rediss://, unless every machine on the way is trusted")


def _is_here(host: str) -> bool:
    """Whether a host name or address certainly means this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in {"localhost", "localhost."}
