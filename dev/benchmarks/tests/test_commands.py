"""The benchmark as a command, on a real broker; with few messages, so its figures mean nothing here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# They start brokers of their own; the fixture tells whether there is a RabbitMQ to start.
pytestmark = pytest.mark.usefixtures("rabbit")

ROOT = Path(__file__).parents[3]


def measured(folder: Path, *words: str) -> Any:
    """The JSON of a part, run with so few messages."""
    written = folder / "part.json"
    command = [sys.executable, "-m", "benchmarks", *words, "--json", str(written)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(written.read_text("utf-8"))


@pytest.mark.whole
@pytest.mark.parametrize("headers", [(), ("--headers",)])
def test_bare_clients_empty_a_queue_over_each_protocol(tmp_path: Path, headers: tuple[str, ...]) -> None:
    written = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks", "--brokers", "rabbitmq", "--contenders", "bare,ceiling"]
    command += ["--messages", "2000", "--rounds", "1", "--bodies", "4096", "--json", str(written), *headers]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(written.read_text("utf-8"))["figures"]
    assert [(one["contender"]["protocol"], one["problem"]) for one in figures] == [
        ("amqp-0-9-1", ""),
        ("stomp", ""),
        ("amqp-1.0", ""),
        ("amqp-0-9-1", ""),
        ("amqp-0-9-1", ""),
    ]
    for one in figures:
        assert one["shape"] == {"body_bytes": 4096, "headers": bool(headers), "busy": 0, "ids": True}
        assert one["rate"] > 100
        # A ceiling takes less than the kernel counts.
        assert one["cpu_us"]["source"] > 0 or one["contender"]["kind"] == "ceiling"


@pytest.mark.whole
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


@pytest.mark.whole
def test_what_was_measured_before_an_interruption_is_kept(tmp_path: Path) -> None:
    written = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks", "--brokers", "rabbitmq,artemis", "--contenders", "bare"]
    command += ["--protocols", "amqp-0-9-1", "--messages", "1000", "--rounds", "100", "--json", str(written)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    with process:
        told = next(line for line in process.stdout if "round 3" in line)
        assert "turn 3 of 100, about" in told
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        shown = process.stdout.read()
    assert process.returncode == 0
    assert f"what was measured is in {written}" in "".join(shown.split("\n"))
    (figures,) = json.loads(written.read_text("utf-8"))["figures"]
    assert figures["rate"] > 100


@pytest.mark.whole
def test_growth_is_measured_case_by_case(tmp_path: Path) -> None:
    words = ["--backlogs", "1k,2k", "--rounds", "1", "--windows", "1k", "--epochs", "20", "--held", "2000"]
    results = measured(tmp_path, "growth", *words, "--held-bodies", "200", "--limits", "1")["results"]
    assert [one["messages"] for one in results["backlog"]] == [1_000, 2_000]
    for one in results["backlog"]:
        assert all(turn["rate"] > 100 and turn["bare_rate"] > 100 for turn in one["turns"])
    (window,) = results["window"]
    assert window["rate"] > 100
    assert [(one["first"], one["last"]) for one in results["epochs"]["thousands"]][-1] == (19, 20)
    assert [one["protocol"] for one in results["held"]] == ["amqp-0-9-1", "stomp", "amqp-1.0"]
    for one in results["held"]:
        # Its body at least, and not a process for each. So few messages do not tell held from planned ones.
        assert 200 < one["held"] < 20_000
        assert 200 < one["planned"] < 20_000
    (limit,) = results["bytes"]
    assert limit["messages"] * 10_240 > 5 << 20


@pytest.mark.whole
def test_latency_is_measured_beside_spark(tmp_path: Path) -> None:
    words = ["--rates", "50", "--protocols", "stomp", "--seconds", "2", "--warm-up", "1", "--rounds", "1"]
    turns = measured(tmp_path, "latency", *words)["results"]["turns"]
    assert [one["contender"] for one in turns] == ["Spark rate", "pyspark-mq stomp"]
    for one in turns:
        (p50,), (p99,), (messages,) = one["p50_ms"], one["p99_ms"], one["messages"]
        assert 0 < p50 <= p99
        assert 90 <= messages <= 110


@pytest.mark.whole
def test_recovery_is_measured_beside_plain_starts(tmp_path: Path) -> None:
    words = ["--planned", "500", "--rounds", "1", "--no-counting"]
    turns = measured(tmp_path, "recovery", *words)["results"]["turns"]
    assert [one["source"] for one in turns] == ["rate-micro-batch", "mq"]
    for one in turns:
        (times,) = one["turns"]
        assert 0 < times["session"] < times["query"] < times["committed"]
        assert times["cpu_jvm"] > 1
        assert (times["cpu_source"] > 0) == (one["source"] == "mq")


@pytest.mark.whole
def test_what_is_kept_beside_a_busy_process(tmp_path: Path) -> None:
    words = ["--contenders", "bare", "--messages", "2000", "--rounds", "1"]
    figures = measured(tmp_path, "busy", *words)["figures"]
    assert [(one["shape"]["busy"], one["problem"]) for one in figures] == [(0, ""), (1, "")]


def test_a_part_that_there_is_not_is_named() -> None:
    command = [sys.executable, "-m", "benchmarks", "grwth"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert done.returncode == 2
    assert (
        "'grwth' is no part; there are guarantees, messages, contents, busy, growth, latency, recovery" in done.stderr
    )


@pytest.mark.whole
def test_messages_that_arrive_alone_are_measured_without_a_broker(tmp_path: Path) -> None:
    results = measured(tmp_path, "trickle", "--messages", "128", "--repeats", "1")["results"]
    assert [one["a_round"] for one in results["rounds"]] == [1, 4, 16, 64]
    assert results["rounds"][-1]["together_us"] < results["rounds"][-1]["alone_us"]
