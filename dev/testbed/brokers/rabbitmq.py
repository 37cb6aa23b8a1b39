"""A private RabbitMQ node from Debian's package, the machine's or one of :mod:`testbed.debian`, as a local process.

The package's own start script is used below ``/usr/lib``: the one in ``/usr/sbin`` changes to
the system's user and folder. What differs from a plain start, and why:

* ``RABBITMQ_ALLOW_INPUT`` makes the script become the Erlang VM instead of waiting for it, so
  the process spawned here is the one to kill.
* The VM is given its name, so distribution runs before RabbitMQ does. RabbitMQ otherwise starts
  two more VMs in a row, only to have epmd running and to look for a node of the same name.
* epmd, which keeps the names, is our own on a port of our own: the default one is shared by the
  whole machine, becomes a daemon, and survives every node.
* While booting, RabbitMQ loads every module of all its applications, one after the other. Told
  beforehand to load them in bulk, Erlang uses all cores. Restart on two cores: 3.2 s -> 1.7 s.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from testbed.brokers.node import Node, ProcessNode, QueueCounts, TlsFiles, unique_ids
from testbed.brokers.rabbitmq_erlang import CATCH_UP, COUNTS, PRELOAD, SYNC
from testbed.debian import fetch_rabbitmq, within
from testbed.ports import LOOPBACK, listens, speaks
from testbed.process import Command, NodeError, poll
from testbed.publishers.amqp091 import publish_confirmed
from testbed.server import LocalServer

__all__ = ["RabbitNode", "RabbitQueues", "speaks_amqp"]

_LIBRARY = Path("/usr/lib/rabbitmq/lib")
_INSTALL = "install it with: apt-get install rabbitmq-server"

_AMQP_1_0_PLUGIN = "rabbitmq_amqp1_0"
_STOMP_PLUGIN = "rabbitmq_stomp"
_EXTERNAL_PLUGIN = "rabbitmq_auth_mechanism_ssl"
_MANAGEMENT_PLUGIN = "rabbitmq_management"
#: Only plugins whose listeners are known here: others would open a default port on all addresses.
_OAUTH2_PLUGIN = "rabbitmq_auth_backend_oauth2"
_STREAM_PLUGIN = "rabbitmq_stream"
_PLUGINS = frozenset(
    {_AMQP_1_0_PLUGIN, _EXTERNAL_PLUGIN, _MANAGEMENT_PLUGIN, _OAUTH2_PLUGIN, _STOMP_PLUGIN, _STREAM_PLUGIN}
)

_AMQP_GREETING = b"AMQP\x00\x00\x09\x01"
_AMQP_METHOD_FRAME = b"\x01"
_EPMD_TIMEOUT_S = 10.0
_EVAL_TIMEOUT_S = 30.0
_EVAL_RETRY_S = 0.2
#: What erl_call says when the node did not let it in.
_NOT_CONNECTED = "failed to connect to node"
_CTL_TIMEOUT_S = 60.0
_CATCH_UP_TIMEOUT_S = 30.0

_COUNTS_ANSWER = re.compile(r"\{(\d+),\s*(\d+)\}")


class RabbitQueues(Node):
    """What can be done to the queues of a RabbitMQ node, wherever it runs."""

    title = "RabbitMQ"
    #: Have the quorum queues gone through their logs since the last start?
    _caught_up = False

    @abstractmethod
    def eval(self, expression: str) -> str:
        """Evaluate Erlang in the node; the result as Erlang prints it.

        Args:
            expression: one or more, comma-separated; a closing period is added when missing.

        Raises:
            NodeError: the node does not answer, or the expression failed.
        """

    def declare(self, queue: str, *, quorum: bool = False, arguments: Mapping[str, Any] | None = None) -> None:
        """Declare a durable queue, on disk on return.

        Nothing happens when there is one with the same properties.

        Raises:
            NodeError: the broker refused, for example as the properties differ.
        """
        table = dict(arguments or {})
        if quorum:
            table["x-queue-type"] = "quorum"
        with self._channel() as channel:
            channel.queue_declare(queue, durable=True, arguments=table)
        self.eval(SYNC)

    def delete(self, queue: str) -> None:
        """Delete a queue with its messages; nothing happens when there is none.

        Raises:
            NodeError: the broker refused.
        """
        with self._channel() as channel:
            channel.queue_delete(queue)

    def purge(self, queue: str) -> None:
        """Remove the messages of a queue that nobody holds."""
        with self._channel() as channel:
            channel.queue_purge(queue)

    def counts(self, queue: str) -> QueueCounts:
        """Messages of a queue, both numbers of one instant; takes what :meth:`eval` does.

        The first call after a start waits for the quorum queues to have gone through their logs.
        Of those, neither `rabbitmqctl list_queues` (up to five seconds behind) nor a passive
        declare (0 while there is no leader) tells the truth.

        Raises:
            NodeError: no such queue, or quorum queues do not come up.
        """
        if not self._caught_up:
            if not poll(lambda: self.eval(CATCH_UP) == "true", _CATCH_UP_TIMEOUT_S):
                raise NodeError(
                    f"RabbitMQ has quorum queues that do not come up; the end of its log:\n{self.log_tail()}"
                )
            self._caught_up = True
        answer = self.eval(COUNTS.format(name=",".join(str(byte) for byte in queue.encode())))
        match = _COUNTS_ANSWER.fullmatch(answer)
        if match is None:
            raise NodeError(f"queue {queue!r} of RabbitMQ cannot be counted: {answer}")
        return QueueCounts(int(match[1]), int(match[2]))

    def publish(
        self,
        queue: str,
        bodies: Iterable[bytes],
        *,
        ids: Iterable[str | None] | None = None,
        headers: Mapping[str, Any] | None = None,
        protocol: str | None = None,  # noqa: ARG002 - all protocols read the same queues
        expires_ms: int | None = None,
        persistent: bool = True,
        timeout_s: float = 120.0,
        **properties: Any,
    ) -> list[str | None]:
        """Publish to a queue; returns when the broker has confirmed all of them.

        Args:
            ids: `message_id` of each, None for a message without; by default ones that are
                unique over all calls.
            headers: application headers of each.
            protocol: not looked at: it is AMQP 0-9-1.
            expires_ms: time to live of each.
            timeout_s: for all of it; a broker under an alarm takes nothing and says nothing.
            properties: further ones of each, as pika names them (`priority`, `type`, ...).

        Returns:
            the IDs, in order.

        Raises:
            PublishError: not all were confirmed; it has how many were.
            ValueError: `bodies` and `ids` differ in number.
        """
        import pika  # noqa: PLC0415 (only those who ask for it need it)

        used: list[str | None] = []

        def messages() -> Iterator[tuple[bytes, Any]]:
            for body, message_id in zip(bodies, unique_ids() if ids is None else ids, strict=ids is not None):
                used.append(message_id)
                yield (
                    body,
                    pika.BasicProperties(
                        message_id=message_id,
                        headers=dict(headers) if headers is not None else None,
                        delivery_mode=2 if persistent else 1,
                        expiration=None if expires_ms is None else str(expires_ms),
                        **properties,
                    ),
                )

        publish_confirmed(pika.URLParameters(self.url()), queue, messages(), timeout_s=timeout_s)
        return used

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        import pika  # noqa: PLC0415 (only those who ask for it need it)
        from pika.exceptions import AMQPError  # noqa: PLC0415

        try:
            connection = pika.BlockingConnection(pika.URLParameters(self.url()))
            try:
                yield connection.channel()
            finally:
                if connection.is_open:
                    connection.close()
        except AMQPError as error:
            raise NodeError(f"RabbitMQ refused: {error!r}") from error


class _Epmd(LocalServer):
    """What keeps the names of nodes, in the folder of one of them."""

    title = "epmd"
    _log_name = "epmd.log"

    def __init__(self, command: Command, port: int, folder: Path) -> None:
        super().__init__(folder=folder, start_timeout_s=_EPMD_TIMEOUT_S)
        self._given = command
        self._port = port

    def _command(self) -> Command:
        return self._given

    def _ready(self) -> bool:
        return listens(self._port)


class RabbitNode(RabbitQueues, ProcessNode):
    """One RabbitMQ node with the user `guest`/`guest` and the virtual host `/`."""

    def __init__(
        self,
        *,
        version: str = "",
        data: Path | None = None,
        config: Mapping[str, str | int] | None = None,
        plugins: Sequence[str] = (),
        tls: TlsFiles | None = None,
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 30.0,
    ) -> None:
        """Nothing is started yet.

        Args:
            version: one of :data:`testbed.debian.RABBITMQ_SUITES`, fetched if it is not there; by default the
                installed one.
            data: as for :class:`Node`.
            config: more lines of rabbitmq.conf, for example
                ``{"consumer_timeout": 60000, "disk_free_limit.absolute": "50MB"}``.
            plugins: of `rabbitmq_stomp`, `rabbitmq_amqp1_0`, `rabbitmq_management`, `rabbitmq_stream`,
                `rabbitmq_auth_mechanism_ssl` and `rabbitmq_auth_backend_oauth2`.
            tls: listen for TLS as well, for each protocol on one more port.

        Raises:
            NodeError: RabbitMQ is not installed or cannot be fetched, or a plugin is not one of these.
        """
        unknown = set(plugins) - _PLUGINS
        if unknown:
            raise NodeError(f"plugins {sorted(unknown)} are unknown here; known {sorted(_PLUGINS)}")
        self._root = fetch_rabbitmq(version) if version else None
        self._scripts = _find_scripts(self._root)
        super().__init__(data=data, start_timeout_s=start_timeout_s, stop_timeout_s=stop_timeout_s)
        self._config = dict(config or {})
        self._plugins = tuple(plugins)
        self._tls = tls
        self._amqp_port = self._reserve_port()
        self._amqps_port = self._reserve_port()
        self._stomp_port = self._reserve_port()
        self._stomps_port = self._reserve_port()
        self._stream_port = self._reserve_port()
        self._streams_port = self._reserve_port()
        self._management_port = self._reserve_port()
        self._distribution_port = self._reserve_port()
        self._epmd_port = self._reserve_port()
        self._name = self._node_name()
        self._epmd: _Epmd | None = None

    # -- as any node

    @property
    def version(self) -> str:
        return self._scripts.parent.name.removeprefix("rabbitmq_server-")

    @property
    def port(self) -> int:
        """Port of AMQP without TLS."""
        return self._amqp_port

    def url(
        self,
        protocol: str | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
        tls: bool = False,
    ) -> str:
        scheme, port = self._endpoint(protocol or AMQP_0_9_1, tls)
        credentials = f"{quote(user or 'guest', '')}:{quote(password or 'guest', '')}"
        return f"{scheme}://{credentials}@{LOOPBACK}:{port}/"

    @property
    def management_url(self) -> str:
        """Of the HTTP API, with plugin `rabbitmq_management`."""
        return f"http://{LOOPBACK}:{self._management_port}"

    def stream_url(self, *, user: str = "guest", password: str = "guest", tls: bool = False) -> str:
        """Of the protocol of streams, with plugin `rabbitmq_stream`."""
        scheme, port = ("rabbitmq-stream+tls", self._streams_port) if tls else ("rabbitmq-stream", self._stream_port)
        return f"{scheme}://{quote(user, '')}:{quote(password, '')}@{LOOPBACK}:{port}/"

    @property
    def stream_port(self) -> int:
        """Port of the protocol of streams, without TLS."""
        return self._stream_port

    def advertise_stream(self, port: int) -> None:
        """Send clients of streams to another port, that of a proxy, from the next start on."""
        self._config["stream.advertised_port"] = port

    def _endpoint(self, protocol: str, tls: bool) -> tuple[str, int]:
        plain, secured = {
            AMQP_0_9_1: (("amqp", self._amqp_port), ("amqps", self._amqps_port)),
            AMQP_1_0: (("amqp", self._amqp_port), ("amqps", self._amqps_port)),
            STOMP: (("stomp", self._stomp_port), ("stomp+ssl", self._stomps_port)),
        }.get(protocol, (None, None))
        if plain is None or secured is None:
            raise NodeError(f"RabbitMQ nodes do not speak {protocol!r}")
        needed = {AMQP_1_0: _AMQP_1_0_PLUGIN, STOMP: _STOMP_PLUGIN}.get(protocol)
        if needed is not None and needed not in self._plugins:
            raise NodeError(f"this node does not speak {protocol}: give plugins=({needed!r},)")
        if tls and self._tls is None:
            raise NodeError("this node does not listen for TLS: give tls=TlsFiles(...)")
        return secured if tls else plain

    def _command(self) -> Command:
        self._caught_up = False
        self._write_files()
        self._start_epmd()
        arguments = [str(self._scripts / "rabbitmq-server"), "-noinput", "-sname", self._name]
        arguments += ["-start_epmd", "false", *self._distribution_arguments()]
        arguments += ["-eval", " ".join(PRELOAD.split()), "-s", "rabbit", "boot"]
        return Command(self._run_by(arguments), self._environment())

    def _run_by(self, command: Sequence[str]) -> list[str]:
        """How a program of its installation is started."""
        return list(command) if self._root is None else within(self._root, command)

    def _ready(self) -> bool:
        return speaks_amqp(self._amqp_port) and all(listens(port) for port in self._extra_ports())

    def end_helpers(self) -> None:
        if self._epmd is not None:
            self._epmd.kill()

    # -- operating it

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl against the node, about 1 s; what it wrote to standard output.

        Raises:
            NodeError: it failed; the text has what it said.
        """
        return self._run([str(self._scripts / "rabbitmqctl"), *arguments], None, _CTL_TIMEOUT_S)

    def add_user(self, name: str, password: str, *, configure: str = ".*", write: str = ".*", read: str = ".*") -> None:
        """Add a user who may do so much in the virtual host `/`, in a tenth of the time that rabbitmqctl takes.

        Raises:
            NodeError: there is one of that name.
        """
        users, by = "rabbit_auth_backend_internal", _binary("testbed")
        permissions = ", ".join(map(_binary, (name, "/", configure, write, read)))
        self.eval(
            f"ok = {users}:add_user({_binary(name)}, {_binary(password)}, {by}), "
            f"ok = {users}:set_permissions({permissions}, {by})"
        )

    def delete_user(self, name: str) -> None:
        """Delete a user."""
        self.eval(f"rabbit_auth_backend_internal:delete_user({_binary(name)}, {_binary('testbed')})")

    def eval(self, expression: str) -> str:
        """Evaluate Erlang in the node, about 5 ms; the result as Erlang prints it.

        Args:
            expression: one or more, comma-separated; a closing period is added when missing.

        Raises:
            NodeError: the node does not answer, or the expression failed.
        """
        source = expression.strip().removesuffix(".") + ".\n"
        answer = self._erl_call(source).strip()
        if not answer.startswith("{ok, "):
            raise NodeError(f"{source.strip()} in RabbitMQ failed: {answer}")
        return answer.removeprefix("{ok, ").removesuffix("}")

    def _erl_call(self, source: str) -> str:
        command = ["erl_call", "-address", f"{LOOPBACK}:{self._distribution_port}", "-r", "-e"]
        deadline = time.monotonic() + _EVAL_TIMEOUT_S
        while True:
            try:
                return self._run(command, source, _EVAL_TIMEOUT_S)
            except NodeError as failed:
                # A busy node may miss the time erl_call gives the handshake. Nothing was evaluated then.
                if _NOT_CONNECTED not in str(failed) or not self.running or time.monotonic() > deadline:
                    raise
            time.sleep(_EVAL_RETRY_S)

    # -- how it is set up

    def _node_name(self) -> str:
        """Kept with the data, as RabbitMQ finds its data by the name of the node."""
        file = self.data / "node-name"
        if not file.exists():
            file.write_text(f"mq-{secrets.token_hex(4)}@localhost", "ascii")
        return file.read_text("ascii")

    def _write_files(self) -> None:
        cookie = self._home / ".erlang.cookie"
        if not cookie.exists():
            self._home.mkdir(exist_ok=True)
            # Erlang refuses a cookie others can read: whoever has it can do anything in the node.
            descriptor = os.open(cookie, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(16))
        (self.data / "enabled_plugins").write_text(f"[{','.join(self._plugins)}].\n", "ascii")
        lines = "".join(f"{key} = {value}\n" for key, value in self._settings().items())
        config = self.data / "rabbitmq.conf"
        # No file when there is nothing to say: reading one takes RabbitMQ 0.3 s.
        config.unlink(missing_ok=True)
        if lines:
            config.write_text(lines, "utf-8")

    def _settings(self) -> dict[str, str | int]:
        settings: dict[str, str | int] = {}
        if _STOMP_PLUGIN in self._plugins:
            settings["stomp.listeners.tcp.1"] = f"{LOOPBACK}:{self._stomp_port}"
        if _MANAGEMENT_PLUGIN in self._plugins:
            settings["management.tcp.ip"] = LOOPBACK
            settings["management.tcp.port"] = self._management_port
        if _STREAM_PLUGIN in self._plugins:
            settings["stream.listeners.tcp.1"] = f"{LOOPBACK}:{self._stream_port}"
            settings["stream.advertised_host"] = LOOPBACK
            settings["stream.advertised_port"] = self._stream_port
        if self._tls is not None:
            settings |= _tls_settings(self._tls)
            if _STREAM_PLUGIN in self._plugins:
                settings["stream.listeners.ssl.1"] = f"{LOOPBACK}:{self._streams_port}"
                settings["stream.advertised_tls_port"] = self._streams_port
            settings["listeners.ssl.1"] = f"{LOOPBACK}:{self._amqps_port}"
            if _STOMP_PLUGIN in self._plugins:
                settings["stomp.listeners.ssl.1"] = f"{LOOPBACK}:{self._stomps_port}"
        return settings | self._config

    def _extra_ports(self) -> list[int]:
        stomp = _STOMP_PLUGIN in self._plugins
        stream = _STREAM_PLUGIN in self._plugins
        tls = self._tls is not None
        wanted = {
            self._stomp_port: stomp,
            self._management_port: _MANAGEMENT_PLUGIN in self._plugins,
            self._amqps_port: tls,
            self._stomps_port: stomp and tls,
            self._stream_port: stream,
            self._streams_port: stream and tls,
        }
        return [port for port, is_wanted in wanted.items() if is_wanted]

    @property
    def _home(self) -> Path:
        return self.data / "home"

    def _distribution_arguments(self) -> list[str]:
        port = str(self._distribution_port)
        arguments = ["-kernel", "inet_dist_use_interface", "{127,0,0,1}"]
        arguments += ["-kernel", "inet_dist_listen_min", port]
        return [*arguments, "-kernel", "inet_dist_listen_max", port]

    def _environment(self) -> dict[str, str]:
        # What the caller has set for other nodes must not reach this one.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        return inherited | {
            "HOME": str(self._home),
            "ERL_CRASH_DUMP_BYTES": "0",
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_EPMD_PORT": str(self._epmd_port),
            "LC_ALL": "C.UTF-8",
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_CONFIG_FILE": str(self.data / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.data / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(self.data / "rabbitmq-env.conf"),
            "RABBITMQ_CTL_DIST_PORT_MAX": "32767",
            "RABBITMQ_CTL_DIST_PORT_MIN": "10000",
            "RABBITMQ_CTL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.data / "enabled_plugins"),
            "RABBITMQ_LOG_BASE": str(self.data / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_MNESIA_BASE": str(self.data / "mnesia"),
            "RABBITMQ_NODENAME": self._name,
            # The script leaves the booting to us, so that the preloading can come first.
            "RABBITMQ_NODE_ONLY": "1",
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self._amqp_port),
            "RABBITMQ_PID_FILE": str(self.data / "pid"),
        }

    def _start_epmd(self) -> None:
        if self._epmd is not None and self._epmd.running:
            return
        arguments = ["epmd", "-address", LOOPBACK, "-port", str(self._epmd_port)]
        self._epmd = _Epmd(Command(self._run_by(arguments), self._environment()), self._epmd_port, self.data)
        self._epmd.start()

    def _run(self, command: list[str], source: str | None, timeout_s: float) -> str:
        try:
            done = subprocess.run(
                self._run_by(command),
                input=source,
                capture_output=True,
                encoding="utf-8",
                env=self._environment(),
                cwd=self.data,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NodeError(f"RabbitMQ did not answer {command[0]} in {timeout_s:g} s") from None
        if done.returncode != 0:
            said = (done.stderr + done.stdout).strip()
            raise NodeError(f"{Path(command[0]).name} failed with {done.returncode}: {said}")
        return done.stdout


def speaks_amqp(port: int) -> bool:
    """An open port is not enough: with all of RabbitMQ up, it answers a greeting."""
    return speaks(port, _AMQP_GREETING, _AMQP_METHOD_FRAME)


def _find_scripts(root: Path | None) -> Path:
    """The folder of its scripts, as the programs started with it see it."""
    where = _LIBRARY if root is None else root / _LIBRARY.relative_to("/")
    found = sorted(where.glob("rabbitmq_server-*/sbin"), key=_version_key)
    if not found:
        raise NodeError(f"RabbitMQ is not installed (nothing in {where}); {_INSTALL}")
    if root is None:
        for tool in ("epmd", "erl", "erl_call"):
            if shutil.which(tool) is None:
                raise NodeError(f"the Erlang program {tool!r} is not on the PATH; {_INSTALL}")
    return _LIBRARY / found[-1].relative_to(where)


def _version_key(scripts: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", scripts.parent.name)]


def _tls_settings(files: TlsFiles) -> dict[str, str | int]:
    return {
        "ssl_options.cacertfile": str(files.ca_file),
        "ssl_options.certfile": str(files.cert_file),
        "ssl_options.keyfile": str(files.key_file),
        "ssl_options.verify": "verify_peer" if files.verify_client else "verify_none",
        "ssl_options.fail_if_no_peer_cert": "true" if files.verify_client else "false",
    }


def _binary(text: str) -> str:
    """Return a text as Erlang writes its bytes."""
    return f"<<{','.join(map(str, text.encode()))}>>"
