"""The quick start, as it is on its page: each block run as a reader would."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from testbed import quick_start
from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import poll

#: Of another Spark no trigger ends.
ENDS = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None


@pytest.mark.whole
@pytest.mark.skipif(not ENDS, reason="before Spark 4.2 it does not end by itself")
def test_the_blocks_run_one_after_the_other(rabbit: RabbitNode, tmp_path: Path) -> None:
    done = quick_start.run(Path(sys.executable), rabbit.url(), tmp_path)
    assert done.problem() == ""
    assert "newest committed batch: 0" in done.read
    assert poll(lambda: rabbit.counts("orders").total == 0, 30)
    rabbit.delete("orders")
