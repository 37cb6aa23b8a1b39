"""A PostgreSQL server of one's own, with two ways to hold a writer at a known moment of its transaction."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from testbed.ports import LOOPBACK
from testbed.process import Command, NodeError, poll
from testbed.server import LocalServer

__all__ = ["Postgres"]

_HELD_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 20.0
_USER = "postgres"


class Postgres(LocalServer):
    """A server with the newest programs of the machine, on a port and with data of its own.

    It refuses to run as root, so then it runs as the user `postgres` that Debian's package makes.

    Attributes:
        password: of its only user, for `PGPASSWORD`.
    """

    title = "PostgreSQL"
    _poll_s = 0.1
    _stop_signal = signal.SIGINT  # without waiting for its clients

    def __init__(self) -> None:
        """Nothing is started yet.

        Raises:
            NodeError: PostgreSQL is not installed.
        """
        self._programs = _programs()
        super().__init__(stop_timeout_s=_STOP_TIMEOUT_S)
        self._port = self._reserve_port()
        self.password = secrets.token_hex(8)

    @property
    def url(self) -> str:
        """Where clients connect to, without the password."""
        return f"postgresql://{_USER}@{LOOPBACK}:{self._port}/postgres"

    def _command(self) -> Command:
        data = self.folder / "data"
        if not data.exists():
            self._make_data(data)
        settings = {
            "listen_addresses": LOOPBACK,
            "port": self._port,
            "unix_socket_directories": "",
            "fsync": "off",
        }
        given = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [*_as_user(), str(self._programs / "postgres"), "-D", str(data), *given]
        return Command(command, environment={"PATH": os.defpath, "LC_ALL": "C.UTF-8"})

    def _make_data(self, data: Path) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password, "utf-8")
        if os.geteuid() == 0:
            for path in (self.folder, secret):
                shutil.chown(path, _USER, _USER)
        made = subprocess.run(
            [*_as_user(), self._programs / "initdb", "--no-sync", "--username", _USER, "--pwfile", secret,
             "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C.UTF-8", "--pgdata", data],
            capture_output=True, text=True, check=False, cwd=self.folder,
        )  # fmt: skip
        if made.returncode:
            raise NodeError(f"initdb ended with {made.returncode}: {made.stderr[-2000:]}")

    def _ready(self) -> bool:
        try:
            self.ask("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def close(self) -> None:
        """End it, in order if it can be, as it has memory that outlives it; and delete its data."""
        try:
            self.stop()
        finally:
            super().close()

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query, or of a statement that is a transaction by itself."""
        with self._connect() as connection:
            asked = connection.execute(query)  # type: ignore[call-overload]
            return asked.fetchall() if asked.description else []

    def has(self, query: str, timeout_s: float = _HELD_TIMEOUT_S) -> bool:
        """Wait until a query has rows. False when it had none in time; a table that is not there has none."""
        return poll(lambda: bool(self._rows(query)), timeout_s, interval_s=0.1)

    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        """Whoever writes to this table waits, in the middle of his transaction."""
        with self._connect() as connection, connection.transaction():
            connection.execute(f"LOCK TABLE {table} IN SHARE MODE")  # type: ignore[call-overload]
            yield

    def somebody_waits(self, table: str) -> bool:
        """Wait for somebody who is held by :meth:`locked`."""
        return self.has(
            f"SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'relation' AND relation = '{table}'::regclass"
        )

    @contextmanager
    def unconfirmed(self) -> Iterator[None]:
        """Commits are written, and not confirmed: they wait for a standby server that does not exist."""
        self._standby("nobody")
        try:
            yield
        finally:
            self._standby("")

    def somebody_committed(self) -> bool:
        """Wait for somebody who is held by :meth:`unconfirmed`."""
        return self.has("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")

    def _standby(self, name: str) -> None:
        self.ask(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        self.ask("SELECT pg_reload_conf()")

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.url, password=self.password, autocommit=True)

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        try:
            return self.ask(query)
        except psycopg.errors.UndefinedTable:
            return []


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    elsewhere = shutil.which("initdb")
    if found or elsewhere:
        return Path(found[-1] if found else str(elsewhere)).resolve().parent
    raise NodeError("no PostgreSQL server on this machine; install the package 'postgresql'")


def _as_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--init-groups", "--"]
