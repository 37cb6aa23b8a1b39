"""The benchmark as a command, on a real broker; with few messages, so its figures mean nothing here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# They start brokers of their own; the fixture tells whether there is a RabbitMQ to start.
pytestmark = pytest.mark.usefixtures("rabbit")

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("headers", [(), ("--headers",)])
def test_bare_clients_empty_a_queue_over_each_protocol(tmp_path: Path, headers: tuple[str, ...]) -> None:
    written = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks", "--brokers", "rabbitmq", "--contenders", "bare"]
    command += ["--messages", "2000", "--rounds", "1", "--bodies", "4096", "--json", str(written), *headers]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(written.read_text("utf-8"))["figures"]
    assert [(one["contender"]["protocol"], one["problem"]) for one in figures] == [
        ("amqp-0-9-1", ""),
        ("stomp", ""),
        ("amqp-1.0", ""),
    ]
    for one in figures:
        assert one["shape"] == {"body_bytes": 4096, "headers": bool(headers)}
        assert one["rate"] > 100
        assert one["cpu_us"]["source"] > 0


def test_a_broker_that_cannot_be_had_is_said_and_the_others_are_measured(tmp_path: Path) -> None:
    written = tmp_path / "bench.json"
    code = (
        "import sys; from testbed import distributions; distributions.ARTEMIS_VERSIONS = {}; "
        "from benchmarks.__main__ import main; main()"
    )
    command = [sys.executable, "-c", code, "--brokers", "artemis,rabbitmq", "--contenders", "bare"]
    command += ["--messages", "1000", "--rounds", "1", "--json", str(written)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(written.read_text("utf-8"))["figures"]
    problems = {one["contender"]["broker"]: one["problem"] for one in figures}
    assert problems["rabbitmq"] == ""
    assert "unknown here" in problems["artemis"]
