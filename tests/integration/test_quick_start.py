"""The quick start, as it is on its page: each block run as a reader would."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.process import poll
from testbed.rabbitmq_node import RabbitNode

PAGE = Path(__file__).parents[2] / "docs" / "quick-start.md"
URL = "amqp://guest:guest@localhost:5672/"
#: Of another Spark no trigger ends.
ENDS = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(not ENDS, reason="before Spark 4.2 it does not end by itself")
def test_the_blocks_run_one_after_the_other(rabbit: RabbitNode, tmp_path: Path) -> None:
    for text in blocks("python"):
        name = text.partition("\n")[0].removeprefix("# ")
        (tmp_path / name).write_text(text.replace(URL, rabbit.url()), "utf-8")
    _install, *commands = blocks("sh")
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYSPARK_PYTHON": sys.executable}
    printed = []
    for command in commands:
        done = subprocess.run(
            ["sh", "-e", "-c", command.replace(URL, rabbit.url())],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    published, read = printed
    assert "3 message(s), given back" in published
    assert [f"order {number}" in read for number in range(10)] == [True] * 10
    assert "newest committed batch: 0" in read
    assert poll(lambda: rabbit.counts("orders").total == 0, 30)
    rabbit.delete("orders")
