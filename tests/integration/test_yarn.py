"""The page's recipe for YARN on a YARN of this machine; driver and executor are killed while they read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pyspark
import pytest

from testbed.brokers.rabbitmq import RabbitNode
from testbed.chaos.audit import output_marks, verdict
from testbed.process import Command, NodeError, Process, poll
from testbed.quick_start import URL
from testbed.spark.yarn import YarnCluster
from tests.plugin import missing
from tests.support.pages import ROOT, block

pytestmark = [pytest.mark.whole, pytest.mark.timeout(1_200)]

PAGE = "docs/deploy.md"
SPARK = Path(pyspark.__file__).parent
_PACK_TIMEOUT_S = 300
#: YARN starts three JVMs one after the other, each of which shares two cores with other tests.
_START_TIMEOUT_S = 300.0
#: A JVM that is killed within the minute never gets back what optimising costs.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Of the machine the test runs on, and not of a cluster: Spark is there already, and no memory to waste.
SETTINGS = {
    "spark.yarn.jars": f"local:{SPARK}/jars/*",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.executor.extraJavaOptions": _JAVA,
    "spark.executor.instances": "1",
    "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
}


def environment(**more: str) -> dict[str, str]:
    """Of somebody who has this Python and this Spark, and neither the checkout nor its settings."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYSPARK_PYTHON"}}
    path = [str(Path(sys.executable).parent), str(SPARK / "bin"), os.environ["PATH"]]
    return {**kept, "PATH": os.pathsep.join(path), "SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1", **more}


def pack(folder: Path) -> None:
    """The environment, with this checkout in place of the package of the index."""
    command = block(PAGE, "python3 -m venv env").replace("pyspark-mq[stomp]", f"{ROOT}[stomp]")
    done = subprocess.run(
        ["sh", "-e", "-c", command], cwd=folder, env=environment(), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=_PACK_TIMEOUT_S,
    )  # fmt: skip
    if "No matching distribution" in done.stderr or "Failed to establish a new connection" in done.stderr:
        missing(f"the package index was not reached: {done.stderr[-1000:]}")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"[-4000:]


def submitted(yarn: YarnCluster, rabbit: RabbitNode, queue: str, folder: Path) -> Process:
    command = block(PAGE, "export PYSPARK_PYTHON=./env/bin/python")
    for old, new in {URL: rabbit.url(), "--queue orders": f"--queue {queue}", "hdfs://": folder.as_uri()}.items():
        assert old in command
        command = command.replace(old, new)
    settings = {**SETTINGS, "spark.yarn.stagingDir": (folder / "staging").as_uri()}
    given = "".join(f" --conf '{name}={value}'" for name, value in settings.items())
    command = command.replace(" --archives", f"{given} --archives")
    shutil.copy(ROOT / "examples" / "job.py", folder)
    environment_ = environment(HADOOP_CONF_DIR=str(yarn.configuration))
    return Process(Command(["sh", "-e", "-c", command], environment_), log=folder / "submit.log", folder=folder)


def test_a_driver_and_an_executor_of_yarn_that_die_take_nothing_with_them(rabbit: RabbitNode, tmp_path: Path) -> None:
    queue = f"yarn-{uuid.uuid4().hex[:8]}"
    rabbit.declare(queue)
    output = tmp_path / "data" / "orders"
    sent: list[str] = []

    def send(count: int) -> None:
        ids = [str(uuid.uuid4()) for _ in range(count)]
        rabbit.publish(queue, [one.encode() for one in ids], ids=ids)
        sent.extend(ids)

    pack(tmp_path)
    try:
        yarn = YarnCluster()
    except NodeError as absent:
        missing(str(absent))
        raise
    with yarn:
        job = submitted(yarn, rabbit, queue, tmp_path)

        def arrived() -> int:
            assert job.running, f"{(tmp_path / 'submit.log').read_text('utf-8')[-3000:]}\n{yarn.said()}"
            return len(output_marks(output)) if output.exists() else 0

        try:
            send(500)
            assert poll(lambda: arrived() >= 500, _START_TIMEOUT_S, interval_s=0.5), yarn.said()
            send(500)
            assert yarn.kill_driver()
            send(500)
            assert poll(lambda: arrived() >= 1_500, _START_TIMEOUT_S, interval_s=0.5), yarn.said()
            assert yarn.attempts() == 2
            assert yarn.kill_executor()
            send(500)
            assert poll(lambda: arrived() >= 2_000, _START_TIMEOUT_S, interval_s=0.5), yarn.said()
            assert poll(lambda: rabbit.counts(queue).total == 0, 60)
            program = yarn.program("job.py")
            assert program is not None
            program.terminate()
            assert poll(lambda: not job.running, 60, interval_s=0.5)
            assert yarn.application()["finalStatus"] == "SUCCEEDED", yarn.said()
        finally:
            job.kill()
    result = verdict(sent, output_marks(output), rabbit.counts(queue).total)
    assert result.holds, result
    rabbit.delete(queue)
    assert "pyspark" not in packed(tmp_path)


def packed(folder: Path) -> set[str]:
    """Packages in the archive."""
    listed = subprocess.run(["tar", "-tzf", str(folder / "env.tar.gz")], capture_output=True, text=True, check=True)
    return set(re.findall(r"/site-packages/(\w+)/__init__\.py$", listed.stdout, re.MULTILINE))
