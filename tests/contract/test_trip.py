"""The threads that run from the socket to a delivery's row, and back; prints the modules, for who wants to know."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1
from tests.support.entries import LiveEntry

pytestmark = [pytest.mark.contract("threads"), pytest.mark.network, pytest.mark.protocols(AMQP_0_9_1)]


def test_a_delivery_passes_three_threads(entry: LiveEntry, tmp_path: Path) -> None:
    options = {name: str(value) for name, value in entry.options(idLog=tmp_path).items()}
    command = [sys.executable, "-m", "tests.support.trip", json.dumps(options)]
    entry.publish(10)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        entry.publish(1)
        there, back = json.loads(process.stdout.readline())
    threads = {name for trace in (there, back) for names in trace.values() for name in names}
    print(f"{len(there)} modules from the socket to the row, {len(back)} back, {len({*there, *back})} in all")
    for name in sorted({*there, *back}):
        print(f"{name}: {', '.join(there.get(name, ())) or '-'}; back {', '.join(back.get(name, ())) or '-'}")
    assert threads == {"MainThread", "pyspark-mq supervisor", "pyspark-mq worker"}
