"""The source alone, in the process and in the order of calls it has in Spark, without Spark.

`python -m benchmarks.lone drain MESSAGES OPTIONS` reads so many messages, one epoch after the other, and settles them.
`python -m benchmarks.lone hold MESSAGES OPTIONS` takes so many in and keeps them, then plans and serialises them as one
epoch when a line comes in; it needs `minMessagesPerTrigger` of one more. OPTIONS are JSON.

It says what it has done as lines of JSON, then `done`, and ends when its standard input does. Epochs are committed at
once, as by a sink that takes no time, so what is seen is the source's own: Spark's triggers hide it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Mapping
from typing import Any

import psutil
import pyarrow as pa

from pyspark_mq.sources.connections.protocols import session_class
from pyspark_mq.spark_source.datasource import MqDataSource
from pyspark_mq.spark_source.options import parse_options
from pyspark_mq.spark_source.schema import BatchBuilder


class Lone:
    """One reader, and Spark's side of the protocol."""

    def __init__(self, options: Mapping[str, str]) -> None:
        source = MqDataSource(options)
        session_class(parse_options(options).settings.endpoint.protocol)
        self._reader = source.streamReader(source.schema())
        self._process = psutil.Process()
        self._offset = self._reader.initialOffset()
        # What the first column of a process loads (pandas, by way of pyarrow) is no message's.
        builder = BatchBuilder(source.schema())
        builder.serialize([])
        pa.array([0])

    def trigger(self) -> bool:
        """One trigger: was there an epoch?"""
        start, began = self._offset, time.perf_counter()
        end = self._reader.latestOffset(start, None)
        if end == start:
            return False
        self._reader.commit(start)
        partitions = self._reader.partitions(start, end)
        self._offset = end
        took = time.perf_counter() - began
        body = sum(partition.stream.size for partition in partitions if hasattr(partition, "stream"))
        say(
            at_s=time.time(),
            took_s=took,
            rows=self.counters()["planned"],
            offset_bytes=len(json.dumps(end)),
            payload_bytes=body,
            rss=self.rss(),
        )
        return True

    def counters(self) -> dict[str, int]:
        return self._reader.reportLatestOffset() or {"planned": 0, "unacked": 0, "buffered": 0}

    def rss(self) -> int:
        """Bytes of this process in memory now."""
        return int(self._process.memory_info().rss)

    # -- what is measured

    def drain(self, messages: int) -> None:
        """All of them, and until the broker has confirmed the last acknowledgement."""
        self.read(messages)
        counters = self.counters()
        while counters["unacked"] or counters["settled"] < messages:
            self.trigger()
            counters = self.counters()

    def read(self, messages: int) -> None:
        """So many of more."""
        while self.counters()["planned"] < messages:
            self.trigger()
        say(at_s=time.time(), rows=self.counters()["planned"], rss=self.rss(), peak=_peak())

    def hold(self, messages: int) -> None:
        """Connected, then holding them, then with them as an epoch whose payload is made."""
        self.trigger()
        say(rss=self.rss())
        while self.counters()["buffered"] < messages:
            self.trigger()
        say(rss=self.rss())
        sys.stdin.readline()
        while not self.trigger():
            pass


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def _peak() -> int:
    """Bytes this process has ever had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(what: str, messages: int, options: Mapping[str, str]) -> None:
    """Do it, say so, and wait."""
    lone = Lone(options)
    {"drain": lone.drain, "read": lone.read, "hold": lone.hold}[what](messages)
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
