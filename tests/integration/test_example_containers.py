"""The examples for Compose and Kubernetes, without containers: no image was built, and no container was started.

What their files say is held against each other, and against job and source. The commands in them run as processes
against a real broker, with addresses and folders of this machine in the place of those in a container.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
import yaml

from pyspark_mq.spark_source.options import parse_options
from testbed.brokers.rabbitmq import RabbitNode
from testbed.demo.prometheus import Prometheus, Series, panels
from testbed.ports import LOOPBACK, free_port
from testbed.process import Command, NodeError, Process, poll
from tests.integration.test_example import JOB, job
from tests.integration.test_spark import full_api
from tests.plugin import missing
from tests.support.checks import total
from tests.support.pages import ROOT

__all__ = ["job"]  # the fixture

EXAMPLES = ROOT / "examples"
DOCKERFILE = (EXAMPLES / "Dockerfile").read_text("utf-8")
COMPOSE = yaml.safe_load((EXAMPLES / "compose" / "compose.yaml").read_text("utf-8"))
SERVICES: Mapping[str, Any] = COMPOSE["services"]
MANIFEST = {one["kind"]: one for one in yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text("utf-8"))}
WORKLOAD = MANIFEST["StatefulSet"]["spec"]
POD = WORKLOAD["template"]["spec"]
(CONTAINER,) = POD["containers"]
COMMANDS: Mapping[str, Sequence[str]] = {"compose": SERVICES["spark"]["command"], "kubernetes": CONTAINER["command"]}
BOARD = json.loads((ROOT / "docs" / "grafana" / "pyspark-mq.json").read_text("utf-8"))

QUEUE = "orders"
USER, PASSWORD = "spark", "choose-one"
#: What the page of deployment calls enough for a stop.
STOP_S = 10


def option(command: Sequence[str], name: str) -> str:
    """The value of an option in the command of a job."""
    (value,) = [word.partition("=")[2] for word in command if word.startswith(f"--{name}=")]
    return value


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_job_and_source_accept_the_options(
    command: Sequence[str], job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD)
    monkeypatch.setattr(sys, "argv", [word for word in command if word != "python"])
    given = job._arguments()
    options = dict(one.split("=", 1) for one in given.option)
    # Of a node with many cores each would get a Python worker.
    assert (options.pop("numPartitions"), given.master) == ("2", "local[2]")
    assert list(options) == ["passwordFile"]
    endpoint = parse_options(
        {
            "broker": given.broker, "url": given.url, "queue": given.queue, "checkpointLocation": given.checkpoint,
            "passwordFile": str(secret),
        }
    ).settings.endpoint  # fmt: skip
    (url,) = endpoint.urls
    assert (url.host, url.port, endpoint.username or url.username) == ("rabbitmq", 5672, USER)
    assert given.queue == QUEUE


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_image_has_what_the_command_starts(command: Sequence[str]) -> None:
    assert list(command[:2]) == ["python", "/opt/job.py"]
    assert f"COPY {JOB.name} {command[1]}" in DOCKERFILE
    assert "\nARG PACKAGE=pyspark-mq\n" in DOCKERFILE
    (extras,) = re.findall(r'"\$\{PACKAGE\}\[([\w,]+)\]"', DOCKERFILE)
    # Over AMQP 0-9-1 no client library is missing.
    assert set(extras.split(",")) == {"spark", "otel"}


def test_what_compose_names_is_there() -> None:
    used: dict[str, set[str]] = {"configs": set(), "secrets": set(), "volumes": set()}
    for service in SERVICES.values():
        assert set(service.get("depends_on", ())) <= set(SERVICES)
        used["configs"] |= {one["source"] for one in service.get("configs", ())}
        used["secrets"] |= set(service.get("secrets", ()))
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (EXAMPLES / "compose" / source).exists(), source
            else:
                used["volumes"].add(source)
    assert {kind: set(COMPOSE[kind]) for kind in used} == used
    built = [service["image"] for service in SERVICES.values() if "build" in service]
    assert (EXAMPLES / "compose" / SERVICES["spark"]["build"] / "Dockerfile").is_file()
    assert {service["image"] for service in SERVICES.values()} - set(built) == {
        "rabbitmq:4.3", "prom/prometheus:v3.4.0", "grafana/grafana:12.0.0",
    }  # fmt: skip


def test_the_services_of_compose_find_each_other() -> None:
    spark, broker = SERVICES["spark"], SERVICES["rabbitmq"]
    (secret,) = spark["secrets"]
    assert f"--option=passwordFile=/run/secrets/{secret}" in spark["command"]
    url = urlsplit(option(spark["command"], "url"))
    assert (url.hostname, url.username) == ("rabbitmq", broker["environment"]["RABBITMQ_DEFAULT_USER"])
    assert broker["environment"]["RABBITMQ_DEFAULT_PASS"].startswith(
        f"${{{COMPOSE['secrets'][secret]['environment']}:?"
    )
    assert SERVICES["producer"]["command"][2:] == [url.hostname, str(url.port), url.username, f"/run/secrets/{secret}"]
    (volume,) = spark["volumes"]
    kept = volume.partition(":")[2]
    assert all(option(spark["command"], name).startswith(f"{kept}/") for name in ("output", "checkpoint"))
    (fetched,) = config("prometheus")["scrape_configs"]
    port = option(spark["command"], "prometheus").rpartition(":")[2]
    assert fetched["static_configs"] == [{"targets": [f"spark:{port}"]}]


def test_grafana_is_given_the_dashboard_and_its_prometheus() -> None:
    grafana = SERVICES["grafana"]
    (source,) = config("datasource")["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    (kind,) = [one for one in BOARD["templating"]["list"] if one["type"] == "datasource"]
    assert kind["query"] == source["type"]
    (provider,) = config("dashboards")["providers"]
    place, folder, _ = grafana["volumes"][0].split(":")
    assert provider["options"]["path"] == folder
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.parent == Path(folder)
    assert json.loads((EXAMPLES / "compose" / place / home.name).read_text("utf-8")) == BOARD
    assert all(port.startswith("127.0.0.1:") for port in grafana["ports"])
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["grafana"]


def test_there_is_one_pod_at_a_time_and_it_mounts_what_it_names() -> None:
    # The pods of a Deployment overlap when one is evicted.
    assert WORKLOAD["replicas"] == 1
    assert MANIFEST["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteOncePod"]
    labels = WORKLOAD["template"]["metadata"]["labels"]
    assert WORKLOAD["selector"] == {"matchLabels": labels}
    mounts = {one["name"]: one["mountPath"] for one in CONTAINER["volumeMounts"]}
    volumes = {one.pop("name"): one for one in map(dict, POD["volumes"])}
    assert volumes == {
        "mq": {"secret": {"secretName": MANIFEST["Secret"]["metadata"]["name"]}},
        "data": {"persistentVolumeClaim": {"claimName": MANIFEST["PersistentVolumeClaim"]["metadata"]["name"]}},
    }
    (key,) = MANIFEST["Secret"]["stringData"]
    assert f"--option=passwordFile={mounts['mq']}/{key}" in CONTAINER["command"]
    assert all(option(CONTAINER["command"], name).startswith(f"{mounts['data']}/") for name in ("output", "checkpoint"))
    assert f"\nUSER {POD['securityContext']['runAsUser']}\n" in DOCKERFILE
    assert POD["terminationGracePeriodSeconds"] > STOP_S
    (port,) = CONTAINER["ports"]
    assert CONTAINER["livenessProbe"]["httpGet"] == {"path": "/metrics", "port": port["name"]}
    assert option(CONTAINER["command"], "prometheus") == f"0.0.0.0:{port['containerPort']}"


def config(name: str) -> dict[str, Any]:
    """A configuration that stands in the compose file."""
    found: dict[str, Any] = yaml.safe_load(COMPOSE["configs"][name]["content"])
    return found


# -- what they run


@pytest.fixture(scope="module")
def node() -> Iterator[RabbitNode]:
    """The broker of the compose file, of its version."""
    try:
        made = RabbitNode(version=SERVICES["rabbitmq"]["image"].partition(":")[2])
    except NodeError as absent:
        missing(str(absent))
        raise
    with made:
        made.ctl("add_user", USER, PASSWORD)
        made.ctl("set_permissions", USER, ".*", ".*", ".*")
        yield made


@contextmanager
def running(command: Sequence[str], places: Mapping[str, str], folder: Path) -> Iterator[Process]:
    """The process of a command of Python's, with what is here in the place of what is in the container."""
    words = list(command[1:])
    for name, here in places.items():
        assert any(name in word for word in words), name
        words = [word.replace(name, here) for word in words]
    kept = {"PYTHONPATH": str(ROOT), **dict(re.findall(r'^ENV (\w+)="(.+)"$', DOCKERFILE, re.MULTILINE))}
    environment = {
        name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "JDK_JAVA_OPTIONS") if name in os.environ
    }
    log = folder / f"{Path(words[0]).name}.log"
    process = Process(Command([sys.executable, *words], {**environment, **kept}), log=log, folder=folder)
    try:
        yield process
    except AssertionError:
        print(log.read_text("utf-8", "replace")[-4_000:])
        raise
    finally:
        process.kill()


def metrics(port: int) -> str:
    """What the job says to Prometheus; nothing as long as it does not serve."""
    with (
        suppress(urllib.error.URLError, ConnectionError),
        urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=10) as answer,
    ):
        return str(answer.read().decode("utf-8"))
    return ""


def settled(port: int) -> float:
    """How many messages are acknowledged."""
    return sum(map(float, re.findall(r"^pyspark_mq_settled_total\{.*\} (\S+)$", metrics(port), re.MULTILINE)))


@pytest.mark.whole
@pytest.mark.timeout(900)
@full_api
def test_the_services_of_compose_take_each_order_once_and_fill_the_dashboard(node: RabbitNode, tmp_path: Path) -> None:
    spark, producer = SERVICES["spark"], SERVICES["producer"]
    secrets, port = tmp_path / "secrets", free_port()
    secrets.mkdir()
    (secrets / spark["secrets"][0]).write_text(PASSWORD)
    fetches = COMPOSE["configs"]["prometheus"]["content"].replace("spark:9464", f"{LOOPBACK}:{port}")
    began_s = time.time()
    with (
        running(
            producer["command"],
            {
                "rabbitmq": LOOPBACK, "5672": str(node.port), "/opt": str(EXAMPLES / "compose"),
                "/run/secrets": str(secrets),
            },
            tmp_path,
        ) as orders,
        running(
            spark["command"],
            {
                "rabbitmq:5672": f"{LOOPBACK}:{node.port}", "/opt": str(EXAMPLES), "/run/secrets": str(secrets),
                "=/data": f"={tmp_path}/data", "0.0.0.0:9464": f"{LOOPBACK}:{port}",
            },
            tmp_path,
        ) as query,
        Prometheus(f"{LOOPBACK}:{port}", fetches) as prometheus,
    ):  # fmt: skip
        assert poll(lambda: settled(port) > 100 or not query.running, 120, interval_s=0.5)
        assert orders.terminate(10)
        assert poll(lambda: total(node, QUEUE) == 0, 60)
        page = metrics(port)
        asked = set(re.findall(r"\bpyspark_mq_\w+", json.dumps(BOARD)))
        assert {name for name in asked if not re.search(rf"^{name}\{{", page, re.MULTILINE)} == set()

        def shown() -> dict[str, list[Series]]:
            return {panel["title"]: series for panel, series in panels(BOARD, prometheus, began_s, time.time())}

        assert poll(lambda: bool(shown()["Backlog"]), 30, interval_s=1)
        grace_s = float(spark["stop_grace_period"].removesuffix("m")) * 60
        assert query.terminate(grace_s)
        assert query.exit_code == 0
    rows = pq.read_table(tmp_path / "data" / "orders", columns=["body"])["body"].to_pylist()
    numbers = sorted(json.loads(body)["id"] for body in rows)
    assert numbers == list(range(len(numbers)))
    node.delete(QUEUE)


@pytest.mark.whole
@pytest.mark.timeout(900)
@full_api
def test_the_command_of_the_pod_ends_well_within_its_grace_period_and_goes_on(node: RabbitNode, tmp_path: Path) -> None:
    node.declare(QUEUE)
    ((key, password),) = MANIFEST["Secret"]["stringData"].items()
    node.ctl("change_password", USER, password)
    mounted, port = tmp_path / "secret", free_port()
    mounted.mkdir()
    (mounted / key).write_text(password)
    places = {
        "rabbitmq:5672": f"{LOOPBACK}:{node.port}", "/opt": str(EXAMPLES), "/etc/mq": str(mounted),
        "=/data": f"={tmp_path}/data", "0.0.0.0:9464": f"{LOOPBACK}:{port}",
    }  # fmt: skip
    sent: list[str | None] = []
    for number in range(2):
        sent += node.publish(QUEUE, [b"order %d" % (10 * number + one) for one in range(10)])
        with running(CONTAINER["command"], places, tmp_path) as query:
            assert poll(lambda: total(node, QUEUE) == 0 or not query.running, 120, interval_s=0.5)
            assert poll(lambda: "pyspark_mq" in metrics(port), 30)  # what the liveness probe asks
            assert query.terminate(STOP_S)
            assert query.exit_code == 0
    rows = pq.read_table(tmp_path / "data" / "orders", columns=["messageId"])["messageId"].to_pylist()
    assert sorted(rows) == sorted(sent)
    node.ctl("change_password", USER, PASSWORD)
    node.delete(QUEUE)
