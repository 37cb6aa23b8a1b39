"""Certificates for TLS tests, made by the `openssl` program: a few tenths of a second for all."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BALANCER", "Certificates", "Identity", "make_certificates", "openssl"]

#: The name of a load balancer of Amazon MQ.
BALANCER = "b-1234-5678.mq.eu-central-1.on.aws"
_DAYS = "2"
_CURVE = "ec_paramgen_curve:prime256v1"


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key, PEM files without a password."""

    cert_file: Path
    key_file: Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """What a TLS test needs, the wrong ones included.

    Attributes:
        ca: the authority that has signed `server` and `client`.
        server: for `localhost`, `127.0.0.1` and :data:`BALANCER`.
        client: for the common name `client`.
        other_ca: an authority that has signed none of them.
        stranger: as `client`, but signed by `other_ca`.
    """

    ca: Identity
    server: Identity
    client: Identity
    other_ca: Identity
    stranger: Identity


def make_certificates(folder: Path) -> Certificates:
    """Make all of them in `folder`.

    Raises:
        RuntimeError: openssl is missing or failed.
    """
    ca = _authority(folder, "ca")
    other_ca = _authority(folder, "other-ca")
    return Certificates(
        ca=ca,
        server=_signed(folder, "server", ca, "serverAuth"),
        client=_signed(folder, "client", ca, "clientAuth"),
        other_ca=other_ca,
        stranger=_signed(folder, "stranger", other_ca, "clientAuth"),
    )


def _authority(folder: Path, name: str) -> Identity:
    identity = _identity(folder, name)
    openssl("req", "-x509", "-days", _DAYS, "-out", identity.cert_file, *_new_key(identity),
             "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    return identity


def _signed(folder: Path, name: str, authority: Identity, usage: str) -> Identity:
    identity = _identity(folder, name)
    request = folder / f"{name}.csr"
    extensions = folder / f"{name}.ext"
    extensions.write_text(
        f"basicConstraints=critical,CA:FALSE\nextendedKeyUsage={usage}\nsubjectAltName=DNS:localhost,IP:127.0.0.1,DNS:{BALANCER}\n"
    )
    openssl("req", "-new", "-out", request, *_new_key(identity))
    openssl("x509", "-req", "-days", _DAYS, "-in", request, "-out", identity.cert_file,
             "-CA", authority.cert_file, "-CAkey", authority.key_file, "-CAcreateserial",
             "-extfile", extensions)  # fmt: skip
    return identity


def _identity(folder: Path, name: str) -> Identity:
    return Identity(folder / f"{name}.pem", folder / f"{name}.key")


def _new_key(identity: Identity) -> list[str | Path]:
    subject = f"/CN={identity.key_file.stem}"
    return ["-newkey", "ec", "-pkeyopt", _CURVE, "-nodes", "-keyout", identity.key_file,
            "-subj", subject]  # fmt: skip


def openssl(*arguments: str | Path, given: bytes = b"") -> bytes:
    """Run it with this as its input; what it writes to standard output.

    Raises:
        RuntimeError: it is missing or failed.
    """
    try:
        done = subprocess.run(["openssl", *arguments], input=given, capture_output=True, check=False)
    except FileNotFoundError:
        raise RuntimeError("the program 'openssl' is missing") from None
    if done.returncode != 0:
        raise RuntimeError(f"openssl {arguments[0]} failed: {done.stderr.decode(errors='replace')}")
    return done.stdout
