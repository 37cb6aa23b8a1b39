"""Brokers in containers, started by testcontainers, behind the interface of the local nodes.

For machines with Docker and without the brokers, and for versions that are not installed. The
images are the makers' own, or any that takes its user in the same way; `dev/docker/` has some.

* Kills and starts are those of one container: its file system, or the volume its image declares,
  is the broker's disk.
* The ports are published on 127.0.0.1 only, as everybody knows the password, and stay the same.
* testcontainers' reaper is off unless TESTCONTAINERS_RYUK_DISABLED says otherwise: it is one more
  image to pull. A limit, then: when the owner is killed the container stays; all have the label
  `pyspark-mq`, so ``docker rm -fv $(docker ps -aq --filter label=pyspark-mq)`` removes them.
* Not to be had in containers: TLS, and what local nodes take as settings.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark_mq.brokers.activemq import ACTIVEMQ
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from testbed.brokers.artemis import ArtemisQueues
from testbed.brokers.java import PASSWORD, USER, JavaQueues, logs_in
from testbed.brokers.jmx import ActiveMqAdmin, ArtemisAdmin, Jolokia
from testbed.brokers.node import Node
from testbed.brokers.rabbitmq import RabbitQueues, speaks_amqp
from testbed.ports import LOOPBACK, ReservedPort, speaks
from testbed.process import NodeError
from testbed.server import TAIL_LINES, Server

if TYPE_CHECKING:
    from testbed.brokers.jmx import QueueAdmin

__all__ = ["ActiveMqContainer", "ArtemisContainer", "ContainerNode", "RabbitContainer", "make_container"]

_INSTALL = "install it with: pip install 'testcontainers>=4.15'"
_LABEL = "pyspark-mq"
_REAPER_OFF = "TESTCONTAINERS_RYUK_DISABLED"
_END_TIMEOUT_S = 30.0
#: Exit code of what a SIGKILL has ended.
_KILLED = 128 + 9

_AMQP_PORT = 5672
_STOMP_PORT = 61613
_WEB_PORT = 8161
#: AMQP 1.0 with SASL, and how every version of AMQP begins its answer.
_AMQP_1_0_GREETING = b"AMQP\x03\x01\x00\x00"
_AMQP = b"AMQP"
#: The whole output of rabbitmqctl when an expression gave a string.
_ERLANG_STRING = re.compile(r'"(.*)"')


class ContainerNode(Server, Node):
    """One broker in a container of its own."""

    _poll_s = 0.1
    #: Image without its tag, the tag of the default version, and what overrides both.
    _repository: str
    _tag: str
    _variable: str
    #: Ports inside that are published.
    _published: tuple[int, ...]
    _environment: Mapping[str, str]

    def __init__(self, version: str = "", *, start_timeout_s: float = 120.0, stop_timeout_s: float = 30.0) -> None:
        """Nothing is started or pulled yet.

        Args:
            version: tag of the image, also the beginning of the version; by default a fixed one. Where
                the environment names the image (`PYSPARK_MQ_<BROKER>_IMAGE`, or with `_<version>` behind
                it for that one), its version is only checked, when it is started.

        Raises:
            NodeError: testcontainers is missing, or Docker does not answer.
        """
        named = os.environ.get(f"{self._variable}_{version}") or os.environ.get(self._variable)
        self.image = named or f"{self._repository}:{version or self._tag}"
        self._wanted = version
        super().__init__(start_timeout_s=start_timeout_s, stop_timeout_s=stop_timeout_s)
        self._owner: Any = _docker_container(self.image)
        #: Of docker-py; None until it is started first.
        self._container: Any = None
        self._ports = {inside: ReservedPort() for inside in self._published}
        self._started_at = 0.0
        self._version = ""

    # -- as any node

    @property
    def version(self) -> str:
        """As the broker itself says it.

        Raises:
            NodeError: it was never started.
        """
        if not self._version:
            raise NodeError(f"{self.title} in a container reports its version once it was started")
        return self._version

    def url(
        self,
        protocol: str | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
        tls: bool = False,
    ) -> str:
        scheme, inside = self._endpoint(protocol)
        if tls:
            raise NodeError(f"{self.title} in a container does not listen for TLS here")
        return f"{scheme}://{user or USER}:{password or PASSWORD}@{LOOPBACK}:{self._ports[inside].number}/"

    @property
    def running(self) -> bool:
        if self._container is None:
            return False
        with self._asking("say whether it runs"):
            self._container.reload()
            return bool(self._container.status == "running")

    @property
    def _place(self) -> str:
        return self.image

    def _launch(self) -> None:
        self._started_at = time.time()
        with self._asking("start"):
            if self._container is None:
                self._create()
            else:
                self._container.start()

    def _terminate(self) -> bool:
        if not self.running:
            return True
        with self._asking("stop"):
            # Docker kills what is not gone by then.
            self._container.stop(timeout=round(self._stop_timeout_s))
            code = self._container.wait(timeout=_END_TIMEOUT_S)["StatusCode"]
        return bool(code != _KILLED)

    def kill(self) -> None:
        if not self.running:
            return
        with self._asking("be killed"):
            self._container.kill(signal="KILL")
            self._container.wait(timeout=_END_TIMEOUT_S)

    def freeze(self, seconds: float) -> None:
        if not self.running:
            return
        with self._asking("be paused"):
            self._container.pause()
            try:
                time.sleep(seconds)
            finally:
                self._container.unpause()

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        if self._container is None:
            return ""
        with self._asking("show its log"):
            log: bytes = self._container.logs(tail=lines, since=self._started_at)
        return log.decode("utf-8", "replace").rstrip()

    def close(self) -> None:
        """Remove the container with its volumes. May be called again."""
        try:
            if self._container is not None:
                with self._asking("be removed"):
                    self._container.remove(force=True, v=True)
            self._owner.get_docker_client().client.close()
        finally:
            self._container = None
            for port in self._ports.values():
                port.close()

    # -- how it is run

    @abstractmethod
    def _endpoint(self, protocol: str | None) -> tuple[str, int]:
        """Scheme of urls, and port inside."""

    @abstractmethod
    def _ready(self) -> bool:
        """Does it serve clients? Not asked of the ports alone: Docker accepts before the broker does."""

    @abstractmethod
    def _ask_version(self) -> str:
        """Version, of the running broker."""

    def _create(self) -> None:
        owner = self._owner
        for name, value in self._environment.items():
            owner.with_env(name, value)
        # Not by with_bind_ports, which knows no addresses.
        owner.ports.update({str(inside): (LOOPBACK, port.number) for inside, port in self._ports.items()})
        owner.with_kwargs(labels={_LABEL: self.title})
        try:
            owner.start()
        except BaseException:
            half_made = owner.get_wrapped_container()
            if half_made is not None:
                half_made.remove(force=True, v=True)
            raise
        self._container = owner.get_wrapped_container()

    def _started(self) -> None:
        self._version = self._version or self._ask_version()
        if self._wanted and not f"{self._version}.".startswith(f"{self._wanted}."):
            raise NodeError(f"{self.title} {self._wanted} was asked for, {self._version} is in {self.image}")

    def _execute(self, *command: str) -> str:
        """Run a program in the container; what it wrote to standard output."""
        with self._asking(f"run {command[0]}"):
            code, (output, errors) = self._container.exec_run(list(command), demux=True)
        text = (output or b"").decode("utf-8", "replace")
        if code != 0:
            said = (text + (errors or b"").decode("utf-8", "replace")).strip()
            raise NodeError(f"{command[0]} in {self.image} failed with {code}: {said}")
        return text

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """What Docker and its clients raise, as our error."""
        from docker.errors import DockerException  # noqa: PLC0415 (only those who ask for it need it)
        from requests.exceptions import RequestException  # noqa: PLC0415
        from testcontainers.core.exceptions import ContainerStartException  # noqa: PLC0415

        try:
            yield
        except (DockerException, RequestException, ContainerStartException) as error:
            raise NodeError(f"{self.title} in {self.image} could not {what}\n{error}") from error


class RabbitContainer(RabbitQueues, ContainerNode):
    """RabbitMQ, with STOMP, and AMQP 1.0 where it is part of the broker (4) or of the image."""

    _repository = "rabbitmq"
    _tag = "4"
    _variable = "PYSPARK_MQ_RABBITMQ_IMAGE"
    _published = (_AMQP_PORT, _STOMP_PORT)
    # `guest` is refused from outside of the container.
    _environment = MappingProxyType(
        {
            "RABBITMQ_DEFAULT_USER": USER,
            "RABBITMQ_DEFAULT_PASS": PASSWORD,
            "RABBITMQ_ENABLED_PLUGINS": "rabbitmq_stomp",
        }
    )

    def eval(self, expression: str) -> str:
        """As any RabbitMQ; by rabbitmqctl, so it takes a second or two."""
        source = expression.strip().removesuffix(".") + "."
        return self._execute("rabbitmqctl", "--quiet", "eval", source).strip()

    def start(self) -> None:
        self._caught_up = False
        super().start()

    def _endpoint(self, protocol: str | None) -> tuple[str, int]:
        endpoints = {
            AMQP_0_9_1: ("amqp", _AMQP_PORT),
            AMQP_1_0: ("amqp", _AMQP_PORT),
            STOMP: ("stomp", _STOMP_PORT),
        }
        return _known(self.title, endpoints, protocol or AMQP_0_9_1)

    def _ready(self) -> bool:
        return speaks_amqp(self._ports[_AMQP_PORT].number) and logs_in(self._ports[_STOMP_PORT].number)

    def _ask_version(self) -> str:
        answer = self.eval("rabbit_misc:version()")
        match = _ERLANG_STRING.fullmatch(answer)
        if match is None:
            raise NodeError(f"{self.image} does not say its version, but {answer}")
        return match[1]


class _JavaContainer(JavaQueues, ContainerNode):
    """What both have in common. Their web consoles have the JMX agent that local nodes have as well."""

    _published = (_AMQP_PORT, _STOMP_PORT, _WEB_PORT)
    _agent_path: str

    def __init__(self, version: str = "", *, start_timeout_s: float = 120.0, stop_timeout_s: float = 30.0) -> None:
        super().__init__(version, start_timeout_s=start_timeout_s, stop_timeout_s=stop_timeout_s)
        # By this name: it is the one origin their agents let in.
        url = f"http://localhost:{self._ports[_WEB_PORT].number}{self._agent_path}"
        self.jolokia = Jolokia(url, USER, PASSWORD)

    def _endpoint(self, protocol: str | None) -> tuple[str, int]:
        endpoints = {STOMP: ("stomp", _STOMP_PORT), AMQP_1_0: ("amqp", _AMQP_PORT)}
        return _known(self.title, endpoints, protocol or STOMP)

    def _ready(self) -> bool:
        if not logs_in(self._ports[_STOMP_PORT].number):
            return False
        if not speaks(self._ports[_AMQP_PORT].number, _AMQP_1_0_GREETING, _AMQP):
            return False
        with contextlib.suppress(NodeError):
            return bool(self._admin.version())
        return False

    def _ask_version(self) -> str:
        return self._admin.version()


class ActiveMqContainer(_JavaContainer):
    """ActiveMQ Classic."""

    title = "ActiveMQ"
    broker = ACTIVEMQ
    _repository = "apache/activemq-classic"
    _tag = "6.1.7"
    _variable = "PYSPARK_MQ_ACTIVEMQ_IMAGE"
    _agent_path = "/api/jolokia/"
    _environment = MappingProxyType(
        {
            "ACTIVEMQ_CONNECTION_USER": USER,
            "ACTIVEMQ_CONNECTION_PASSWORD": PASSWORD,
            "ACTIVEMQ_WEB_USER": USER,
            "ACTIVEMQ_WEB_PASSWORD": PASSWORD,
        }
    )

    def __init__(self, version: str = "", *, start_timeout_s: float = 120.0, stop_timeout_s: float = 30.0) -> None:
        super().__init__(version, start_timeout_s=start_timeout_s, stop_timeout_s=stop_timeout_s)
        self._kept: set[str] = set()

    @property
    def _admin(self) -> QueueAdmin:
        return ActiveMqAdmin(self.jolokia)

    def start(self) -> None:
        super().start()
        # Classic forgets an empty queue when it ends.
        for queue in sorted(self._kept):
            super().declare(queue)

    def declare(self, queue: str) -> None:
        super().declare(queue)
        self._kept.add(queue)

    def delete(self, queue: str) -> None:
        super().delete(queue)
        self._kept.discard(queue)


class ArtemisContainer(ArtemisQueues, _JavaContainer):
    """ActiveMQ Artemis."""

    _repository = "apache/activemq-artemis"
    _tag = "2.42.0"
    _variable = "PYSPARK_MQ_ARTEMIS_IMAGE"
    _agent_path = "/console/jolokia/"
    _environment = MappingProxyType({"ARTEMIS_USER": USER, "ARTEMIS_PASSWORD": PASSWORD})
    _found: ArtemisAdmin | None = None

    @property
    def _admin(self) -> ArtemisAdmin:
        if self._found is None:
            # What an image calls its broker is its own affair.
            (mbean,) = self.jolokia.read("org.apache.activemq.artemis:broker=*", "Version")
            self._found = ArtemisAdmin(self.jolokia, mbean.partition('"')[2].rpartition('"')[0])
        return self._found


_KINDS: Mapping[str, type[ContainerNode]] = MappingProxyType(
    {"rabbitmq": RabbitContainer, "activemq": ActiveMqContainer, "artemis": ArtemisContainer}
)


def make_container(broker: str, version: str = "", **settings: Any) -> ContainerNode:
    """A node in a container with all the protocols its image has, not started.

    Args:
        broker: `rabbitmq`, `activemq` or `artemis`.
        version: as of :class:`ContainerNode`.
        settings: `start_timeout_s` and `stop_timeout_s`.

    Raises:
        NodeError: testcontainers is missing, Docker does not answer, or there is no such broker.
    """
    if broker not in _KINDS:
        raise NodeError(f"there is no broker {broker!r}; known are {', '.join(_KINDS)}")
    return _KINDS[broker](version, **settings)


def _known(title: str, endpoints: Mapping[str, tuple[str, int]], protocol: str) -> tuple[str, int]:
    if protocol not in endpoints:
        raise NodeError(f"{title} in a container does not speak {protocol!r}")
    return endpoints[protocol]


def _docker_container(image: str) -> Any:
    """A container of testcontainers, not started, of a Docker that answers."""
    # Read when testcontainers is imported.
    os.environ.setdefault(_REAPER_OFF, "true")
    try:
        from docker.errors import DockerException  # noqa: PLC0415 (only those who ask for it need it)
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415
    except ImportError as error:
        raise NodeError(f"testcontainers is not installed; {_INSTALL}") from error
    try:
        container = DockerContainer(image)
        container.get_docker_client().client.ping()
    except DockerException as error:
        raise NodeError(f"Docker does not answer\n{error}") from error
    return container
