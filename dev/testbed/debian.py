"""RabbitMQ of a later Debian than the machine's, unpacked into a cache folder and run as a local process.

A release of Debian has one RabbitMQ. Those of the later suites are fetched with apt, which checks signatures, into
a folder of their own: no package of the machine is touched and no script of a package is run. A program of it is
started by :func:`within`: with that folder in the place of `/usr`, in a mount namespace that only this
process has. Everything else (`/tmp`, `/etc`, the network, process ids) is the machine's.

Works on Debian and with merged `/usr` only. Who is not root needs user namespaces, which Debian allows.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from testbed.distributions import cache_folder, put_in_place, run_to_end
from testbed.process import NodeError

__all__ = ["RABBITMQ_SUITES", "fetch_rabbitmq", "run_or_fail", "within"]

#: Beginning of the version -> suite. `testing` moves on: its RabbitMQ is that version or a later one.
RABBITMQ_SUITES: Mapping[str, str] = MappingProxyType({"4.0": "trixie", "4.3": "testing"})

_MIRROR = "http://deb.debian.org/debian"
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: With the essential packages that scripts of RabbitMQ take for granted.
_PACKAGES = ("rabbitmq-server", "base-files", "coreutils", "dash", "grep", "sed")
_TIMEOUT_S = 600.0
_TAIL_CHARS = 3_000
#: `$0` is put in the place of /usr, and the rest is run there.
_IN_PLACE = 'mount --rbind "$0" /usr && exec "$@"'


def within(root: Path, command: Sequence[str]) -> list[str]:
    """The command that runs `command` with what was fetched to `root`; it becomes it, pid and all."""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    # A private copy of all mounts would keep each disk that is unmounted meanwhile (dev/testbed/power/disk.py).
    apart = ["--mount", "--propagation", "slave"]
    return ["unshare", *as_root, *apart, "/bin/sh", "-c", _IN_PLACE, str(root / "usr"), *command]


def fetch_rabbitmq(version: str) -> Path:
    """The folder with the RabbitMQ of a version of :data:`RABBITMQ_SUITES`; fetched when it is not there yet.

    Processes may do so at once: the first to finish wins.

    Raises:
        NodeError: this is no Debian, there is no such version, or it cannot be fetched.
    """
    suite = RABBITMQ_SUITES.get(version)
    if suite is None:
        raise NodeError(f"RabbitMQ {version!r} is unknown here; known: {', '.join(RABBITMQ_SUITES)}")
    folder = cache_folder() / f"rabbitmq-{version}-{suite}"
    if folder.is_dir():
        return folder
    if shutil.which("apt-get") is None or not _KEYS.exists():
        raise NodeError(f"RabbitMQ {version} is taken from Debian {suite}, and this is no Debian")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        root = Path(temporary, "root")
        for package in _download(suite, Path(temporary)):
            run_or_fail(["dpkg-deb", "--extract", str(package), str(root)])
        put_in_place(root, folder)
    return folder


def _download(suite: str, place: Path) -> list[Path]:
    """Packages with all that they depend on, as a machine with nothing installed needs them."""
    for part in ("state", "lists/partial", "cache/archives/partial"):
        (place / part).mkdir(parents=True)
    (place / "state" / "status").touch()
    (place / "sources.list").write_text(f"deb [signed-by={_KEYS}] {_MIRROR} {suite} main\n", "ascii")
    settings = {
        "Dir::State": place / "state",
        "Dir::State::status": place / "state" / "status",
        "Dir::State::lists": place / "lists",
        "Dir::Cache": place / "cache",
        "Dir::Etc::sourcelist": place / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Install-Recommends": "false",
        # Who is root here may not be allowed to become apt's own user.
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    (place / "apt.conf").write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()), "utf-8")
    environment = {**os.environ, "APT_CONFIG": str(place / "apt.conf"), "LC_ALL": "C.UTF-8"}
    run_or_fail(["apt-get", "update"], environment)
    run_or_fail(["apt-get", "install", "--yes", "--download-only", *_PACKAGES], environment)
    return sorted((place / "cache" / "archives").glob("*.deb"))


def run_or_fail(command: list[str], environment: Mapping[str, str] | None = None) -> None:
    """Run a program to its end.

    Raises:
        NodeError: it fails, or takes too long.
    """
    try:
        code, said = run_to_end(command, _TIMEOUT_S, environment)
    except subprocess.TimeoutExpired:
        raise NodeError(f"{command[0]} {command[1]} did not end within {_TIMEOUT_S:g} s") from None
    if code != 0:
        raise NodeError(f"{' '.join(command)} failed; it said:\n{said[-_TAIL_CHARS:]}")
