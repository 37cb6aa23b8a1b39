"""Counts what runs for one delivery: modules of the package, and threads.

`python -m tests.support.trip OPTIONS` reads what is in the queue, says `ready`, and traces the next message: from the
socket to its row, and from its commit until the source knows that the broker has forgotten it. It prints both as JSON:
module -> names of the threads that ran it. OPTIONS are JSON.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import defaultdict
from collections.abc import Mapping
from types import FrameType
from typing import Any

from pyspark_mq.spark_source.datasource import MqDataSource

__all__ = ["Trace"]

_PACKAGE = "pyspark_mq."
#: They look at a clock and at the parent now and then, whatever is delivered.
_ASIDE = {"pyspark-mq clock", "pyspark-mq parent watch"}


class Trace:
    """Modules of the package that run, each with the threads that run it. Begins with threads that begin later."""

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = defaultdict(set)
        threading.setprofile(self._look)
        sys.setprofile(self._look)

    def _look(self, frame: FrameType, event: str, _: Any) -> None:
        name, thread = str(frame.f_globals.get("__name__")), threading.current_thread().name
        if event == "call" and name.startswith(_PACKAGE) and thread not in _ASIDE:
            self._seen[name].add(thread)

    def take(self) -> dict[str, list[str]]:
        """Return what ran since the last time."""
        seen, self._seen = self._seen, defaultdict(set)
        return {name: sorted(threads) for name, threads in sorted(seen.items())}


def main(options: Mapping[str, str]) -> None:
    """Trace one delivery."""
    trace = Trace()
    source = MqDataSource(options)
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()

    def trigger() -> int:
        nonlocal start
        end = reader.latestOffset(start, None)
        if end == start:
            return 0
        reader.commit(start)
        partitions = reader.partitions(start, end)
        start = end
        return sum(batch.num_rows for partition in partitions for batch in reader.read(partition))

    def settle() -> None:
        while reader.reportLatestOffset()["unacked"]:  # type: ignore[index]
            trigger()

    while not trigger():
        pass
    settle()
    print("ready", flush=True)
    trace.take()
    while not trigger():
        pass
    there = trace.take()
    settle()
    print(json.dumps([there, trace.take()]), flush=True)
    sys.setprofile(None)
    reader.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
