"""The soak: ``make soak``. A long chaos test of kills and cuts; the exit code says whether nothing was lost.

Messages through a proxy that misbehaves, into parquet, while the driver, the JVM, the worker and the broker are
killed or stopped for a while, and the connection is cut, cut in mid-frame, made slow, and silenced. ``--periodic``
runs jobs one after another instead, whose sink fails a third of the time; ``--cluster`` reads from a cluster whose
brokers are killed, frozen and cut from each other. With ``--folder`` everything of the run is kept there, and the same
command goes on with it, however it was ended. At the end a program of its own, in ``dev/testbed/history_checker``,
checks the history of the run.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import importlib.metadata
import importlib.util
import json
import os
import platform
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import psutil
from rich.console import Console

from pyspark_mq.brokers import BROKERS
from testbed.chaos.audit import Verdict, print_rows, print_table
from testbed.chaos.chaos import ChaosTest, Job, came_again
from testbed.chaos.faults import FAULTS, PERIODIC, Fault, fault_of, periodic_faults, streaming_faults
from testbed.chaos.history import History
from testbed.chaos.page import keep
from testbed.chaos.periodic import PeriodicJob
from testbed.chaos.proxy import FaultProxy
from testbed.chaos.queues import ClusterBroker, PrivateBroker
from testbed.chaos.record import Numbering, Record, RecordedPublisher
from testbed.chaos.usage import UsageWatch, growth
from testbed.commit import package_commit
from testbed.process import NodeError, poll

QUEUE = "soak"
_ROOT = Path(__file__).resolve().parents[3]
#: Over AMQP 1.0 the broker alone decides when it gives a silent connection up: a minute by default. And a crash
#: loop is what a limit of deliveries is there to end; here it is what is tested.
_SETTINGS: dict[str, dict[str, Any]] = {
    "rabbitmq": {"config": {"heartbeat": 2}},
    "activemq": {"amqp_idle_timeout_ms": 4_000},
    "artemis": {"amqp_idle_timeout_ms": 4_000, "max_delivery_attempts": -1},
}
_HEARTBEAT = "2s"
#: Longer than any fault keeps all of a cluster away.
_CLUSTER_OPTIONS = {"reconnectTimeout": "5m"}
#: Without a single epoch.
_DRAIN_TIMEOUT_S = 900.0
#: Every process of a run has it in its environment: what a killed soak leaves is found by it.
_RUN = "PYSPARK_MQ_SOAK"
_GONE_TIMEOUT_S = 20.0
_SETTLE_TIMEOUT_S = 180.0


@dataclass
class Run:
    """What a run is, as its folder keeps it.

    Attributes:
        name: of this run, part of every message's mark.
        link: bytes a second that the broker's link takes; 0 for no limit.
    """

    name: str
    seed: int
    broker: str
    protocol: str | None
    version: str
    quorum: bool
    option: list[str]
    messages: int
    rate: int
    faults: int
    queues: int
    link: int
    periodic: bool
    cluster: bool

    @property
    def queue(self) -> str:
        """All of them, as option `queue` takes them."""
        return QUEUE if self.queues == 1 else ",".join(f"{QUEUE}-{number}" for number in range(self.queues))

    @property
    def options(self) -> dict[str, str]:
        """Of the source, as the command gives them."""
        return dict(option.split("=", 1) for option in self.option)


#: What another command for the same folder may change.
_CHANGEABLE = {"messages", "rate", "faults"}
_DEFAULTS: dict[str, Any] = {
    "seed": 1,
    "broker": "rabbitmq",
    "protocol": None,
    "version": "",
    "quorum": False,
    "option": [],
    "messages": 1_000_000,
    "rate": 1_000,
    "faults": 200,
    "queues": 1,
    "link": 0,
    "periodic": False,
    "cluster": False,
}


def main() -> int:
    """Run it; 0 if every message is in the output once and the queue is empty, 130 if it was interrupted."""
    arguments = _arguments()
    console = Console(width=110)
    signal.signal(signal.SIGTERM, _interrupt)
    with ExitStack() as stack:
        if arguments.folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pyspark-mq-soak-")))
        else:
            folder = Path(arguments.folder).resolve()
            folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(_alone(folder))
        run = _run_of(folder, arguments)
        try:
            return _run(run, folder, arguments, console, stack)
        except KeyboardInterrupt:
            # Nothing may come between this and the end of all that was started.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            console.print("interrupted" + (f"; goes on with --folder {folder}" if arguments.folder else ""))
            return 130


def _run(run: Run, folder: Path, arguments: argparse.Namespace, console: Console, stack: ExitStack) -> int:
    console.print(f"seed {run.seed}, run {run.name}")
    _end_leftovers(run, folder)
    os.environ[_RUN] = run.name
    history = stack.enter_context(History(folder))
    record = Record(history, Numbering(run.name), folder)
    if run.cluster and record.sent:
        raise SystemExit(f"the run in {folder} was ended, and its cluster with it: take another folder")
    broker = _broker(run, folder if arguments.folder else None)
    stack.enter_context(broker)
    history.add("info", "run", {**asdict(run), **_versions(broker)}, "soak")
    console.print(f"{broker.title} {broker.version}, read over {broker.protocol}", highlight=False)
    if record.sent:
        console.print(f"goes on after {record.sent:,} messages and {record.fault_count} faults", highlight=False)
    job, kinds, faults = _job(run, record, broker, folder, stack)
    publisher = RecordedPublisher(record, broker.send, run.messages, run.rate, run.faults)
    problem = ""
    try:
        before = job.epochs
        _chaos(run, record, history, publisher, job, kinds, faults, console).run(_DRAIN_TIMEOUT_S)
        # Killed between its last epoch and phase two it has nothing to read when it goes on, and that to do. What a
        # half-open connection holds comes again when the broker has noticed.
        if job.epochs == before or broker.left():
            _settle(job, broker)
    except (TimeoutError, NodeError) as failed:
        problem = str(failed).splitlines()[0]
        console.print(f"[red]{failed}", highlight=False)
    finally:
        publisher.stop()
        job.stop()
        record.poll(at_once=True)
        if arguments.keep and job.log.exists():
            console.print(f"log: {arguments.keep}")
            Path(arguments.keep).write_bytes(job.log.read_bytes())
    return _tell(run, broker, kinds, history, record, job, publisher, problem, arguments, console)


def _tell(
    run: Run,
    broker: PrivateBroker | ClusterBroker,
    kinds: dict[str, int],
    history: History,
    record: Record,
    job: Job,
    publisher: RecordedPublisher,
    problem: str,
    arguments: argparse.Namespace,
    console: Console,
) -> int:
    """The verdicts, in words and where they are kept; 0 if nothing is wrong."""
    record.look_at_leftovers()
    left = broker.left()
    history.add("ok", "left", left, "broker")
    result, (code, words) = record.verdict(left), check_history(history.json)
    rows = _rows(kinds, result, record, job, publisher)
    seconds, used = history.seconds(), growth(history)
    print_rows(console, "Soak", rows, seconds)
    if not result.holds:
        console.print(result.examples)
    print_table(console, "Used, at the beginning, in the middle and at the end", used)
    console.print("The checker, over the history:")
    console.print(words, markup=False, highlight=False)
    console.print(f"SHA-256 of {history.json.name}: {history.digest()}", highlight=False)
    holds = result.holds and code == 0 and not problem
    told = {
        **asdict(run), **_versions(broker), "protocol": broker.protocol, "cluster": broker.title if run.cluster else "",
        "holds": holds, "checker": code == 0, "problem": problem, "seconds": round(seconds),
        "history": history.digest(), "used": used, "faults": record.faults, **rows,
    }  # fmt: skip
    if arguments.report:
        Path(arguments.report).write_text(json.dumps(told), "utf-8")
    if arguments.page:
        keep(arguments.page, told)
    return 0 if holds else 1


def _job(
    run: Run, record: Record, broker: PrivateBroker | ClusterBroker, folder: Path, stack: ExitStack
) -> tuple[Job, dict[str, int], dict[str, Fault]]:
    """What runs, every fault and how many of each are in a round, and what is done."""
    # Goes on otherwise after a restart; the faults themselves follow from the seed and their number.
    chance = random.Random(f"{run.seed}:{record.turns}")
    options = {**broker.options, "heartbeat": _HEARTBEAT, **run.options}
    if isinstance(broker, ClusterBroker):
        faults = broker.faults()
        return (
            Job(broker.name, broker.url, run.queue, folder, {**_CLUSTER_OPTIONS, **options}),
            dict.fromkeys(faults, 1),
            faults,
        )
    if run.periodic:
        periodic = PeriodicJob(broker.name, broker.url, run.queue, folder, options)
        return periodic, dict(PERIODIC), periodic_faults(periodic, chance)
    port = urlsplit(broker.url).port or 0
    proxy = stack.enter_context(FaultProxy("127.0.0.1", port))
    job = Job(broker.name, broker.url.replace(f":{port}", f":{proxy.port}"), run.queue, folder, options)
    proxy.throttle(run.link or None)
    return job, dict(FAULTS), streaming_faults(job, broker, proxy, chance, run.link or None)


def _settle(job: Job, broker: PrivateBroker | ClusterBroker) -> None:
    """Start once more: what the last epoch has left unacknowledged is left to the next start.

    Where Spark shows a source nothing of its commits that is so always.
    """

    def settled() -> bool:
        if isinstance(job, PeriodicJob):
            job.run(None)
        job.keep_alive()
        return broker.left() == 0

    poll(settled, _SETTLE_TIMEOUT_S, interval_s=1.0)
    job.stop()


def _broker(run: Run, folder: Path | None) -> PrivateBroker | ClusterBroker:
    if run.cluster:
        return ClusterBroker(run.broker, run.queue, run.protocol, version=run.version)
    data = {} if folder is None else {"data": folder / "broker"}
    return PrivateBroker(
        run.broker, run.queue, run.protocol, version=run.version, quorum=run.quorum, **_SETTINGS[run.broker], **data
    )


def _chaos(
    run: Run,
    record: Record,
    history: History,
    publisher: RecordedPublisher,
    job: Job,
    kinds: dict[str, int],
    faults: dict[str, Fault],
    console: Console,
) -> ChaosTest:
    began = time.monotonic()
    chance = random.Random(f"{run.seed}:{record.turns}:pauses")
    usage = UsageWatch(job, history)

    def tell(name: str) -> None:
        record.fault_done(name)
        told = f"{time.monotonic() - began:7.0f} s  {record.fault_count:4d}  {publisher.count:9,d} sent  {name}"
        console.print(told, highlight=False)

    def watch() -> None:
        record.poll()
        usage.poll()

    def all_read() -> bool:
        if isinstance(job, PeriodicJob):
            job.run(None)
        return record.all_read(publisher.count)

    return ChaosTest(
        publisher,
        job,
        {name: _recorded(history, name, fault) for name, fault in faults.items()},
        pause_s=lambda: chance.uniform(0.0, 1.0),
        fault_count=max(0, run.faults - record.fault_count),
        on_fault=tell,
        order=lambda turn: fault_of(run.seed, turn, kinds),
        turn=record.turns,
        awaits_epoch=not run.periodic,
        ready=lambda: not publisher.is_alive() or publisher.count * run.faults >= record.fault_count * run.messages,
        watch=watch,
        all_read=all_read,
    )


def _rows(
    kinds: dict[str, int], result: Verdict, record: Record, job: Job, publisher: RecordedPublisher
) -> dict[str, int]:
    return {
        **result.rows(),
        **dict.fromkeys(kinds, 0),
        **record.faults,
        "faults in all": record.fault_count,
        **came_again(job, publisher),
        "files of killed tasks": record.attempts,
        "MiB of the soak's own memory": psutil.Process().memory_info().rss >> 20,
    }


def check_history(history: Path) -> tuple[int, str]:
    """What a program that knows nothing of this one finds in a history: its exit code and its words."""
    command = [sys.executable, "-I", str(_ROOT / "dev" / "testbed" / "history_checker" / "check.py"), str(history)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()


# -- the faults -------------------------------------------------------------------------------


def _recorded(history: History, name: str, fault: Fault) -> Fault:
    def run() -> bool:
        history.add("invoke", "fault", name, "faults")
        done = fault()
        history.add("ok" if done else "fail", "fault", name, "faults")
        return done

    return run


# -- the folder -------------------------------------------------------------------------------


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else runs in this folder."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another soak runs in {folder}") from None
        yield


def _run_of(folder: Path, arguments: argparse.Namespace) -> Run:
    """What is to be run: what the folder says, and what the command changes of it."""
    file = folder / "run.json"
    given = {field.name: getattr(arguments, field.name, None) for field in fields(Run)}
    given = {name: value for name, value in given.items() if value is not None}
    kept = json.loads(file.read_text("utf-8")) if file.exists() else {}
    kept = {**_DEFAULTS, **kept} if kept else {}
    for name in set(given) & set(kept) - _CHANGEABLE:
        if given[name] != kept[name]:
            raise SystemExit(f"--{name} {given[name]}: the run in {folder} has {kept[name]}")
    run = Run(**{"name": secrets.token_hex(12), **_DEFAULTS, **kept, **given})
    temporary = folder / "run.json.new"
    temporary.write_text(json.dumps(asdict(run)), "utf-8")
    temporary.replace(file)
    return run


def _end_leftovers(run: Run, folder: Path) -> None:
    """End what a killed soak has left: its job, which knows nothing of that, and a broker about to end by itself."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(_RUN) == run.name:
                process.kill()
    poll(lambda: not _users_of(folder / "broker"), _GONE_TIMEOUT_S, interval_s=0.1)
    for process in _users_of(folder / "broker"):
        with contextlib.suppress(psutil.Error):
            process.kill()


def _users_of(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if Path(process.cwd()).is_relative_to(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _versions(broker: PrivateBroker | ClusterBroker) -> dict[str, str]:
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "version": broker.version,
        "commit": package_commit(),
        "spark": importlib.metadata.version("pyspark"),
        "python": platform.python_version(),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--folder", help="keep everything there, and go on with what is there")
    parser.add_argument("--messages", type=int, help=f"by default {_DEFAULTS['messages']:,}")
    parser.add_argument("--rate", type=int, help="messages a second, by default 1,000; 0 for as fast as it goes")
    parser.add_argument("--faults", type=int, help=f"by default {_DEFAULTS['faults']}; spread over the messages")
    parser.add_argument(
        "--queues",
        type=int,
        choices=range(1, 6),
        metavar="N",
        help="read by one query, each message in one of them; by default 1",
    )
    parser.add_argument(
        "--link", type=int, metavar="BYTES", help="a second that the broker's link takes; by default as many as it can"
    )
    parser.add_argument("--broker", choices=sorted(BROKERS))
    parser.add_argument("--protocol", help="as the option of the source")
    parser.add_argument("--version", help="of the broker")
    parser.add_argument("--report", metavar="FILE", help="write the counts there as JSON")
    parser.add_argument(
        "--page", metavar="NAME", help="keep them in docs/chaos tests, and write docs/reports/audits.md"
    )
    parser.add_argument("--quorum", action="store_true", default=None, help="a quorum queue instead of a classic one")
    parser.add_argument(
        "--cluster", action="store_true", default=None, help="read from a cluster; it does not go on with a folder"
    )
    parser.add_argument(
        "--periodic", action="store_true", default=None, help="jobs by Trigger.AvailableNow; their runs are the faults"
    )
    parser.add_argument("--seed", type=int, help="of the order of the faults, by default 1")
    parser.add_argument(
        "--option",
        action="append",
        metavar="NAME=VALUE",
        help="of the source",
    )
    parser.add_argument("--keep", metavar="FILE", help="keep the job's log there")
    arguments = parser.parse_args()
    if arguments.cluster and (arguments.periodic or arguments.quorum or (arguments.queues or 1) > 1):
        parser.error(
            "--cluster reads one queue of its own by a job that runs on: not with --periodic, --quorum, --queues"
        )
    return arguments


if __name__ == "__main__":
    sys.exit(main())
