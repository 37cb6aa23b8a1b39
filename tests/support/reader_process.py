"""The process of a stream reader, without Spark: what `python_streaming_source_runner` is to the JVM.

Reads pickled calls from standard input, answers on standard output. Like Spark's worker
it is a child process, holds the connection to the broker, and can be killed.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from typing import Any

from pyspark_mq.spark_source.datasource import MqDataSource
from tests.support.watching import FILE, watch, watch_answers, writer


def main() -> None:
    """Serve one reader until standard input ends."""
    # Whatever prints must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    calls = sys.stdin.buffer
    options: dict[str, str] = pickle.load(calls)
    reader: Any = None
    while True:
        try:
            name, arguments = pickle.load(calls)
        except EOFError:
            return
        try:
            if reader is None:
                source = MqDataSource(options)
                reader = source.streamReader(source.schema())
                _write_down(reader)
            answer: tuple[str, Any] = ("value", _call(reader, name, arguments))
        except Exception as error:  # noqa: BLE001 - every error is an answer
            answer = ("error", (type(error).__name__, str(error)))
        pickle.dump(answer, answers)
        answers.flush()


def _write_down(reader: Any) -> None:
    if FILE not in os.environ:
        return
    tell = writer()
    if not all(queue.settings.guarantee.identifies for queue in reader._source()._queues):
        tell("inexact")
    else:
        watch(reader._source(), tell)
        watch_answers(reader._source(), tell)


def _call(reader: Any, name: str, arguments: list[Any]) -> Any:
    # As Spark does, offsets cross the border as JSON text.
    arguments = [json.loads(argument) if isinstance(argument, str) else argument for argument in arguments]
    if name == "rows":
        rows: list[dict[str, Any]] = []
        for partition in reader.partitions(*arguments):
            for batch in reader.read(pickle.loads(pickle.dumps(partition))):
                rows += batch.to_pylist()
        return rows
    value = getattr(reader, name)(*arguments)
    return json.dumps(value) if isinstance(value, dict) else value


if __name__ == "__main__":
    main()
