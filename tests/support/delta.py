"""A way to hold a writer of Delta tables at a known moment of its commit."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.distributions import DELTA_JARS, fetch
from testbed.process import NodeError, poll

__all__ = ["Commits"]

_STORE = Path(__file__).parent / "java" / "HoldingLogStore.java"
_HELD_TIMEOUT_S = 240.0


class Commits:
    """The commits of one Spark's Delta tables, which go through a log store of ours (`HoldingLogStore.java`).

    Delta's own option names it, and it is Delta's own but for the waiting.
    """

    def __init__(self, spark_home: Path, folder: Path) -> None:
        """Compile it.

        Args:
            spark_home: folder of the Spark that will run it, with its `jars`.
            folder: for what is made.

        Raises:
            NodeError: Delta cannot be had, or there is no compiler.
        """
        self._jars = sorted(fetch(DELTA_JARS).glob("*.jar"))
        self._folder = folder / "commits"
        self._folder.mkdir()
        self._jars.append(self._compiled(spark_home))

    @property
    def settings(self) -> dict[str, str]:
        """Of a Spark with Delta, whose commits these are."""
        return {
            "spark.jars": ",".join(map(str, self._jars)),
            "spark.delta.logStore.file.impl": _STORE.stem,
            "spark.hadoop.test.hold": str(self._folder),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # 50 tasks to read a log of a few lines are most of a batch's time.
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.sql.shuffle.partitions": "1",
        }

    @contextmanager
    def held(self, moment: str, paths: str = "") -> Iterator[None]:
        """Whoever commits waits.

        Args:
            moment: `before` or `after` its file is in the log of the table.
            paths: a part of the paths of the commits that are meant.
        """
        wanted, held = self._folder / moment, self._folder / "held"
        held.unlink(missing_ok=True)
        made = wanted.with_suffix(".new")
        made.write_text(paths, "utf-8")
        made.rename(wanted)
        try:
            yield
        finally:
            wanted.unlink()

    def somebody_waits(self) -> bool:
        """Wait for somebody who is held by :meth:`held`."""
        return poll((self._folder / "held").exists, _HELD_TIMEOUT_S)

    def _compiled(self, spark_home: Path) -> Path:
        compiler = shutil.which("javac")
        if compiler is None:
            raise NodeError("there is no 'javac' on the PATH; install it with: apt-get install openjdk-17-jdk-headless")
        path = ":".join([*map(str, self._jars), f"{spark_home / 'jars'}/*"])
        done = subprocess.run(
            [compiler, "-d", str(self._folder), "-cp", path, str(_STORE)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NodeError(f"{_STORE.name} does not compile: {done.stdout}{done.stderr}")
        jar = self._folder / "store.jar"
        with zipfile.ZipFile(jar, "w") as archive:
            for file in self._folder.glob("*.class"):
                archive.write(file, file.name)
        return jar
