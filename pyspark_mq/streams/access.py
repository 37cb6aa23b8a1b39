"""Everything that a Spark task needs to connect to the brokers, secrets included. The repr hides the secrets."""

from __future__ import annotations

import os
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_mq.errors import OptionError
from pyspark_mq.wire.endpoint import Endpoint
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["Access", "make_access"]


@dataclass(frozen=True)
class Access:
    """URLs, login, TLS settings and time limits (in seconds) with which the driver and the tasks connect.

    The object holds the contents of certificate files instead of their paths, because the files may exist only on the
    driver's machine.

    Attributes:
        ca: content of the PEM file with the accepted certificate authorities; None for those of the system.
        certificate: content of the PEM file with the client's certificate and its key; None for no client certificate.
    """

    urls: tuple[BrokerUrl, ...]
    username: str
    password: str = field(repr=False)
    ca: str | None = field(default=None, repr=False)
    certificate: str | None = field(default=None, repr=False)
    verify: bool = True
    connect_timeout_s: float = 30.0
    reconnect_timeout_s: float = 600.0
    heartbeat_s: float = 60.0

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for a connection to a broker."""
        context = ssl.create_default_context(cadata=self.ca)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate is not None:
            # OpenSSL reads a certificate only from a file. Only this user can read the file, and it is removed at once.
            descriptor, name = tempfile.mkstemp(suffix=".pem")
            try:
                with os.fdopen(descriptor, "w", encoding="ascii") as file:
                    file.write(self.certificate)
                context.load_cert_chain(name, password=lambda: b"")
            finally:
                os.unlink(name)
        return context


def make_access(endpoint: Endpoint) -> Access:
    """Return the access that the connection options describe, and read the files that the options name.

    Raises:
        OptionError: a certificate file or key file cannot be read.
    """
    url = endpoint.urls[0]
    username, password = endpoint.credentials(url)
    tls = endpoint.tls
    certificate = None
    if tls.cert_file is not None:
        certificate = _content("tls.certFile", tls.cert_file)
        if tls.key_file is not None:
            certificate += "\n" + _content("tls.keyFile", tls.key_file)
    return Access(
        urls=endpoint.urls,
        username="guest" if username is None else username,
        password="guest" if password is None and username is None else password or "",
        ca=None if tls.ca_file is None else _content("tls.caFile", tls.ca_file),
        certificate=certificate,
        verify=tls.verify,
        connect_timeout_s=endpoint.connect_timeout_s,
        reconnect_timeout_s=endpoint.reconnect_timeout_s,
        heartbeat_s=endpoint.heartbeat_s,
    )


def _content(option: str, file: str) -> str:
    try:
        return Path(file).read_text("ascii")
    except (OSError, UnicodeDecodeError) as failed:
        raise OptionError(option, f"{file!r} cannot be read by the driver: {failed}") from None
