"""Blocks of the pages that have no test of their own elsewhere, run as they are printed.

What is put in their place: the broker's address, the queue, and folders.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest

from pyspark_mq.cli.main import main
from pyspark_mq.spark_source.folders import ID_FOLDER
from testbed.brokers.activemq import ActiveMqNode
from testbed.brokers.artemis import ArtemisNode
from testbed.brokers.rabbitmq import RabbitNode
from testbed.ports import free_port
from testbed.process import NodeError, poll
from testbed.quick_start import URL
from tests.plugin import missing
from tests.support.checks import bodies, total
from tests.support.engine import full_epochs
from tests.support.pages import ROOT, block, blocks

pytestmark = pytest.mark.whole

#: Has this Spark counters, and queries that end by themselves?
FULL = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None
full = pytest.mark.skipif(not FULL, reason="before Spark 4.2 there are no counters")


def execute(text: str, names: dict[str, Any], changed: dict[str, str] | None = None) -> None:
    """Run a block of Python with these names, and see what it has made of them."""
    for old, new in (changed or {}).items():
        assert old in text, f"{old} is not in the block"
        text = text.replace(old, new)
    exec(compile(text, "a block", "exec"), names)


def options(rabbit: RabbitNode, queue: str) -> dict[str, str]:
    return {"broker": "rabbitmq", "url": rabbit.url(), "queue": queue}


@dataclass
class Running:
    """A query that has read everything there was.

    Attributes:
        query: it.
        listeners: those that were added, to be taken away again.
    """

    query: Any
    listeners: list[Any]


def test_the_first_lines_read_a_queue(spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    rabbit.publish(name, bodies(10))
    out = tmp_path / "rows"
    names = {"spark": spark, "out": str(out), "checkpoint": str(tmp_path / "checkpoint")}
    execute(block("README.md", "df = ("), names, {URL: rabbit.url(), '"orders"': repr(name)})
    (query,) = spark.streams.active
    try:
        # On a busy machine the first batch may be empty.
        assert poll(lambda: total(rabbit, name) == 0, 90)
        assert sorted(bytes(row.body) for row in spark.read.parquet(str(out)).collect()) == sorted(bodies(10))
    finally:
        query.stop()


def test_what_lost_power_is_repaired(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rabbit.publish(name, bodies(10))
    page, out, checkpoint = "docs/operate.md", tmp_path / "rows", tmp_path / "checkpoint"
    text = block(page, 'checkpoint = "/data/checkpoints/orders"')
    places = {"/data/checkpoints/orders": str(checkpoint), "/data/orders": str(out)}
    changed = {URL: rabbit.url(), '"queue", "orders"': f'"queue", {name!r}', **places}

    def run(batch: int) -> None:
        execute(text, {"spark": spark}, changed)
        (query,) = spark.streams.active
        assert poll(lambda: (checkpoint / "commits" / str(batch)).exists() or not query.isActive, 90)
        query.stop()
        assert query.exception() is None

    run(0)
    (checkpoint / "commits" / "0").write_bytes(b"")  # as the file system has it
    command = block(page, "pyspark-mq repair /data/checkpoints/orders --sink /data/orders")
    for place, here in places.items():
        command = command.replace(place, here)
    assert main([*shlex.split(command)[1:], "--yes"]) == 0
    told = capsys.readouterr().out
    assert "commits/0: empty" in told
    assert "_spark_metadata/0: the newest batch that is certainly committed is -1" in told
    run(0)
    assert sorted(bytes(row.body) for row in spark.read.parquet(str(out)).collect()) == sorted(bodies(10))
    assert main([*shlex.split(command)[1:], "--yes"]) == 0
    assert "nothing to remove" in capsys.readouterr().out


@pytest.fixture
def running(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Running]:
    """A query to look at, and a note of who is added to listen."""
    manager = type(spark.streams)
    add, added = manager.addListener, []

    def noted(streams: Any, listener: Any) -> None:
        added.append(listener)
        add(streams, listener)

    monkeypatch.setattr(manager, "addListener", noted)
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "200ms")
    rabbit.publish(name, bodies(10))
    place = str(tmp_path / "checkpoint")
    frame = spark.readStream.format("mq").options(**options(rabbit, name), checkpointLocation=place).load()
    writer = frame.writeStream.format("noop").queryName("orders")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        assert poll(lambda: total(rabbit, name) == 0, 90)
        yield Running(query, added)
    finally:
        query.stop()
        for listener in added:
            spark.streams.removeListener(listener)
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")


@full
def test_the_counters_can_be_read(running: Running, name: str) -> None:
    assert poll(lambda: running.query.lastProgress["sources"][0]["latestOffset"] is not None, 30)
    printed = io.StringIO()
    with redirect_stdout(printed):
        execute(block("docs/monitor.md", "from pyspark_mq import readings"), {"query": running.query})
    assert re.fullmatch(rf"queue '{name}' 0 \d+ 0\n", printed.getvalue())


@full
def test_a_line_a_minute_and_prometheus(
    spark: Any, rabbit: RabbitNode, name: str, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    page = "docs/monitor.md"
    names: dict[str, Any] = {"spark": spark}
    with caplog.at_level("INFO", "pyspark_mq.listener"):
        execute(block(page, "from pyspark_mq import QueueListener"), names)
        at = f"localhost:{free_port()}"
        begin = 'spark.streams.addListener(QueueListener(prometheus="localhost:9464"))'
        execute(block(page, begin), names, {"localhost:9464": at})
        assert len(running.listeners) == 2
        rabbit.publish(name, bodies(5))
        # Metrics of other queries are there as well.
        assert poll(lambda: re.search(f"pyspark_mq_settled_total{{.*'{name}'", fetched(at)) is not None, 60)
        # It says something every minute, and at once when a query ends.
        running.query.stop()
        assert poll(lambda: "ended" in caplog.text, 30)
    (line,) = re.findall(f"^pyspark_mq_backlog{{.*queue '{name}'.*", fetched(at), re.MULTILINE)
    assert line.endswith(" 0.0")


def fetched(at: str) -> str:
    with urllib.request.urlopen(f"http://{at}/metrics", timeout=10) as answer:
        return str(answer.read().decode("utf-8"))


def test_the_python_of_the_workers_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "")  # put back at the end
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "jupyter")
    execute(
        block("docs/deploy.md", 'os.environ.setdefault("PYSPARK_PYTHON", sys.executable)'),
        {"os": os, "sys": sys},
    )
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert "PYSPARK_DRIVER_PYTHON" not in os.environ


#: What the blocks for clouds name, and what stands there in a test.
CLOUD_URL = "amqps://spark@mq.example:5671/"
CLOUD_PASSWORD = "/etc/mq/password"


def test_a_vendor_s_cluster_is_checked_and_its_job_reads_a_queue(rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    page = "docs/deploy.md"
    sent = rabbit.publish(name, bodies(10))
    (tmp_path / "password").write_text("guest", "utf-8")
    here = {
        CLOUD_URL: rabbit.url().replace("guest:guest@", "guest@"),
        CLOUD_PASSWORD: str(tmp_path / "password"),
        '"queue", "orders"': f'"queue", {name!r}',
        "queue=orders": f"queue={name}",
    }

    def changed(text: str) -> str:
        for old, new in here.items():
            text = text.replace(old, new)
        return text

    for program in ("doctor.py", "orders.py"):
        (tmp_path / program).write_text(changed(block(page, f"# {program}")), "utf-8")
    command = changed(block(page, "spark-submit doctor.py broker=rabbitmq queue=orders \\"))
    told = shell(command.replace("spark-submit", "spark-submit --master 'local[1]'"), tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr
    assert re.search(r"^0 problem\(s\)", told.stdout, re.MULTILINE)
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "rows"
    done = shell(f"spark-submit --master 'local[2]' orders.py {checkpoint} {out}", tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = pq.read_table(out).to_pylist()
    assert sorted(row["messageId"] for row in rows) == sorted(sent)


@pytest.mark.parametrize(
    ("begin", "target"),
    [("# on Databricks", '.toTable("main.mq.orders")'), ("# on Fabric", '.toTable("orders")')],
)
def test_a_notebook_reads_a_queue_and_checks_its_cluster(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, begin: str, target: str
) -> None:
    sent = rabbit.publish(name, bodies(10))
    out = tmp_path / "rows"
    credentials = SimpleNamespace(get=lambda *_: "guest", getSecret=lambda *_: "guest")
    names = {
        "spark": spark,
        "dbutils": SimpleNamespace(secrets=credentials),
        "notebookutils": SimpleNamespace(credentials=credentials),
    }
    folders = {"/Volumes/main/mq", "/lakehouse/default/Files", '"Files'}
    text = block("docs/deploy.md", begin)
    changed = {
        CLOUD_URL: rabbit.url().replace("guest:guest@", "guest@"),
        '"queue": "orders"': f'"queue": {name!r}',
        target: f'.start({str(out)!r}, "parquet")',
        **{folder: f'"{tmp_path}' if folder.startswith('"') else str(tmp_path) for folder in folders if folder in text},
    }
    execute(text, names, changed)
    assert sorted(row.messageId for row in spark.read.parquet(str(out)).collect()) == sorted(sent)
    monkeypatch.setattr(sys, "argv", ["a notebook"])
    with redirect_stdout(io.StringIO()) as told, pytest.raises(SystemExit) as end:
        execute(block("docs/deploy.md", "import runpy"), names)
    assert (end.value.code, name in told.getvalue()) == (0, True)


def test_bad_rows_are_dead_lettered(spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    dead = f"{name}-dead"
    rabbit.declare(dead)
    bad = [b"not JSON", b'{"id": "x"}', b'{"id": 3, "item": "\xff"}', b'{"id": 4, "item": ']
    sent = rabbit.publish(name, [b'{"id": 1, "item": "a"}', *bad, b'{"id": 2}'])
    given = {**options(rabbit, name), "checkpointLocation": str(tmp_path / "checkpoint")}
    names: dict[str, Any] = {
        "messages": spark.readStream.format("mq").options(**given).load(),
        "options": {"broker": "rabbitmq", "url": rabbit.url()},
        "checkpoint": given["checkpointLocation"],
        "table": str(tmp_path / "rows"),
    }
    text = block("docs/sinks.md", "from pyspark.sql.functions import col, from_json, try_validate_utf8")
    # Without the JARs of Delta; test_sinks_with_jars.py runs another block of the page with them.
    execute(text, names, {'"orders.dead"': repr(dead), '"delta"': '"parquet"'})
    try:
        assert poll(lambda: total(rabbit, name) == 0, 90)
        assert rabbit.counts(dead).ready == len(bad)
        rows = spark.read.parquet(names["table"]).collect()
        assert sorted((row.messageId, row.id) for row in rows) == sorted([(sent[0], 1), (sent[-1], 2)])
    finally:
        names["query"].stop()
        rabbit.delete(dead)


def test_a_table_of_sql_is_read_with_the_options_of_the_stream(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    sent = rabbit.publish(name, bodies(5))
    place = {"checkpointLocation": str(tmp_path / "checkpoint")}
    names: dict[str, Any] = {"spark": spark, "options": options(rabbit, name) | place}
    begin = 'spark.sql("CREATE TABLE orders (messageId STRING, body BINARY) USING mq")'
    execute(block("docs/errors.md", begin), names)
    try:
        writer = names["df"].writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert poll(lambda: (tmp_path / "rows" / "_spark_metadata" / "0").exists() or not query.isActive, 90)
        query.stop()
    finally:
        spark.sql("DROP TABLE orders")
    assert query.exception() is None
    assert sorted(row.messageId for row in spark.read.parquet(str(tmp_path / "rows")).collect()) == sorted(sent)


@full
def test_which_column_is_yours() -> None:
    command = block("docs/versions.md", 'python -c "import pyspark.sql.streaming.datasource"')
    done = shell(command, ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_setting_of_spark_on_the_pages_is_one() -> None:
    text = (ROOT / "docs" / "deploy.md").read_text("utf-8")
    named = set(re.findall(r"(?:--conf |`|^ +)(spark\.[a-z][\w.]*\w)(?=[=:`])", text, re.MULTILINE))
    assert {"spark.driver.memoryOverhead", "spark.kubernetes.driver.secrets.mq"} <= named
    jars = Path(pyspark.__file__).parent / "jars"
    parts = ("core", "catalyst", "kubernetes", "yarn", "pipelines")
    known = b"".join(
        jar.read(entry)
        for part in parts
        for file in jars.glob(f"spark-{part}_*.jar")
        for jar in [zipfile.ZipFile(file)]
        for entry in jar.namelist()
        if entry.endswith(".class") and re.search(r"[Cc]onf|package", entry)
    )

    def is_known(setting: str) -> bool:
        # Of some the last part is the user's: the name of a secret, of a variable.
        prefix = setting.rpartition(".")[0] + "."
        return setting.encode() in known or (prefix.count(".") > 3 and prefix.encode() in known)

    assert [one for one in sorted(named) if not is_known(one)] == []
    assert not is_known("spark.driver.memoryOverhed")


# -- the command -------------------------------------------------------------------------------

PAGE = "docs/command-line.md"


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it as a reader would who has this package installed, and says no when he is asked."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    keyboard, terminal = pty.openpty()
    try:
        os.write(keyboard, b"n\n")
        return subprocess.run(
            ["sh", "-e", "-c", command],
            cwd=folder, env=environment, stdin=terminal, capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
    finally:
        os.close(keyboard)
        os.close(terminal)


def test_every_command_of_its_page(spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    ids = [str(uuid.uuid4()) for _ in range(20)]
    rabbit.publish(name, bodies(20), ids=ids)
    given = options(rabbit, name)
    checkpoint, moved = tmp_path / "orders", tmp_path / "moved"
    (tmp_path / "job.json").write_text(json.dumps({**given, "checkpointLocation": str(checkpoint)}), "utf-8")
    written = {"broker": "rabbitmq", "url": rabbit.url(), "queue": name}
    (tmp_path / "write.json").write_text(json.dumps(written), "utf-8")
    left_open(spark, given, checkpoint)
    assert poll(lambda: rabbit.counts(name).ready == 20, 30)
    shutil.copytree(checkpoint / ID_FOLDER, moved)

    def run(line: str) -> str:
        for old, new in {
            "/data/checkpoints/orders": str(checkpoint),
            "s3://bucket/checkpoints/orders": checkpoint.as_uri(),
            "/data/orders": str(tmp_path / "rows"),
            "--id-log /ids": f"--id-log {moved}",
            URL: rabbit.url(),
            "http://mq.example:15672": "http://127.0.0.1:9",  # nobody is there, which it says
            "queue=orders": f"queue={name}",
            "pyspark-mq ": f"{sys.executable} -m pyspark_mq ",
        }.items():
            line = line.replace(old, new)
        done = shell(line, tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    inspect, peek, release, repair, doctor = [one.text.splitlines() for one in blocks(PAGE, "sh")]
    said = [run(line) for line in inspect]
    assert all("20 planned" in one or '"planned": 20' in one for one in said), said
    assert all(key in said[2] for key in ids)
    assert "10 message(s), returned" in run(peek[0])
    assert run(peek[1]).count('"messageId"') == 3
    # Nobody answers at the management's address; what is not known is no failure.
    assert "not known" in run(doctor[0])
    assert [run(line).count(name) > 0 for line in doctor[1:]] == [True, True, True, True]
    assert ["nothing to remove" in run(line) for line in repair] == [True]
    asked, looked, done = (run(line) for line in release)
    assert "20 messages were planned but not committed" in asked
    assert "nothing was changed" in asked
    assert "0 of the 20 planned messages are missing" in looked
    assert "released" in done
    assert "the epoch was released" in run(inspect[0])


def left_open(spark: Any, given: dict[str, str], checkpoint: Path) -> None:
    """A checkpoint with an epoch that was planned and not committed."""

    def fail(frame: Any, batch: int) -> None:
        raise RuntimeError("the sink broke")

    place = {"checkpointLocation": str(checkpoint)}
    frame = spark.readStream.format("mq").options(**{**given, **place, **full_epochs(20)}).load()
    query = frame.writeStream.foreachBatch(fail).option("checkpointLocation", str(checkpoint)).start()
    assert poll(lambda: not query.isActive, 90)
    query.stop()


# -- settings of brokers -----------------------------------------------------------------------

BROKERS = "docs/brokers.md"


class AsOnThePage(ActiveMqNode):
    """With the elements of the page in its configuration; else nobody but admins may do anything."""

    def _configuration(self) -> str:
        policy, stomp, entries, amqp, _ = [one.text for one in blocks(BROKERS, "xml")]
        text = super()._configuration().replace("users,readers", "admins").replace('"users"', '"admins"')
        text = text.replace("<policyEntry queue=", f"{policy}<policyEntry queue=", 1)
        text = text.replace("</authorizationEntries>", f"{entries}</authorizationEntries>", 1)
        text = text.replace("<users>", '<users><authenticationUser username="spark" password="s" groups="spark"/>', 1)
        for connector, port in ((stomp, self._stomp_port), (amqp, self._amqp_port)):
            name, place = re.findall(r'name="(\w+)"|(0[.]0[.]0[.]0:\d+)', connector)
            own = re.search(f'<transportConnector name="{name[0]}" [^>]*/>', text)
            assert own is not None
            text = text.replace(own[0], connector.replace(place[1], f"127.0.0.1:{port}"), 1)
        return text


class ArtemisAsOnThePage(ArtemisNode):
    """With the element of the page in its configuration."""

    def _configuration(self) -> str:
        *_, setting = [one.text for one in blocks(BROKERS, "xml")]
        return super()._configuration().replace("<address-settings>", f"<address-settings>{setting}", 1)


def test_rabbitmq_takes_the_settings_of_the_page(
    rabbit: RabbitNode, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # `doctor` examines the machine too
    name = f"{name}-quorum"  # the other is there already
    declare = block(BROKERS, "import pika").replace("orders", name)
    execute(declare, {}, {URL: rabbit.url()})
    text = block(BROKERS, 'rabbitmqctl add_user spark "$PASSWORD"').replace("orders", name).replace("$PASSWORD", "s")
    commands: list[list[str]] = []
    for word in shlex.split(text):
        if word == "rabbitmqctl":
            commands.append([])
        else:
            commands[-1].append(word)
    try:
        for command in commands:
            rabbit.ctl(*command)
        rabbit.publish(name, bodies(3))
        spark = rabbit.url().replace("guest:guest@", "spark:s@")
        assert main(["peek", "broker=rabbitmq", f"url={spark}", f"queue={name}"]) == 0
        assert "3 message(s), returned" in capsys.readouterr().out
        listed = rabbit.ctl("-q", "list_queues", "name", "type", "policy")
        assert [name, "quorum", name] in [line.split("\t") for line in listed.splitlines()]
        policies = rabbit.ctl("-q", "list_policies")
        assert [part for part in ('"delivery-limit":1000', f'"{name}.dead"') if part not in policies] == []
        # The user may read this queue, and nothing else.
        assert main(["peek", "broker=rabbitmq", f"url={spark}", f"queue={name}.dead"]) == 1
        sink = ["doctor", "--write", "broker=rabbitmq", f"url={spark}", f"queue={name}.dead"]
        assert main(sink) == 1
        rabbit.ctl("set_permissions", "spark", "^$", "^amq.default$", f"^{name}$")
        assert main(sink) == 0
    finally:
        rabbit.delete_user("spark")
        rabbit.ctl("clear_policy", name)
        rabbit.delete(name)
        rabbit.delete(f"{name}.dead")


def started(kind: type[ActiveMqNode | ArtemisNode]) -> ActiveMqNode | ArtemisNode:
    try:
        return kind()
    except NodeError as absent:
        missing(str(absent))
        raise


def examined(node: ActiveMqNode | ArtemisNode, check: str, **credentials: str) -> str:
    """What `doctor` finds out about the queue `orders`."""
    url = node.url("stomp", **credentials)
    told = shell(
        f"{sys.executable} -m pyspark_mq doctor --json broker={node.broker.name} url={url} queue=orders "
        f"managementUrl={node.management_url}",
        ROOT,
    )
    assert told.stdout, told.stderr
    findings = json.loads(told.stdout)["findings"]
    assert "problem" not in {one["level"] for one in findings}, findings
    (found,) = [one["found"] for one in findings if one["check"] == check and "orders" in one["about"]]
    return str(found)


def test_activemq_takes_the_settings_of_the_page() -> None:
    with started(AsOnThePage) as node:
        node.declare("orders")
        node.publish("orders", bodies(3))
        # As the user of the page, who may read and no more.
        assert "10 s" in examined(node, "write-timeout", user="spark", password="s")
        url = node.url("amqp-1.0")
        written = shell(
            f"{sys.executable} -m pyspark_mq doctor --json --write broker=activemq url={url} queue=orders", ROOT
        )
        checks = [one["check"] for one in json.loads(written.stdout)["findings"]]
        assert "write" in checks
        assert "readers" not in checks
        queue = "org.apache.activemq:type=Broker,brokerName=localhost,destinationType=Queue,destinationName=orders"
        assert node.jolokia.read(queue, "CacheEnabled", "QueueSize") == {"CacheEnabled": False, "QueueSize": 3}


def test_artemis_takes_the_settings_of_the_page() -> None:
    with started(ArtemisAsOnThePage) as node:
        node.declare("orders")
        node.publish("orders", bodies(3))
        assert "none" in examined(node, "delivery-limit")
