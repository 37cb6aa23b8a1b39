"""The quick start, as it is on its page: each block run as a reader would."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from testbed import quick_start
from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import poll
from tests.support.pages import blocks


@pytest.mark.whole
def test_the_blocks_run_one_after_the_other(rabbit: RabbitNode, tmp_path: Path) -> None:
    done = quick_start.run(Path(sys.executable), rabbit.url(), tmp_path)
    assert done.problem() == ""
    # Of what varies, the page shows an example, and "…" for the rest.
    for line in "".join(one.text for one in blocks("docs/quick-start.md", "")).splitlines():
        shown = re.escape(re.sub(r"[0-9a-f]{8}-[0-9a-f-]+|rabbit@|65 s", "…", line))
        assert re.search(f"^{shown.replace('…', '.*')}", done.published + done.read, re.MULTILINE), line
    assert "newest committed batch: 0" in done.read
    # Before Spark 4.2 the next start acknowledges the last epoch of a run.
    left = 0 if importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None else 10
    assert poll(lambda: rabbit.counts("orders").total == left, 30)
    rabbit.delete("orders")
