"""Fixtures and options of all tests, real brokers among them; pyproject.toml names this module to pytest.

Without a broker a test is skipped; in CI it fails.
"""

from __future__ import annotations

import gc
import json
import math
import os
import shutil
import sys
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby, zip_longest
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0
from pyspark_mq.sources.connections.protocols import SESSIONS
from testbed.brokers.node import Node, TlsFiles
from testbed.brokers.rabbitmq import RabbitNode
from testbed.distributions import TLA_TOOLS, fetch, find_java
from testbed.process import NodeError
from testbed.spark.class_archive import use_archive
from tests.support.certificates import Certificates, make_certificates
from tests.support.cpu import CpuReport
from tests.support.entries import ALL_ENTRIES, ENTRIES, LiveEntry, MatrixEntry, entry_node
from tests.support.memory_entry import MEMORY_ENTRY, MemoryEntry, MemoryNode

#: For each JVM that a test starts, brokers as well. They live for a minute, and never get back what optimising costs:
#: with these Spark and brokers are there after half the CPU time.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

#: Names of the matrix entries on which `make test` runs a test, by its name, kept with its module or class.
_IN_MAKE_TEST = pytest.StashKey[dict[str, set[str]]]()
#: Folders of tests with neither Spark nor broker, the quickest first.
_QUICKEST = ("unit", "property")
#: Folders whose tests on matrix entries are rows of the compatibility matrix.
_OF_ROWS = ("contract", "faults")
#: Plugins of a RabbitMQ with streams, which are also read as queues.
_STREAMS = ("rabbitmq_stream", "rabbitmq_stomp", "rabbitmq_amqp1_0")
#: Modules whose tests `make test` runs on one matrix entry of each protocol.
_ON_EVERY_PROTOCOL = (
    "contract.test_alone",
    "contract.test_amqp10_peer",
    "contract.test_session",
    "contract.test_sink",
    "contract.test_topics",
    "contract.test_unreadable",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    names = ", ".join(entry.name for entry in (MEMORY_ENTRY, *ALL_ENTRIES))
    parser.addoption(
        "--entries", default="", help=f"run contract tests and failure matrix on these only, comma-separated: {names}"
    )
    parser.addoption("--all", action="store_true", help="every test on every matrix entry, as `make test-all` does")
    parser.addoption(
        "--thorough", action="store_true", help="all examples, and the thorough tests on every entry, which takes long"
    )
    parser.addoption(
        "--third",
        type=int,
        choices=(1, 2, 3),
        help="with --all: a third of what `make test` leaves out; what draws its examples is tried as with --all",
    )
    parser.addoption(
        "--matrix-report", help="folder where to append what the contract tests gave to <matrix entry>.jsonl"
    )
    parser.addoption("--matrix-done", help="file with the names of tests that have run, which are left out")
    parser.addoption("--cpu", type=int, default=0, metavar="N", help="print the N tests that take most CPU time")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers have it from the process that starts them
        _compile_once()
        _leave_nothing(config)
    if config.getoption("--cpu"):
        config.pluginmanager.register(CpuReport(config.getoption("--cpu")))
    # tests.support.effort says how much each of them tries. No test fails for being slow.
    for name in ("some", "all", "thorough"):
        hypothesis.settings.register_profile(name, deadline=None)
    everything = "all" if config.getoption("--all") else "some"
    hypothesis.settings.load_profile("thorough" if config.getoption("--thorough") else everything)
    config.addinivalue_line("markers", "xdist_group(name): what stays together, also without pytest-xdist")
    config.addinivalue_line(
        "markers", "thorough: in memory, with --all on AMQP 0-9-1 too, with --thorough on every matrix entry"
    )
    config.addinivalue_line("markers", "protocols(*names): run on matrix entries of these protocols only")
    config.addinivalue_line("markers", "network: not on the queue in memory, which has no sockets")
    config.addinivalue_line("markers", "whole: with --all only; what it covers is used by other tests anyway")
    config.addinivalue_line(
        "markers", "sampled: with --all on one matrix entry of each protocol, as what it covers is above the brokers"
    )
    config.addinivalue_line("markers", "contract(name): the row of the compatibility matrix a test belongs to")
    config.addinivalue_line(
        "markers", "writes: on matrix entries whose queues are written to, which leaves out the queue in memory"
    )
    config.addinivalue_line("markers", "shares(name): in one group with others of that name, unless it needs Spark")
    config.addinivalue_line("markers", "untraced: what it does is not in the specification")


def _compile_once() -> None:
    """Let modules be compiled into files, whatever the environment says: tests start hundreds of Pythons."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def _leave_nothing(config: pytest.Config) -> None:
    """Delete at the end what killed processes leave among temporary files: a Spark some 15 MB."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix="pyspark-mq-tests-")
    os.chmod(folder, 0o711)  # PostgreSQL runs as another user
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    options = os.environ.get("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
    os.environ["JDK_JAVA_OPTIONS"] = f'{options} "-Djava.io.tmpdir={folder}"'
    use_archive(os.environ)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "entry" in metafunc.fixturenames:
        entries = _entries(metafunc, everything=_everything(metafunc))
        metafunc.parametrize("entry", entries, indirect=True, ids=[entry.name for entry in entries], scope="function")
        if metafunc.config.getoption("--third"):
            in_make_test = {entry.name for entry in _entries(metafunc, everything=False)}
            metafunc.definition.parent.stash.setdefault(_IN_MAKE_TEST, {})[metafunc.definition.name] = in_make_test


def _entries(metafunc: pytest.Metafunc, *, everything: bool) -> list[MatrixEntry]:
    """Return the matrix entries that a test runs on, in a run of everything or not."""
    mark = metafunc.definition.get_closest_marker
    only = mark("protocols")
    entries = [entry for entry in _chosen(metafunc.config) if only is None or entry.protocol in only.args]
    if mark("writes"):
        entries = [entry for entry in entries if is_written(entry)]
    if mark("network"):
        entries = [entry for entry in entries if entry != MEMORY_ENTRY]
    if mark("thorough") and not metafunc.config.getoption("--thorough"):
        entries = [entry for entry in entries if entry == MEMORY_ENTRY or (entry.protocol == AMQP_0_9_1 and everything)]
    sampled = bool(mark("sampled")) and not metafunc.config.getoption("--entries")
    if sampled or not everything:
        turn = _functions(metafunc.module).index(metafunc.function.__name__)
        every_protocol = everything or metafunc.module.__name__.endswith(_ON_EVERY_PROTOCOL)
        entries = dealt(turn, entries, every_protocol=every_protocol)
    return entries


def is_written(entry: MatrixEntry) -> bool:
    """Whether a sink writes there: not over STOMP to RabbitMQ, nor over AMQP 1.0 before its version 4."""
    if entry.broker != "rabbitmq":
        return entry != MEMORY_ENTRY
    return entry.protocol == AMQP_0_9_1 or (entry.protocol == AMQP_1_0 and entry.version.startswith("4"))


def _everything(metafunc: pytest.Metafunc) -> bool:
    """Was everything asked for, or somebody's own choice of matrix entries?"""
    return bool(metafunc.config.getoption("--all") or metafunc.config.getoption("--entries"))


def _functions(module: Any) -> list[str]:
    return [name for name in vars(module) if name.startswith("test_")]


def dealt(turn: int, entries: Sequence[MatrixEntry], *, every_protocol: bool) -> list[MatrixEntry]:
    """The matrix entries of one test in a run that is not of everything.

    The queue in memory has all tests. The real matrix entries are dealt the tests of a module one after the other, so
    that each has some of every kind, and neighbours, which are of one kind, are on different brokers.

    Args:
        turn: the test's place in its module.
        matrix entries: those it could run on.
        every_protocol: on one matrix entry of each protocol; otherwise on one matrix entry.
    """
    real = [entry for entry in entries if entry != MEMORY_ENTRY]
    hands = [[entry for entry in real if entry.protocol == name] for name in SESSIONS] if every_protocol else [real]
    mine = [hand[turn * _step(len(hand)) % len(hand)] for hand in hands if hand]
    return [entry for entry in entries if entry == MEMORY_ENTRY or entry in mine]


def _step(count: int) -> int:
    """How far to go from one to the next: comes by all of them, and not to the neighbour if there are enough."""
    return next(step for step in range(3, count + 4) if math.gcd(step, count) == 1)


@pytest.hookimpl(tryfirst=True)  # before the groups are looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test that no chosen matrix entry has is none, rather than one that is skipped."""
    empty = [item for item in items if any("empty parameter set" in _told(mark) for mark in item.iter_markers("skip"))]
    without = set(empty)
    rest = [item for item in items if item not in without]
    rowless = [item.name for item in rest if item.path.parent.name in _OF_ROWS and _entry(item) and not _row(item)]
    if rowless:
        raise pytest.UsageError(f"without a mark contract(row of the compatibility matrix): {', '.join(rowless)}")
    if not config.getoption("--all") and not config.getoption("--entries"):
        empty += [item for item in rest if item.get_closest_marker("whole")]
        empty += _repeated(rest)
    if config.getoption("--matrix-report"):
        empty += [item for item in rest if not _entry(item)]  # of no row
    if config.getoption("--matrix-done"):
        done = set(json.loads(Path(config.getoption("--matrix-done")).read_text("utf-8")))
        empty += [item for item in rest if _recorded(item) in done]
    if config.getoption("--third"):
        empty += _beyond_the_third(config.getoption("--third"), rest)
    config.hook.pytest_deselected(items=empty)
    left_out = set(empty)
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_shared(item)))
    # Workers take group after group: what may take long first, so that none is left with it at the end. Matrix entries
    # wait more than they compute, other groups do not: in turn, so that at any time there is some of both.
    together = {shared: list(group) for shared, group in groupby(sorted(items, key=_shared), _shared)}
    groups = sorted(together.values(), key=_length, reverse=True)
    of_entries, others = ([group for group in groups if bool(_entry(group[0])) is one] for one in (True, False))
    items[:] = chain.from_iterable(chain.from_iterable(zip_longest(others, of_entries, fillvalue=())))


def pytest_collection() -> None:
    """Collect tests without the garbage collector, which would look at thousands of them again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays to the end."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _repeated(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests left out of a run that is not of everything, of those with parameters on several real entries.

    Each value of the others is tried on one of the entries at least, and each entry has one.
    """
    of_functions: dict[str, dict[tuple[str, str], pytest.Item]] = {}
    for item in items:
        if _entry(item) not in ("", MEMORY_ENTRY.name):
            name, _, parameters = item.nodeid.partition("[")
            of_functions.setdefault(name, {})[_entry(item), parameters.replace(_entry(item), "", 1)] = item
    repeated = []
    for of_function in of_functions.values():
        entries, values = (list(dict.fromkeys(pair[at] for pair in of_function)) for at in (0, 1))
        turns = min(len(entries), len(values))
        repeated += [
            item for (entry, value), item in of_function.items() if (entries.index(entry) - values.index(value)) % turns
        ]
    return repeated


def _beyond_the_third(third: int, items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests left out of one third: those of `make test`, and those of the other thirds.

    What shares a broker or Spark stays together. A test that draws more examples with `--all` is in a third as well.
    """
    short = [item for item in items if not item.get_closest_marker("whole") and _is_dealt(item)]
    in_make_test = set(short).difference(_repeated(short))
    return [item for item in items if _third(item) != third or (item in in_make_test and not _draws(item))]


def _is_dealt(item: pytest.Item) -> bool:
    """Whether `make test` deals a test to this matrix entry, or it needs none."""
    assert item.parent is not None
    entries = item.parent.stash.get(_IN_MAKE_TEST, {}).get(getattr(item, "originalname", ""))
    return entries is None or _entry(item) in entries


def _third(item: pytest.Item) -> int:
    return zlib.crc32(_shared(item).encode()) % 3 + 1


def _draws(item: pytest.Item) -> bool:
    """Whether the effort of a run decides how much a test tries (tests/support/effort.py), as far as can be seen."""
    module = vars(getattr(item, "module", None) or object)
    return bool({"PART", "LONG", "part_of"} & set(module)) or hasattr(getattr(item, "obj", None), "hypothesis")


def _length(group: list[pytest.Item]) -> tuple[float, bool, int, int]:
    """To compare how long groups take: with Spark the longest, with neither Spark nor a broker the shortest."""
    fixtures = {name for item in group for name in getattr(item, "fixturenames", ())}
    folders = [item.path.parent.name for item in group]
    slowest = max(_QUICKEST.index(folder) if folder in _QUICKEST else len(_QUICKEST) for folder in folders)
    return max(map(_limit_s, group)), "spark" in fixtures, slowest, len(group)


def _limit_s(item: pytest.Item) -> float:
    """How long it may take."""
    limit = item.get_closest_marker("timeout")
    return float(limit.args[0] if limit is not None else item.config.getini("timeout"))


def _shared(item: pytest.Item) -> str:
    """What shares a broker or Spark stays together, also when tests are run side by side.

    With `--all` there are two Sparks: one after the other, all of these tests would take longer than the rest. Without
    it these are 28 tests, which take some three minutes of eleven, and a second Spark would cost 25 CPU seconds.
    """
    module = item.nodeid.partition("::")[0]
    if "spark" in getattr(item, "fixturenames", ()):
        one = module.endswith("test_spark.py") or not item.config.getoption("--all")
        return "spark" if one else "another spark"
    shares = item.get_closest_marker("shares")
    if shares is not None:
        return str(shares.args[0])
    parameters = getattr(item, "callspec", None)
    if not _entry(item) or parameters is None or item.config.getoption("--all"):
        return _entry(item) or module
    entry: MatrixEntry = parameters.params["entry"]
    return f"{entry.broker}{entry.version}"  # few tests of each entry: one node is started for all of them


def _entry(item: pytest.Item) -> str:
    """The matrix entry that it runs on, if it does."""
    parameters = getattr(item, "callspec", None)
    return str(parameters.params["entry"].name) if parameters is not None and "entry" in parameters.params else ""


def _told(mark: pytest.Mark) -> str:
    return str(mark.kwargs.get("reason", ""))


def _chosen(config: pytest.Config) -> list[MatrixEntry]:
    wanted = [name for name in config.getoption("--entries").split(",") if name]
    known = {entry.name: entry for entry in (MEMORY_ENTRY, *ALL_ENTRIES)}
    unknown = set(wanted) - set(known)
    if unknown:
        raise pytest.UsageError(f"--entries: unknown {sorted(unknown)}; known are {', '.join(known)}")
    return [known[name] for name in wanted] if wanted else [MEMORY_ENTRY, *ENTRIES]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    folder, entry = item.config.getoption("--matrix-report"), _entry(item)
    if folder and entry and (report.when == "call" or report.outcome != "passed"):
        line = {
            "id": _recorded(item),
            "contract": _row(item),
            "test": item.name,
            "outcome": report.outcome,
            "reason": _reason(report),
            "seconds": round(report.duration, 2),
        }
        with (Path(folder) / f"{entry}.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")
    return report


def _row(item: pytest.Item) -> str:
    """Return the row of the compatibility matrix that a test belongs to; empty if it names none."""
    contract = item.get_closest_marker("contract")
    return str(contract.args[0]) if contract is not None else ""


def _recorded(item: pytest.Item) -> str:
    """The name of a test, without the group that pytest-xdist puts behind it."""
    return item.nodeid.removesuffix(f"@{_shared(item)}")


def _reason(report: pytest.TestReport) -> str:
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return "" if crash is None else str(crash.message)[:300]


def missing(reason: str) -> None:
    """Skip, or fail where everything has to be there."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


class Nodes:
    """The brokers of a run, each started when it is first asked for. A test that kills one starts it again."""

    def __init__(self, tls: TlsFiles) -> None:
        self._tls = tls
        self._nodes: dict[tuple[str, str], Node] = {}

    def get(self, broker: str, version: str = "") -> Node:
        """A running node."""
        return self._running((broker, version), partial(entry_node, broker, version, tls=self._tls))

    def with_streams(self, version: str = "4.3") -> RabbitNode:
        """A running RabbitMQ with streams. Modules that use it are marked `shares("streams")`."""
        make = partial(RabbitNode, version=version, plugins=_STREAMS, tls=self._tls)
        node = self._running(("rabbitmq with streams", version), make)
        assert isinstance(node, RabbitNode)
        return node

    def _running(self, key: tuple[str, str], make: Callable[[], Node]) -> Node:
        if key not in self._nodes:
            try:
                self._nodes[key] = make()
            except NodeError as absent:
                missing(str(absent))
        node = self._nodes[key]
        if not node.running:
            node.start()
        return node

    def close(self) -> None:
        """End them all."""
        for node in self._nodes.values():
            node.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def checker() -> None:
    """What checks the specification is there."""
    try:
        find_java()
        fetch(TLA_TOOLS)
    except NodeError as absent:
        missing(str(absent))


@pytest.fixture(scope="session")
def nodes(certificates: Certificates) -> Iterator[Nodes]:
    """Brokers with all protocols, also over TLS."""
    server = certificates.server
    brokers = Nodes(TlsFiles(Path(certificates.ca.cert_file), Path(server.cert_file), Path(server.key_file)))
    yield brokers
    brokers.close()


@pytest.fixture
def entry(request: pytest.FixtureRequest) -> Iterator[LiveEntry]:
    """A broker, a protocol, and an empty queue of the test's own."""
    wanted: MatrixEntry = request.param
    if wanted == MEMORY_ENTRY:
        live: LiveEntry = MemoryEntry(wanted, MemoryNode())
    else:
        live = LiveEntry(wanted, request.getfixturevalue("nodes").get(wanted.broker, wanted.version))
    with live:
        yield live


@pytest.fixture
def rabbit(nodes: Nodes) -> RabbitNode:
    """The RabbitMQ of the run."""
    node = nodes.get("rabbitmq")
    assert isinstance(node, RabbitNode)
    return node


@pytest.fixture
def name(rabbit: RabbitNode) -> Iterator[str]:
    """An empty classic queue."""
    queue = f"test-{uuid.uuid4().hex[:8]}"
    rabbit.declare(queue)
    yield queue
    rabbit.delete(queue)


@pytest.fixture(params=["classic", "quorum"])
def queue(rabbit: RabbitNode, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty durable queue of RabbitMQ, of each kind."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    rabbit.declare(name, quorum=request.param == "quorum")
    yield name
    if not rabbit.running:
        rabbit.start()
    rabbit.delete(name)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Spark session for all tests that need one."""
    import sys

    os.environ["PYSPARK_PYTHON"] = sys.executable
    root = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2,3]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
    )
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
