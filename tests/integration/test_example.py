"""`examples/job.py`, as somebody starts it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from testbed.brokers.rabbitmq import RabbitNode

JOB = Path(__file__).parents[2] / "examples" / "job.py"
#: As Spark 4.3 words it, shortened in the middle.
FAILURE = """[STREAM_FAILED] Query [id = 3c89fd90, runId = 55a8461f] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform latestOffset: \
Traceback (most recent call last):
  File "sources/connections/message_id.py", line 57, in keys
    raise MissingMessageIdError(
pyspark_mq.errors.MissingMessageIdError: [mq:missing-message-id] queue 'orders': 10 message(s) have no ID
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 3c89fd90, runId = 55a8461f]
Current Committed Offsets: {mq: {"v":1,"planned":"%s"}}
"""


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # which it sets
    found = importlib.util.spec_from_file_location("job", JOB)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_a_failure_of_the_source_is_its_text_without_the_offsets(job: ModuleType) -> None:
    assert (
        job.summary(FAILURE % ("x" * 2_000_000)) == "[mq:missing-message-id] queue 'orders': 10 message(s) have no ID"
    )


def test_another_failure_is_what_stands_before_the_offsets(job: ModuleType) -> None:
    failure = FAILURE.replace("[mq:missing-message-id] ", "") % ("x" * 2_000_000)
    told = job.summary(failure)
    assert told.startswith("[STREAM_FAILED] Query")
    assert told.endswith("SQLSTATE: XXKST")


def test_a_failure_of_megabytes_is_cut(job: ModuleType) -> None:
    told = job.summary("y" * 3_000_000)
    assert len(told) < 5_000
    assert told.endswith("(2,996,000 characters more)")


@pytest.mark.whole
def test_a_job_that_fails_says_why_in_kilobytes(rabbit: RabbitNode, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, JOB, "--broker", "rabbitmq", "--url", rabbit.url(), "--queue", "no-such-queue",
         "--output", tmp_path / "rows", "--checkpoint", tmp_path / "checkpoint"],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable}, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("[mq:destination] queue 'no-such-queue'")
    assert len(done.stderr) < 20_000
