"""Finds out when the certificates of brokers and clients expire.

Python's module `ssl` tells when a server's certificate expires only if it has verified the certificate, and never tells
when a client's own certificate expires. So this module reads the time from the bytes of a certificate.

A certificate (X.509, RFC 5280, 4.1) is an ASN.1 SEQUENCE. The first element of this SEQUENCE has the validity as its
fifth element, or as its fourth element if the version is left out.
"""

from __future__ import annotations

import math
import socket
import ssl
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from pyspark_mq.admin.checks import Finding, Level
from pyspark_mq.sources.exposure import of_url
from pyspark_mq.wire.endpoint import Endpoint, tls_error
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["check_certificate", "check_tls", "of_file", "of_server", "valid_until"]

_EXPLICIT_VERSION = 0xA0
_UTC_TIME = 0x17
#: Two-digit years from 50 on are in the 20th century (RFC 5280, 4.1.2.5.1).
_LAST_CENTURY = 50
#: A certificate that expires within this many days gets a warning.
_DAYS_LEFT = 30


def check_tls(url: BrokerUrl, endpoint: Endpoint) -> Iterator[Finding]:
    """Check whether TLS is used, and how long the certificates of the broker and of this client are valid."""
    check = "tls"
    if not url.tls:
        found = [Finding(check, Level.WARNING, exposed.what, exposed.remedy) for exposed in of_url(url)]
        yield from found or [Finding(check, Level.OK, f"not used with {url.scheme}:// on this machine")]
        return
    try:
        yield check_certificate("the broker's certificate", of_server(url, endpoint), datetime.now(timezone.utc))
    except ssl.SSLError as refused:
        yield Finding(check, Level.PROBLEM, str(tls_error(refused, url)))
        return
    except OSError as unavailable:
        yield Finding(check, Level.UNKNOWN, f"the certificate cannot be fetched: {unavailable}", "see 'login'")
    except ValueError as failed:
        yield Finding(check, Level.UNKNOWN, f"the certificate cannot be read: {failed}", "see 'login'")
    if not endpoint.tls.verify:
        text = "'tls.verify' is false: anyone may pose as the broker and receive the password"
        yield Finding(
            check, Level.WARNING, text, "set 'tls.caFile' to the broker's authority, and 'tls.verify' to true"
        )
    if endpoint.tls.cert_file is not None:
        try:
            end = of_file(endpoint.tls.cert_file)
        except (OSError, ValueError) as failed:
            yield Finding(check, Level.UNKNOWN, f"'tls.certFile' cannot be read: {failed}", "see 'login'")
        else:
            yield check_certificate(f"the client's, {endpoint.tls.cert_file!r},", end, datetime.now(timezone.utc))


def check_certificate(whose: str, end: datetime, now: datetime) -> Finding:
    """Check how long a certificate is still valid.

    Args:
        whose: the certificate as the finding names it, for example "the broker's certificate".
        end: when the certificate expires.
    """
    days = math.floor((end - now).total_seconds() / 86_400)
    text = f"{whose} is valid for {days} more day(s), until {end:%Y-%m-%d %H:%M} UTC"
    if end <= now:
        return Finding("tls", Level.PROBLEM, f"{whose} expired on {end:%Y-%m-%d %H:%M} UTC", "renew it")
    if days < _DAYS_LEFT:
        advice = "renew the certificate: after it has expired, no reconnect succeeds"
        return Finding("tls", Level.WARNING, text, advice)
    return Finding("tls", Level.OK, text)


def of_server(url: BrokerUrl, endpoint: Endpoint) -> datetime:
    """Return when a broker's certificate expires.

    Raises:
        OSError: the connection fails. If the TLS handshake fails, the error is an `ssl.SSLError`.
        ValueError: the certificate cannot be read.
    """
    with (
        socket.create_connection((url.host, url.port), endpoint.connect_timeout_s) as connected,
        endpoint.tls.context().wrap_socket(connected, server_hostname=url.host) as secured,
    ):
        return valid_until(secured.getpeercert(binary_form=True) or b"")


def of_file(path: str) -> datetime:
    """Return when the first certificate in a PEM file expires. Raise a ValueError if there is no certificate."""
    text = Path(path).read_text("ascii", errors="replace")
    start, end = text.find(ssl.PEM_HEADER), text.find(ssl.PEM_FOOTER)
    if start < 0 or end < 0:
        raise ValueError(f"{path!r} has no certificate")
    return valid_until(ssl.PEM_cert_to_DER_cert(text[start : end + len(ssl.PEM_FOOTER)] + "\n"))


def valid_until(der: bytes) -> datetime:
    """Return when the certificate with these bytes (DER) expires: its field `notAfter`, in UTC.

    Raises:
        ValueError: the bytes are not a certificate.
    """
    try:
        _, certificate, _ = _element(der)
        _, rest, _ = _element(certificate)
        if rest[0] == _EXPLICIT_VERSION:
            rest = _element(rest)[2]
        for _skipped in ("serial number", "signature", "issuer"):
            rest = _element(rest)[2]
        _, validity, _ = _element(rest)
        kind, text, _ = _element(_element(validity)[2])
    except IndexError:
        raise ValueError("not a certificate") from None
    digits = text.decode("ascii")
    if kind == _UTC_TIME:
        digits = ("19" if int(digits[:2]) >= _LAST_CENTURY else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc)


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Split off the first DER element of these bytes (X.690, 8.1): return its tag, its content, and the other bytes."""
    tag, size, start = data[0], data[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(data[2:start], "big")
    if len(data) < start + size:
        raise IndexError
    return tag, data[start : start + size], data[start + size :]
