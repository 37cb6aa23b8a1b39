"""Spark's side of the protocol in two hundred lines, so that a crash can be put exactly where it hurts.

The order of calls is that of ``MicroBatchExecution.scala``, and ``tests/integration/test_spark.py``
checks it against the installed Spark. What survives a crash (offset log, commit log, sink) is in the
:class:`Engine`; what does not (the reader and its connection) is in a process that is really killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from pyspark_mq.spark_source.folders import ID_FOLDER
from tests.support.reader_template import ForkedReader, fork_reader
from tests.support.watching import writer

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["At", "Crashed", "Engine", "ReaderError", "ReaderProcess", "full_epochs"]

_ROOT = Path(__file__).resolve().parent.parent.parent
_ANSWER_TIMEOUT_S = 120.0


def full_epochs(messages: object) -> dict[str, object]:
    """Options for epochs of exactly this many messages, while the queue has as many."""
    return {"maxMessagesPerTrigger": messages, "minMessagesPerTrigger": messages, "maxTriggerDelay": "5s"}


class At(Enum):
    """Where a driver can die within one trigger."""

    BEFORE_OFFSET_LOG = auto()
    AFTER_OFFSET_LOG = auto()
    AFTER_SINK = auto()
    AFTER_COMMIT_LOG = auto()


class Crashed(Exception):  # noqa: N818 - nobody's error
    """The reader's process was killed where the test wanted it."""


class ReaderError(Exception):
    """The reader raised an error: what Spark shows as the query's exception."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {text}")


class ReaderProcess:
    """One reader in a process of its own.

    Args:
        options: of the source.
        through_parent: start it from nothing, through a parent that can be killed alone, as a JVM can.
    """

    def __init__(self, options: dict[str, str], *, through_parent: bool = False) -> None:
        self._process: ForkedReader | subprocess.Popen[bytes]
        if through_parent:
            # The shell stays: it has a second command to run.
            command = ["/bin/sh", "-c", '"$@"; exit $?', "parent", sys.executable, "-m", "tests.support.reader_process"]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                start_new_session=True,
            )
        else:
            self._process = fork_reader()
        self._tell = writer()
        self._tell("start", options.get("failOnDataLoss") == "false")
        self._send(options)

    def call(self, name: str, *arguments: Any, timeout_s: float = _ANSWER_TIMEOUT_S) -> Any:
        """Call a method of the reader and wait for what it returns."""
        self.begin(name, *arguments)
        return self.answer(timeout_s)

    def begin(self, name: str, *arguments: Any) -> None:
        """Call a method and do not wait."""
        if name != "rows" or arguments[0] != arguments[1]:
            self._tell("call", name)
        self._send((name, list(arguments)))

    def answer(self, timeout_s: float = _ANSWER_TIMEOUT_S) -> Any:
        """What the last call returned."""
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], timeout_s)[0]:
            raise TimeoutError(f"no answer within {timeout_s:g} s")
        try:
            kind, value = pickle.load(stdout)
        except EOFError:
            raise Crashed from None
        if kind == "error":
            raise ReaderError(*value)
        return value

    def _send(self, value: Any) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        pickle.dump(value, stdin)
        stdin.flush()

    def pids(self) -> list[int]:
        """All its processes, the parent first."""
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._process.pid).children(recursive=True)
            return [self._process.pid, *(child.pid for child in children)]
        return []

    def kill_parent(self) -> int:
        """Kill the parent alone; the pid of the reader."""
        parent, reader, *_ = self.pids()
        os.kill(parent, signal.SIGKILL)
        self._process.wait()
        return reader

    def kill(self) -> None:
        """SIGKILL to all of it: the kernel closes the connection, nobody says goodbye."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._tell("crash")
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Engine:
    """Offset log, commit log and an idempotent sink; micro-batches one by one.

    Attributes:
        sink: batch -> IDs of its rows; a batch that is there already is not written again.
        rows: all rows of the sink, in order.
        replays: batches that were asked for again after a crash.
    """

    def __init__(self, **options: Any) -> None:
        self.options = {"broker": "rabbitmq", **{name: str(value) for name, value in options.items()}}
        #: For the files of the journal, where a test has no place of its own.
        self._folder: str | None = None
        if not {"idLog", "checkpointLocation"} & self.options.keys():
            self.options["idLog"] = self._folder = tempfile.mkdtemp(prefix="engine-")
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        #: Whose folder it goes on with.
        self._former: Engine | None = None
        self._offsets: dict[int, str] = {}
        self._committed = -1
        self._initial: str | None = None
        self.sink: dict[int, list[str]] = {}
        self.rows: list[dict[str, Any]] = []
        self.replays = 0
        self._reader: ReaderProcess | Any = None
        #: How the process of a reader is started.
        self.make_reader: Callable[[dict[str, str]], ReaderProcess | Any] = ReaderProcess
        #: Called after the offset log was written and before the batch runs.
        self.between: Callable[[], None] = lambda: None
        #: Is told of what Spark does, for tests/support/traces.py.
        self._tell = writer()

    # -- the process

    @property
    def reader(self) -> ReaderProcess | Any:
        """The process of the reader, started when it is first needed."""
        if self._reader is None:
            self._reader = self.make_reader(self.options)
        return self._reader

    def crash(self) -> None:
        """Kill the reader's process; what Spark has written stays."""
        if self._reader is not None:
            self._reader.kill()
        self._reader = None

    def take_over(self, other: Engine) -> None:
        """Go on from what another engine has written: the same query with other options."""
        self._offsets, self._committed, self._initial = other._offsets, other._committed, other._initial
        self._former, self._folder = other, other._folder
        for name in ("idLog", "checkpointLocation"):
            self.options.pop(name, None)
            if name in other.options:
                self.options[name] = other.options[name]
        self.sink, self.rows, self.replays = other.sink, other.rows, other.replays

    def save(self, checkpoint: Path) -> None:
        """Write what Spark would have written, and have the files of the journal there."""
        if self._folder is not None:
            shutil.copytree(self._folder, checkpoint / ID_FOLDER, dirs_exist_ok=True)
        (checkpoint / "commits").mkdir(parents=True, exist_ok=True)
        for batch, offset in self._offsets.items():
            _log(checkpoint, batch, offset)
        for batch in range(self._committed + 1):
            (checkpoint / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def load(self, checkpoint: Path) -> None:
        """Go on from the offsets that are there, after an epoch was released."""
        self._tell("release")
        for batch in self._offsets:
            self._offsets[batch] = (checkpoint / "offsets" / str(batch)).read_text().split("\n")[2]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.crash()

    # -- micro-batches

    def trigger(self, crash: At | None = None) -> int:
        """One trigger; how many rows it had, 0 if there was nothing new.

        Args:
            crash: kill the reader there.

        Raises:
            Crashed: it was killed.
        """
        batch = self._committed + 1
        if batch not in self._offsets:
            if not self._plan(batch, crash):
                return 0
            self._die_if(crash, At.AFTER_OFFSET_LOG)
        else:
            self.replays += 1
        self.between()
        return self._run(batch, crash)

    def run_available(self) -> int:
        """`Trigger.AvailableNow`: trigger until nothing is planned; the rows of the run."""
        self.reader.call("prepareForTriggerAvailableNow")
        total, before = 0, None
        while before != self._committed:
            before = self._committed
            total += self.trigger()
        return total

    def batch(self, crash: At | None = None, timeout_s: float = 60.0) -> int:
        """Trigger, as Spark does without a pause, until there is a batch; its rows.

        Raises:
            Crashed: it was killed where `crash` says.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            rows = self.trigger(crash)
            if rows:
                return rows
        raise TimeoutError(f"no batch within {timeout_s:g} s")

    def _start(self, batch: int) -> str:
        if batch > 0:
            return self._offsets[batch - 1]
        if self._initial is None:
            self._initial = self.reader.call("initialOffset")
        return self._initial

    def _plan(self, batch: int, crash: At | None) -> bool:
        start = self._start(batch)
        end = self.reader.call("latestOffset", start, None)
        if end == start:
            self._tell("nothing")
            return False
        self._die_if(crash, At.BEFORE_OFFSET_LOG)
        self._offsets[batch] = end
        if "checkpointLocation" in self.options:
            _log(Path(self.options["checkpointLocation"]), batch, end)
        self._tell("plan")
        if batch > 0:
            self.reader.call("commit", start)
        return True

    def _run(self, batch: int, crash: At | None) -> int:
        rows = self.reader.call("rows", self._start(batch), self._offsets[batch])
        ids = [row["messageId"] for row in rows]
        if batch in self.sink:
            assert self.sink[batch] == ids, "the replay is not the same batch"
        else:
            self.sink[batch] = ids
            self.rows += rows
        self._tell("sink", ids)
        self._die_if(crash, At.AFTER_SINK)
        self._committed = batch
        self._tell("commit")
        self._die_if(crash, At.AFTER_COMMIT_LOG)
        return len(rows)

    def _die_if(self, wanted: At | None, here: At) -> None:
        if wanted is here:
            self.crash()
            raise Crashed

    def drain(self, messages: int, timeout_s: float = 120.0) -> None:
        """Trigger until the sink has this many rows, then until everything is settled."""
        deadline = time.monotonic() + timeout_s
        while sum(map(len, self.sink.values())) < messages:
            self.trigger()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(self.output)} of {messages} rows within {timeout_s:g} s")
        while self.trigger():
            pass

    @property
    def output(self) -> list[str]:
        """Bodies of all rows in the sink as text, in order."""
        return [row["body"].decode() for row in self.rows]

    @property
    def ids(self) -> list[str]:
        """IDs of all rows in the sink, in order."""
        return [key for batch in sorted(self.sink) for key in self.sink[batch]]

    def counters(self) -> dict[str, int]:
        """What the reader reports for the query's progress."""
        report: dict[str, int] = json.loads(self.reader.call("reportLatestOffset"))
        return report


def _log(checkpoint: Path, batch: int, offset: str) -> None:
    """Write an entry of Spark's log of offsets."""
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch)).write_text(f'v1\n{{"batchTimestampMs":0}}\n{offset}')
