"""A PostgreSQL server of one's own, with two ways to hold a writer at a known moment of its transaction."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from testbed.process import LOOPBACK, Command, NodeError, Process, ReservedPort, Started, poll

__all__ = ["Postgres"]

_START_TIMEOUT_S = 60.0
_HELD_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 20.0
_USER = "postgres"


class Postgres(Started):
    """A server with the newest programs of the machine, on a port and with data of its own.

    It refuses to run as root, so then it runs as the user `postgres` that Debian's package makes.

    Attributes:
        password: of its only user, for `PGPASSWORD`.
    """

    def __init__(self) -> None:
        """Nothing is started yet.

        Raises:
            NodeError: PostgreSQL is not installed.
        """
        self._programs = _programs()
        self._folder = Path(tempfile.mkdtemp(prefix="pyspark-mq-postgres-"))
        self._port = ReservedPort()
        self.password = secrets.token_hex(8)
        self._process: Process | None = None

    @property
    def url(self) -> str:
        """Where clients connect to, without the password."""
        return f"postgresql://{_USER}@{LOOPBACK}:{self._port.number}/postgres"

    def start(self) -> None:
        """Make its data and start it.

        Raises:
            NodeError: it did not come up; with the end of its log.
        """
        data, secret, log = self._folder / "data", self._folder / "password", self._folder / "log"
        secret.write_text(self.password, "utf-8")
        if os.geteuid() == 0:
            for path in (self._folder, secret):
                shutil.chown(path, _USER, _USER)
        made = subprocess.run(
            [*_as_user(), self._programs / "initdb", "--no-sync", "--username", _USER, "--pwfile", secret,
             "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C.UTF-8", "--pgdata", data],
            capture_output=True, text=True, check=False, cwd=self._folder,
        )  # fmt: skip
        if made.returncode:
            raise NodeError(f"initdb ended with {made.returncode}: {made.stderr[-2000:]}")
        settings = {
            "listen_addresses": LOOPBACK,
            "port": self._port.number,
            "unix_socket_directories": "",
            "fsync": "off",
        }
        given = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [*_as_user(), str(self._programs / "postgres"), "-D", str(data), *given]
        self._process = Process(
            Command(command, environment={"PATH": os.defpath, "LC_ALL": "C.UTF-8"}), log=log, folder=self._folder
        )
        if not poll(self._serves, _START_TIMEOUT_S, interval_s=0.1):
            raise NodeError(f"PostgreSQL does not answer: {log.read_text('utf-8')[-2000:]}")

    def close(self) -> None:
        """End it and delete its data."""
        if self._process is not None:
            if self._process.running:
                os.kill(self._process.pid, signal.SIGINT)  # without waiting for its clients
                poll(lambda: self._process is None or not self._process.running, _STOP_TIMEOUT_S)
            self._process.kill()
        self._port.close()
        shutil.rmtree(self._folder, ignore_errors=True)

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

    def _serves(self) -> bool:
        try:
            self.ask("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

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
