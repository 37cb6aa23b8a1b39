"""The command `doctor` on real brokers, each with queues that are wrong in their own way.

One run looks at all queues of a broker; a test each says what it has to find.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from pyspark_mq.cli.main import main
from pyspark_mq.spark_source.options import parse_options
from testbed.brokers.activemq import ActiveMqNode
from testbed.brokers.artemis import ArtemisNode
from testbed.brokers.java import READER, READER_PASSWORD
from testbed.brokers.rabbitmq import RabbitNode
from testbed.chaos.proxy import FaultProxy
from testbed.process import NodeError, poll
from tests.plugin import Nodes, missing
from tests.support.certificates import BALANCER, Certificates
from tests.support.engine import Engine

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]
PASSWORD = "hushhush-s3cr3t"
#: Checks that may show an error of the source, which says itself what to do.
ERRORS = {"login", "read", "broker", "tls"}


@dataclass(frozen=True)
class Told:
    """What one run of the command gave."""

    code: int
    findings: Sequence[dict[str, Any]]

    def of(self, about: str, check: str) -> list[dict[str, Any]]:
        return [one for one in self.findings if about in one["about"] and one["check"] == check]

    def one(self, about: str, check: str, level: str, words: str) -> dict[str, Any]:
        """The finding of that level and with these words."""
        found = self.of(about, check)
        assert found, f"{check} was not examined: {[(one['about'], one['check']) for one in self.findings]}"
        fitting = [one for one in found if one["level"] == level and words in one["found"]]
        assert fitting, found
        return fitting[0]


def doctor(*arguments: str, **options: object) -> Told:
    given = [f"{name}={value}" for name, value in options.items()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    done = subprocess.run(
        [sys.executable, "-m", "pyspark_mq", "doctor", "--json", "--wait", "0.5", *arguments, *given],
        capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=240,
    )  # fmt: skip
    assert done.stdout, done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    told = json.loads(done.stdout)
    findings = told["findings"]
    advised = [one for one in findings if one["level"] != "ok" and one["check"] not in ERRORS]
    assert all(one["remedy"] for one in advised), advised
    assert told["level"] in {one["level"] for one in findings}
    assert done.returncode == (1 if told["level"] == "problem" else 0)
    return Told(done.returncode, findings)


def started(make: Any) -> Any:
    try:
        return make()
    except NodeError as absent:
        missing(str(absent))
        raise


# -- RabbitMQ ----------------------------------------------------------------------------------

RABBIT_QUEUES: dict[str, dict[str, Any]] = {
    "good": {"x-queue-type": "quorum", "x-dead-letter-exchange": "amq.fanout", "x-delivery-limit": 50},
    "plain": {"x-queue-type": "quorum"},
    "limited": {"x-queue-type": "quorum", "x-delivery-limit": 3, "x-dead-letter-exchange": "amq.fanout"},
    "nowhere": {"x-queue-type": "quorum"},
    "delayed": {"x-queue-type": "quorum"},
    "hasty": {"x-queue-type": "quorum", "x-consumer-timeout": 120_000},
    "held": {
        "x-queue-type": "quorum",
        "x-delayed-retry-type": "all",
        "x-delayed-retry-min": 1_000,
        "x-delayed-retry-max": 5_000,
    },
    "ranked": {"x-max-priority": 5},
    "single": {"x-single-active-consumer": True},
    "taken": {},
    "expiring": {"x-message-ttl": 600_000, "x-max-length": 1_000},
    "log": {"x-queue-type": "stream"},
    "unnamed": {},
    "large": {},
}
RABBIT_POLICIES = {
    "nowhere": {"dead-letter-exchange": "no-such-exchange"},
    "delayed": {"delayed-retry-type": "all", "delayed-retry-min": 1_000, "delayed-retry-max": 400_000},
    "hasty": {"consumer-timeout": 60_000},
}


@pytest.fixture(scope="module")
def rabbit43() -> Iterator[RabbitNode]:
    node: RabbitNode = started(lambda: RabbitNode(version="4.3", plugins=("rabbitmq_management",)))
    with node:
        for name, arguments in RABBIT_QUEUES.items():
            node.declare(name, arguments=arguments)
        node.declare("dead")
        parameters = pika.URLParameters(node.url())
        connection = pika.BlockingConnection(parameters)
        connection.channel().queue_bind("dead", "amq.fanout")
        connection.close()
        for name, definition in RABBIT_POLICIES.items():
            node.ctl("set_policy", name, f"^{name}$", json.dumps(definition))
        node.publish("unnamed", [b"1", b"2", b"3", b"4"], ids=["a", None, "a", "b"])
        node.publish("large", [b"small", bytes(5_000)])
        node.publish("good", [b"x"] * 5)
        yield node


@pytest.fixture(scope="module")
def of_rabbitmq(rabbit43: RabbitNode) -> Iterator[Told]:
    connection = pika.BlockingConnection(pika.URLParameters(rabbit43.url()))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=7)
    for name in ("single", "taken", "plain"):
        channel.basic_consume(name, lambda *_: None)
    # Who consumes is told with the statistics, every five seconds.
    assert poll(lambda: _consumers_are_told(rabbit43), 40)
    yield doctor(
        broker="rabbitmq", url=rabbit43.url(), managementUrl=rabbit43.management_url, queue=",".join(RABBIT_QUEUES),
        minMessagesPerTrigger=2, maxTriggerDelay="10m", maxBytesPerTrigger=1_000,
    )  # fmt: skip
    with contextlib.suppress(pika.exceptions.AMQPError):  # a test has ended all connections
        connection.close()


def _consumers_are_told(node: RabbitNode) -> bool:
    options = {"broker": "rabbitmq", "url": node.url(), "queue": "good", "managementUrl": node.management_url}
    management = parse_options(options).management
    assert management is not None
    told = [management.get("queues", "/", name) for name in ("single", "taken", "plain")]
    return all(one is not None and one["consumer_details"] for one in told)


@pytest.mark.parametrize(
    ("queue", "check", "level", "words"),
    [
        ("good", "delivery-limit", "ok", "50 deliveries"),
        ("good", "dead-letters", "ok", "exchange 'amq.fanout'"),
        ("good", "redelivery-delay", "ok", "none"),
        ("good", "consumer-timeout", "unknown", "30 min"),
        ("good", "single-active-consumer", "ok", "no"),
        ("good", "other-consumers", "ok", "none"),
        ("good", "queue", "ok", "quorum queue"),
        ("good", "prefetch", "ok", "connection(s)"),
        ("good", "message-ids", "ok", "no ID is repeated in 5 message(s) (returned)"),
        ("plain", "delivery-limit", "ok", "20 deliveries"),
        ("plain", "dead-letters", "problem", "a message over the delivery limit (20) is dropped, and lost"),
        # Who consumes has the limit that the configuration sets.
        ("plain", "consumer-timeout", "ok", "1800 s"),
        ("limited", "delivery-limit", "warning", "after 3 deliveries"),
        ("nowhere", "dead-letters", "problem", "exchange 'no-such-exchange', which does not exist"),
        ("delayed", "redelivery-delay", "problem", "delayed by up to 400 s"),
        ("held", "redelivery-delay", "ok", "up to 5 s, and a replay waits 300 s"),
        ("hasty", "consumer-timeout", "problem", "60 s, but 'maxTriggerDelay' holds messages for 600 s"),
        ("ranked", "priorities", "warning", "by priority"),
        ("ranked", "delivery-limit", "ok", "none"),
        ("ranked", "consumer-timeout", "ok", "none"),
        ("single", "single-active-consumer", "problem", "there is another consumer (127.0.0.1:"),
        ("taken", "other-consumers", "warning", "user 'guest', prefetch 7"),
        ("expiring", "queue", "warning", "expire after 600 s"),
        ("expiring", "queue", "warning", "beyond 1000 messages the oldest are dropped"),
        ("log", "queue", "problem", "it is a stream"),
        ("unnamed", "message-ids", "ok", "1 of 4 message(s) (returned) have no ID under messageIdFrom='message-id'"),
        (
            "unnamed",
            "message-ids",
            "problem",
            "1 ID(s) belong to more than one message in 4 message(s) (returned): 'a'",
        ),
        ("large", "message-sizes", "warning", "1 message(s) above 'maxBytesPerTrigger' (1,000)"),
    ],
)
def test_what_is_wrong_with_a_queue_of_rabbitmq(
    of_rabbitmq: Told, queue: str, check: str, level: str, words: str
) -> None:
    of_rabbitmq.one(f"queue '{queue}'", check, level, words)


def test_the_remedy_names_the_option_and_its_value(of_rabbitmq: Told) -> None:
    (found,) = of_rabbitmq.of("queue 'delayed'", "redelivery-delay")
    assert "raise 'replayTimeout' above 400s" in found["remedy"]
    (found,) = of_rabbitmq.of("queue 'large'", "message-sizes")
    assert "raise 'maxBytesPerTrigger' to 5000" in found["remedy"]


def test_the_machine_and_the_versions_are_told(of_rabbitmq: Told, rabbit43: RabbitNode) -> None:
    of_rabbitmq.one("this machine", "spark", "ok", "Spark 4.")
    of_rabbitmq.one("this machine", "java", "ok", "version")
    of_rabbitmq.one("this machine", "driver", "ok", "pika 1.")
    of_rabbitmq.one("this machine", "workers", "ok", "On a cluster each executor needs the same")
    of_rabbitmq.one("amqp://", "broker", "ok", f"RabbitMQ {rabbit43.version}")
    of_rabbitmq.one("management", "management", "ok", f"RabbitMQ {rabbit43.version}, ")


def test_nothing_was_taken(of_rabbitmq: Told, rabbit43: RabbitNode) -> None:
    assert rabbit43.counts("unnamed").ready == 4
    assert rabbit43.counts("good").ready == 5


def test_over_amqp_1_0_the_connection_tells_of_the_arguments(rabbit43: RabbitNode) -> None:
    told = doctor(
        "-n", "0", broker="rabbitmq", url=rabbit43.url(), protocol=AMQP_1_0, queue="limited,hasty,single,ranked"
    )  # fmt: skip
    told.one("'limited'", "delivery-limit", "warning", "after 3 deliveries")
    told.one("'hasty'", "consumer-timeout", "warning", "120 s")
    told.one("'single'", "single-active-consumer", "problem", "one consumer at a time")
    told.one("'ranked'", "priorities", "warning", "by priority")
    found = told.one("'limited'", "dead-letters", "unknown", "exchange 'amq.fanout'")
    assert "managementUrl" in found["remedy"]
    told.one("'limited'", "read", "unknown", "no message was examined")


def test_over_amqp_1_0_a_delay_of_a_policy_is_not_taken_for_one_that_is_told(rabbit43: RabbitNode) -> None:
    options = {"broker": "rabbitmq", "url": rabbit43.url(), "protocol": AMQP_1_0, "queue": "delayed,held"}
    told = doctor("-n", "0", **options, managementUrl=rabbit43.management_url)
    told.one("'delayed'", "redelivery-delay", "problem", "delayed by up to 400 s")
    told.one("'held'", "redelivery-delay", "ok", "up to 5 s, and a replay waits 300 s")


def test_a_cap_on_consumers_of_a_channel_is_met_before_a_restart_meets_it(rabbit43: RabbitNode) -> None:
    rabbit43.eval("application:set_env(rabbit, consumer_max_per_channel, 1)")
    try:
        told = doctor(broker="rabbitmq", url=rabbit43.url(), queue="good")
    finally:
        rabbit43.eval("application:unset_env(rabbit, consumer_max_per_channel)")
    found = told.one("'good'", "prefetch", "problem", "the session ends when its prefetch is raised")
    assert "consumer_max_per_channel" in found["remedy"]
    told.one("'good'", "message-ids", "ok", "no ID is repeated")
    told.one("'good'", "dead-letters", "unknown", "not known")


def test_who_is_taken_for_another_broker_is_told(rabbit43: RabbitNode) -> None:
    told = doctor(broker="artemis", url=rabbit43.url(), queue="good")
    found = told.one("amqp://", "broker", "problem", "'artemis' is set, but")
    assert "calls itself 'RabbitMQ'" in found["found"]


def test_options_come_from_a_file_and_queues_from_a_pattern(rabbit43: RabbitNode, tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    options = {"broker": "rabbitmq", "url": rabbit43.url(), "queuePattern": "(good|large)"}
    job.write_text(json.dumps({**options, "managementUrl": rabbit43.management_url}))
    told = doctor("--from", str(job))
    told.one("queue 'good'", "delivery-limit", "ok", "50 deliveries")
    told.one("queue 'large'", "read", "ok", "2 message(s) returned")
    told = doctor("--from", str(job), queuePattern="none-.*")
    told.one("queues matching 'none-.*'", "queue", "unknown", "no queue matches the pattern yet")


@pytest.fixture(scope="module")
def reader(nodes: Nodes) -> Iterator[RabbitNode]:
    """One with a user who may only read the queue `readable`."""
    node = nodes.get("rabbitmq")
    assert isinstance(node, RabbitNode)
    node.declare("readable")
    node.declare("hidden")
    node.add_user("joe", PASSWORD, configure="^$", write="^$", read="^readable$")
    yield node
    node.delete_user("joe")
    node.delete("readable")
    node.delete("hidden")


def test_who_may_only_read_is_enough(reader: RabbitNode, certificates: Certificates) -> None:
    told = doctor(
        broker="rabbitmq", url=reader.url(tls=True, user="joe", password=PASSWORD), queue="readable,hidden",
        **{"tls.caFile": certificates.ca.cert_file},
    )  # fmt: skip
    told.one("amqps://", "login", "ok", "user 'joe'")
    told.one("queue 'readable'", "read", "ok", "0 message(s) returned")
    told.one("queue 'readable'", "message-ids", "unknown", "no message to look at")
    told.one("queue 'hidden'", "read", "problem", "hidden")
    # Certificates of tests are good for two days.
    found = told.one("amqps://", "tls", "warning", "the broker's certificate is valid for 1 more day(s)")
    assert "renew" in found["remedy"]
    assert "managementUrl" in told.one("'readable'", "delivery-limit", "unknown", "not known")["remedy"]


def test_behind_the_load_balancer_of_amazon_it_is_known_for_what_it_is(
    reader: RabbitNode, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *more, **named: resolve(host.replace(BALANCER, "127.0.0.1"), *more, **named)
    )
    with FaultProxy("127.0.0.1", urlsplit(reader.url(tls=True)).port or 0) as balancer:
        given = {
            "broker": "rabbitmq", "url": f"amqps://{BALANCER}:{balancer.port}", "username": "joe", "password": PASSWORD,
            "queue": "readable", "tls.caFile": certificates.ca.cert_file, "heartbeat": "400s",
        }  # fmt: skip
        assert main(["doctor", "--json", "--wait", "0.5", *(f"{name}={value}" for name, value in given.items())]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    about = {(one["check"], one["level"]): one for one in found if BALANCER in one["about"]}
    assert about["login", "ok"]
    hosting = [one["remedy"] for one in found if one["check"] == "hosting"]
    assert [remedy.split("'")[1] for remedy in hosting] == ["heartbeat", "replayTimeout"]


def test_a_wrong_password_and_a_certificate_of_nobody_are_problems(
    reader: RabbitNode, certificates: Certificates
) -> None:
    told = doctor(broker="rabbitmq", url=reader.url(user="joe", password="x" + PASSWORD), queue="readable")
    told.one("amqp://", "login", "problem", "joe")
    assert not told.of("queue", "read")
    told = doctor(
        broker="rabbitmq", url=reader.url(tls=True), queue="readable", **{"tls.caFile": certificates.other_ca.cert_file}
    )
    told.one("amqps://", "tls", "problem", "was not accepted")
    told = doctor(broker="rabbitmq", url=reader.url(tls=True), queue="readable", **{"tls.verify": "false"})
    told.one("amqps://", "tls", "warning", "anyone may pose as the broker")
    told.one("amqps://", "tls", "warning", "valid for 1 more day(s)")
    told.one("queue 'readable'", "read", "ok", "returned")


def test_the_subscription_of_a_topic_is_not_made_by_looking(reader: RabbitNode) -> None:
    options = {"broker": "rabbitmq", "url": reader.url(), "topic": "amq.topic"}
    told = doctor(**options, subscription="never-made")
    told.one("queue 'never-made'", "read", "unknown", "the query creates this subscription")
    with pytest.raises(NodeError):
        reader.counts("never-made")
    told = doctor(**options, subscription="readable")
    told.one("queue 'readable'", "read", "ok", "returned")


def test_a_version_with_a_flaw_is_told(reader: RabbitNode) -> None:
    told = doctor("-n", "0", broker="rabbitmq", url=reader.url(AMQP_1_0), protocol=AMQP_1_0, queue="readable")
    found = told.one("amqp://", "broker", "warning", "over amqp-1.0: with version 3's plugin")
    assert "4.0 or later" in found["remedy"]


def test_nobody_there_is_a_problem_and_among_others_a_warning(reader: RabbitNode) -> None:
    away = "amqp://joe:secret@127.0.0.1:9"
    told = doctor(broker="rabbitmq", url=away, queue="readable", connectTimeout="1s")
    told.one("amqp://127.0.0.1:9", "login", "problem", "127.0.0.1:9")
    told = doctor(broker="rabbitmq", url=f"{away},{reader.url()}", queue="readable", connectTimeout="5s")
    told.one("amqp://127.0.0.1:9", "login", "warning", "127.0.0.1:9")
    told.one("queue 'readable'", "read", "ok", "returned")


def test_a_python_without_the_package_is_found(reader: RabbitNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    told = doctor("-n", "0", broker="rabbitmq", url=reader.url(), queue="readable")
    found = told.one(
        "this machine", "workers", "problem", "PYSPARK_PYTHON '/nowhere/python' does not start as a Python"
    )
    assert "sys.executable" in found["remedy"]


def test_management_that_does_not_answer_leaves_things_unknown(reader: RabbitNode) -> None:
    told = doctor(
        "-n", "0", broker="rabbitmq", url=reader.url(), queue="readable", managementUrl="http://joe:x@127.0.0.1:9"
    )  # fmt: skip
    told.one("management", "management", "warning", "does not answer")
    assert told.one("'readable'", "delivery-limit", "unknown", "not known")["remedy"] == "see 'management'"


# -- ActiveMQ Classic --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_activemq() -> Iterator[dict[str, Told]]:
    """What is told of a queue with everything wrong, of one that is paused, and of one without management."""
    policy = {"prioritizedMessages": "true", "queuePrefetch": 5}
    slow = "<slowConsumerStrategy><abortSlowConsumerStrategy/></slowConsumerStrategy>"
    node: ActiveMqNode = started(lambda: ActiveMqNode(policy=policy, policy_parts=slow, write_timeout=False))
    with node:
        for name in ("orders", "paused"):
            node.declare(name)
        node.publish("orders", [b"a", b"b", b"c"])
        mbean = "org.apache.activemq:type=Broker,brokerName=localhost,destinationType=Queue,destinationName=paused"
        node.jolokia.call(mbean, "pause()")
        options = {"broker": "activemq", "queue": "orders,paused", "prefetch": 1_000}
        managed = {**options, "managementUrl": node.management_url}
        reader = node.url(AMQP_1_0, user=READER, password=READER_PASSWORD)
        with Engine(broker="activemq", url=node.url(STOMP), queue="orders") as other:
            other.batch()
            yield {
                STOMP: doctor(url=node.url(STOMP), **managed),
                AMQP_1_0: doctor(url=node.url(AMQP_1_0), **managed),
                "reader": doctor(url=reader, broker="activemq", queue="orders"),
            }


@pytest.mark.parametrize("protocol", [STOMP, AMQP_1_0])
@pytest.mark.parametrize(
    ("queue", "check", "level", "words"),
    [
        ("orders", "priorities", "warning", "by priority"),
        ("orders", "prefetch", "warning", "mistakes the prefetch 1000 for its default"),
        ("orders", "page-size", "warning", "maxPageSize is 200, prefetch 1,000"),
        ("orders", "write-timeout", "warning", "no soWriteTimeout"),
        ("orders", "slow-consumers", "problem", "slowConsumerStrategy"),
        ("orders", "other-consumers", "warning", "reports 1 other consumer(s)"),
        ("orders", "delivery-limit", "ok", "does not count as a delivery"),
        ("orders", "redelivery-delay", "unknown", "delays redeliveries"),
        ("orders", "single-active-consumer", "unknown", "not known"),
        ("paused", "queue", "problem", "it is paused"),
    ],
)
def test_what_is_wrong_with_a_queue_of_activemq(
    of_activemq: dict[str, Told], protocol: str, queue: str, check: str, level: str, words: str
) -> None:
    of_activemq[protocol].one(f"queue '{queue}'", check, level, words)


def test_without_management_activemq_tells_little_and_reading_is_enough(of_activemq: dict[str, Told]) -> None:
    told = of_activemq["reader"]
    told.one("amqp://", "login", "ok", "user 'reader'")
    for check in ("page-size", "write-timeout", "priorities", "other-consumers", "slow-consumers"):
        assert "managementUrl" in told.one("queue 'orders'", check, "unknown", "not known")["remedy"]
    told.one("queue 'orders'", "read", "ok", "message(s)")


@pytest.mark.parametrize("protocol", [STOMP, AMQP_1_0])
def test_a_usual_activemq_has_nothing_worse_than_warnings(nodes: Nodes, protocol: str) -> None:
    node = nodes.get("activemq")
    assert isinstance(node, ActiveMqNode)
    name = f"healthy-{protocol}"
    node.declare(name)
    node.publish(name, [b"a", b"b"])
    told = doctor(broker="activemq", url=node.url(protocol), queue=name, managementUrl=node.management_url)
    assert told.code == 0
    told.one(name, "write-timeout", "ok", "10 s")
    told.one(name, "message-ids", "ok", "no ID is repeated in 2 message(s) (browsed)")
    told.one(name, "other-consumers", "ok", "none")
    told.one(name, "slow-consumers", "ok", "does not evict")
    node.delete(name)


# -- Artemis -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def artemis() -> Iterator[ArtemisNode]:
    """One with everything wrong."""
    settings = {
        "max-delivery-attempts": 3, "dead-letter-address": "nowhere", "redelivery-delay": 5_000,
        "slow-consumer-policy": "KILL", "slow-consumer-threshold": 5, "slow-consumer-check-period": 3_600,
    }  # fmt: skip
    node: ArtemisNode = started(lambda: ArtemisNode(address_settings=settings))
    with node:
        broker = 'org.apache.activemq.artemis:broker="127.0.0.1"'
        for name, more in ARTEMIS_QUEUES.items():
            made = {"name": name, "address": name, "routing-type": "ANYCAST", "durable": True, "auto-delete": False}
            made |= {"auto-create-address": True}
            node.jolokia.call(broker, "createQueue(java.lang.String,boolean)", json.dumps({**made, **more}), True)
        node.publish("orders", [b"low"], headers={"priority": 1})
        node.publish("orders", [b"high"], headers={"priority": 8})
        yield node


ARTEMIS_QUEUES: dict[str, dict[str, Any]] = {
    "orders": {},
    "alone": {"exclusive": True, "max-consumers": 1},
    "leaky": {"purge-on-no-consumers": True, "ring-size": 100},
}


@pytest.fixture(scope="module")
def of_artemis(artemis: ArtemisNode) -> dict[str, Told]:
    """What is told by management over HTTP, and over the protocols."""
    options = {"broker": "artemis", "queue": ",".join(ARTEMIS_QUEUES)}
    reader = artemis.url(STOMP, user=READER, password=READER_PASSWORD)
    with Engine(broker="artemis", url=artemis.url(STOMP), queue="alone") as other:
        other.trigger()
        assert poll(lambda: _consumers(artemis, "alone") == 1, 20)
        return {
            "managed": doctor(url=artemis.url(AMQP_1_0), managementUrl=artemis.management_url, **options),
            "stomp": doctor(url=artemis.url(STOMP), **options),
            "amqp-1.0": doctor(url=artemis.url(AMQP_1_0), **options),
            "reader": doctor(url=reader, broker="artemis", queue="orders"),
        }


def _consumers(node: ArtemisNode, queue: str) -> int:
    pattern = f'org.apache.activemq.artemis:broker="127.0.0.1",component=addresses,queue="{queue}",*'
    return sum(int(one["ConsumerCount"]) for one in node.jolokia.read(pattern, "ConsumerCount").values())


@pytest.mark.parametrize("way", ["managed", "stomp", "amqp-1.0"])
@pytest.mark.parametrize(
    ("queue", "check", "level", "words"),
    [
        ("orders", "delivery-limit", "warning", "after 3 deliveries"),
        ("orders", "redelivery-delay", "ok", "up to 5 s, and a replay waits 300 s"),
        ("orders", "slow-consumers", "problem", "fewer than 5 messages a second"),
        ("orders", "priorities", "warning", "by priority"),
        ("orders", "other-consumers", "ok", "none"),
        ("alone", "single-active-consumer", "problem", "there is another consumer"),
        ("alone", "other-consumers", "warning", "reports 1 other consumer(s)"),
        ("leaky", "queue", "warning", "purge-on-no-consumers"),
        ("leaky", "queue", "warning", "beyond 100 messages the oldest are dropped"),
    ],
)
def test_what_is_wrong_with_a_queue_of_artemis(
    of_artemis: dict[str, Told], way: str, queue: str, check: str, level: str, words: str
) -> None:
    of_artemis[way].one(f"queue '{queue}'", check, level, words)


def test_a_dead_letter_address_without_a_queue_is_found(of_artemis: dict[str, Told]) -> None:
    words = "address 'nowhere', which does not exist or has no queue"
    of_artemis["managed"].one("queue 'orders'", "dead-letters", "problem", words)
    of_artemis["amqp-1.0"].one("queue 'orders'", "dead-letters", "problem", words)
    of_artemis["stomp"].one("queue 'orders'", "dead-letters", "unknown", "address 'nowhere'")


def test_a_queue_for_fewer_consumers_than_are_needed_is_found(of_artemis: dict[str, Told]) -> None:
    # Over STOMP a wider window is one more; and somebody else is there, so it cannot be read at all.
    of_artemis["stomp"].one("queue 'alone'", "prefetch", "problem", "accepts 1 consumer(s), but this query needs 1")
    of_artemis["stomp"].one("queue 'alone'", "read", "problem", "alone")


def test_messages_of_artemis_are_browsed_over_amqp_1_0(of_artemis: dict[str, Told]) -> None:
    of_artemis["managed"].one("queue 'orders'", "read", "ok", "2 message(s) browsed")
    of_artemis["stomp"].one("queue 'orders'", "read", "ok", "2 message(s) returned")


def test_who_may_not_ask_artemis_is_told_what_would_help(of_artemis: dict[str, Told]) -> None:
    found = of_artemis["reader"].one("queue 'orders'", "delivery-limit", "unknown", "max-delivery-attempts")
    assert "managementUrl" in found["remedy"]
    of_artemis["reader"].one("queue 'orders'", "read", "ok", "returned")


# -- when a query starts -----------------------------------------------------------------------


def test_a_query_says_once_what_its_connection_tells(rabbit43: RabbitNode, capfd: pytest.CaptureFixture[str]) -> None:
    name = "started"
    rabbit43.declare(name, arguments={**RABBIT_QUEUES["limited"], "x-single-active-consumer": True})
    with Engine(broker="rabbitmq", url=rabbit43.url(), protocol=AMQP_1_0, queue=name) as engine:
        rabbit43.publish(name, [b"a"])
        engine.drain(1)
        rabbit43.eval('[rabbit_networking:close_connection(C, "test") || C <- rabbit_networking:connections()]')
        rabbit43.publish(name, [b"b"])
        engine.drain(2)
        assert engine.counters()["reconnects"] >= 1
    said = capfd.readouterr().err
    assert said.count("queue 'started': a message is dropped or dead-lettered after 3 deliveries") == 1
    assert said.count("queue 'started': one consumer at a time receives messages") == 1
    assert "not known" not in said
    rabbit43.delete(name)


def test_a_query_over_amqp_0_9_1_says_nothing_it_does_not_know(
    rabbit43: RabbitNode, capfd: pytest.CaptureFixture[str]
) -> None:
    with Engine(broker="rabbitmq", url=rabbit43.url(), protocol=AMQP_0_9_1, queue="limited") as engine:
        engine.trigger()
    assert "limited" not in capfd.readouterr().err


def test_a_query_over_stomp_on_artemis_says_what_it_is_told(
    artemis: ArtemisNode, capfd: pytest.CaptureFixture[str]
) -> None:
    with Engine(broker="artemis", url=artemis.url(STOMP), queue="leaky") as engine:
        engine.trigger()
    said = capfd.readouterr().err
    for words in ("dead-lettered after 3 deliveries", "purge-on-no-consumers", "fewer than 5 messages a second"):
        assert said.count(words) == 1
