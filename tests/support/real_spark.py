"""The interpreter of another Spark, for tests."""

from __future__ import annotations

from pathlib import Path

from testbed.process import NodeError
from tests.plugin import missing
from tests.spark_matrix import spark_python

__all__ = ["real_spark"]


def real_spark(version: str) -> Path:
    """Return the interpreter of an environment with that Spark; skip or fail the test where there can be none."""
    try:
        return spark_python(version)
    except NodeError as absent:
        missing(str(absent))
        raise
