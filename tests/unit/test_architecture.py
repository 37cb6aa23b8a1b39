"""Which module may import what: the layers of the package, checked on the syntax tree of every module."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.plugin import missing

ROOT = Path(__file__).parents[2]
DEV = ROOT / "dev"
PACKAGE = "pyspark_mq"

#: Folder -> folders it may import, besides itself and the errors.
ALLOWED = {
    "cli": {"spark_source", "sink", "admin", "sources", "streams", "wire", "decode", "dedup", "brokers", PACKAGE},
    "spark_source": {"admin", "sources", "streams", "sink", "wire", "ack", "decode", "dedup", "brokers"},
    "admin": {"sources", "wire", "dedup", "brokers"},
    "sources": {"wire", "ack", "decode", "dedup", "brokers"},
    "streams": {"wire", "decode", "dedup", "brokers"},
    "sink": {"wire", "decode", "brokers"},
    "wire": {"decode", "brokers"},
    "decode": {"dedup", "brokers"},
    "ack": {"dedup"},
    "dedup": set(),
    "brokers": set(),
}
#: All that `ack` and `dedup` need: nothing here reads, writes, waits, or knows the time.
PURE = {
    "__future__", "abc", "array", "base64", "bisect", "collections", "contextlib", "dataclasses", "enum", "functools",
    "hashlib", "heapq", "itertools", "math", "numpy", "operator", "pyarrow", "re", "struct", "types", "typing", "zlib",
}  # fmt: skip
IMPURE_BUILTINS = {"open", "input", "print", "exec", "eval", "compile", "__import__", "breakpoint"}
#: Client library -> the modules, or folders of a protocol, that may import it when they are imported themselves.
CLIENTS = {
    "pika": ("wire.amqp091", "sink.amqp091"),
    "stomp": ("wire.stomp",),
    "proton": ("wire.amqp10", "sources.amqp10", "sink.amqp10"),
    "cproton_ffi": ("sources.amqp10",),
    "redis": ("dedup.redis_store",),
}
#: What can be seen of the repository, and what only those see who work on it.
DOORS = {"pyspark_mq", "tests", "docs", "examples", "dev"}
DEV_ROOMS = {"benchmarks", "docker", "spec", "testbed", "tools"}
#: What the wheel does not have.
NOT_SHIPPED = {
    *DEV_ROOMS,
    "tests",
    "examples",
    "dev",
    "testcontainers",
    "psutil",
    "psycopg",
    "rich",
}
#: Where deliveries are rows of Arrow blocks, without Spark, and IDs are arrays; and who reads Delta's log.
ARROW = ("decode.", "dedup.identity", "dedup.digests", "sources.connections.", "streams.", "sink.", "cli.sink")
#: What reads a queue.
QUEUE = "sources.queues.reader"
#: From a session to all sessions of a queue: each imports those before it, and nothing above it.
ROOM = "sources.connections."
CONNECTIONS = (
    "flow", "session", "parent", "message_id", "protocols", "block", "events",
    "backoff", "supervisor", "worker", "connections",
)  # fmt: skip
#: The one store that does I/O. It is a module of `dedup` that the others do not know.
REDIS_STORE = "dedup.redis_store"


@dataclass(frozen=True)
class Import:
    """One imported module.

    Attributes:
        name: absolute, as far as the import names a module.
        lazy: made by a function, when it is called.
        checking: made by type checkers only.
    """

    name: str
    lazy: bool = False
    checking: bool = False

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]

    @property
    def inner(self) -> str:
        """Without the name of the package; empty if it is another's."""
        return self.name.removeprefix(f"{PACKAGE}.") if self.top == PACKAGE else ""

    @property
    def folder(self) -> str:
        return self.inner.partition(".")[0]


def imports_of(source: str) -> list[Import]:
    return list(_imports(ast.parse(source), lazy=False, checking=False))


def _imports(node: ast.AST, *, lazy: bool, checking: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, lazy, checking) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative imports hide what they import"
        for alias in node.names:
            inside = f"{node.module}.{alias.name}"
            yield Import(inside if _is_module(inside) else str(node.module), lazy, checking)
    lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        checking = True
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, lazy=lazy, checking=checking)


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def modules_of(package: str, place: Path = ROOT) -> dict[str, str]:
    """Name without that of the package -> source."""
    found = {}
    for path in sorted((place / package).rglob("*.py")):
        parts = path.relative_to(place / package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text("utf-8")
    return found


MODULES = modules_of(PACKAGE)
PURE_FOLDERS = ("ack", "dedup")
PURE_MODULES = [name for name in MODULES if name.partition(".")[0] in PURE_FOLDERS and name != REDIS_STORE]
PURE_MODULES.append("sources.calls")


@cache
def imports() -> dict[str, list[Import]]:
    """By module. Not at import: each worker of a run imports this, and one needs it."""
    return {name: imports_of(source) for name, source in MODULES.items()}


# -- the rules --------------------------------------------------------------------------------


def against_the_layers(name: str, imports: list[Import]) -> list[str]:
    folder = name.partition(".")[0]
    allowed = {*ALLOWED[folder], folder, "errors", "logs", ""}
    return [item.name for item in imports if item.folder not in allowed]


def against_purity(name: str, source: str, imports: list[Import]) -> list[str]:
    own = tuple(f"{PACKAGE}.{folder}" for folder in (*PURE_FOLDERS, "errors", "sources.calls"))
    found = [item.name for item in imports if item.top not in PURE and not item.name.startswith(own)]
    found += [item.name for item in imports if item.inner == REDIS_STORE]
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return found + [call.id for call in calls if isinstance(call, ast.Name) and call.id in IMPURE_BUILTINS]


def against_the_clients(name: str, imports: list[Import]) -> list[str]:
    return [
        item.name
        for item in imports
        if item.top in CLIENTS and not any(f"{name}.".startswith(f"{place}.") for place in CLIENTS[item.top])
    ]


def against_shipping(imports: list[Import]) -> list[str]:
    return [item.name for item in imports if item.top in NOT_SHIPPED]


def from_above(name: str, imports: list[Import]) -> list[str]:
    below = CONNECTIONS[: CONNECTIONS.index(name)]
    inside = [item.inner.removeprefix(ROOM) for item in imports if item.inner.startswith(ROOM)]
    return [module for module in inside if module not in below]


def attributes_of(source: str, name: str) -> set[str]:
    """Attributes that a class gives itself."""
    (found,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name]
    return {target.attr for target in _assigned(found) if ast.unparse(target.value) == "self"}


def _assigned(node: ast.AST) -> Iterator[ast.Attribute]:
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store | ast.Del):
            yield one


def writes_to(attributes: set[str], source: str) -> list[str]:
    """Assignments to such an attribute of something else than oneself."""
    targets = [target for target in _assigned(ast.parse(source)) if target.attr in attributes]
    return [ast.unparse(target) for target in targets if ast.unparse(target.value) != "self"]


def loops_in(package: str, sources: Mapping[str, str]) -> list[list[str]]:
    """Groups of modules that import each other around some corner, imports made by functions included."""
    names = {name: f"{package}.{name}".rstrip(".") for name in sources}
    below = {
        names[name]: {item.name for item in imports_of(source) if not item.checking} & set(names.values())
        for name, source in sources.items()
    }

    def reached(name: str) -> set[str]:
        found: set[str] = set()
        new = below[name]
        while new:
            found |= new
            new = {inner for one in new for inner in below[one]} - found
        return found

    all_below = {name: reached(name) for name in below}
    groups = {frozenset(other for other in found if name in all_below[other]) for name, found in all_below.items()}
    return sorted(sorted(group) for group in groups if group)


# -- the modules ------------------------------------------------------------------------------


def test_every_module_is_in_one_of_the_folders() -> None:
    folders = {name.partition(".")[0] for name in MODULES}
    assert folders == {*ALLOWED, "errors", "logs", "__main__", ""}


@pytest.mark.parametrize("name", [name for name in MODULES if "." in name or name in ALLOWED])
def test_a_module_imports_only_from_layers_below(name: str) -> None:
    assert against_the_layers(name, imports()[name]) == []


@pytest.mark.parametrize("name", PURE_MODULES)
def test_the_in_flight_and_the_ids_do_no_io_and_know_no_time(name: str) -> None:
    assert against_purity(name, MODULES[name], imports()[name]) == []


@pytest.mark.parametrize("name", MODULES)
def test_a_client_library_is_imported_by_its_own_modules_only(name: str) -> None:
    assert against_the_clients(name, imports()[name]) == []


@pytest.mark.parametrize("name", MODULES)
def test_nothing_that_is_shipped_needs_what_is_not(name: str) -> None:
    assert against_shipping(imports()[name]) == []


@pytest.mark.parametrize("name", [name for name in MODULES if name.partition(".")[0] != "spark_source"])
def test_only_the_spark_side_imports_spark(name: str) -> None:
    assert [item for item in imports()[name] if item.top in {"pyspark", "py4j", "pandas"}] == []


@pytest.mark.parametrize("name", [name for name in MODULES if name.partition(".")[0] != "spark_source"])
def test_arrow_is_imported_by_the_blocks_beside_the_spark_side(name: str) -> None:
    assert name.startswith(ARROW) or "pyarrow" not in {item.top for item in imports()[name]}


def test_nothing_that_reads_knows_of_writing() -> None:
    users = {name for name, items in imports().items() if any(item.folder == "sink" for item in items)}
    outside = {name for name in users if not name.startswith("sink")}
    assert outside == {"spark_source.sink_options", "spark_source.sink_writer", "cli.doctor.writes"}


def loaded_with(name: str) -> set[str]:
    """The modules of the package that importing this one loads."""
    found, new = set(), {name}
    while new:
        found |= new
        new = {
            item.inner
            for module in new
            for item in imports()[module]
            if not item.lazy and not item.checking and item.inner in imports()
        } - found
    return found


def test_who_plans_loads_nothing_that_receives() -> None:
    # Of the processes that Spark starts for a query, one receives. The others import what Spark looks for.
    loaded = loaded_with("spark_source.datasource")
    assert "spark_source.reader" in loaded
    assert "sources.epochs" in loaded_with("spark_source.source")
    heavy = (
        "sources.epochs",
        "sources.queues",
        "sources.connections.worker",
        "admin",
    )
    assert [module for module in loaded if module.startswith(heavy)] == []


def test_columns_need_no_shared_memory() -> None:
    modules = loaded_with("spark_source.schema")
    assert "sources.connections.block" in modules
    assert [module for module in modules if {"ctypes", "mmap"} & {item.top for item in imports()[module]}] == []


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("sources")])
def test_receiving_knows_no_management_and_no_checks(name: str) -> None:
    assert [item.name for item in imports()[name] if item.folder in {"admin", "cli"}] == []


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("sources") and name != QUEUE])
def test_nobody_else_writes_a_queue(name: str) -> None:
    assert writes_to(attributes_of(MODULES[QUEUE], "QueueReader"), MODULES[name]) == []


@pytest.mark.parametrize("name", CONNECTIONS)
def test_what_keeps_connections_imports_only_what_is_below_it(name: str) -> None:
    assert from_above(name, imports()[f"{ROOM}{name}"]) == []


def test_every_part_of_the_connections_has_its_place() -> None:
    here = {name.removeprefix(ROOM) for name in MODULES if name.startswith(ROOM)}
    assert here - {ROOM.rstrip(".")} == set(CONNECTIONS)


def test_an_import_from_above_a_connection_is_found() -> None:
    source = "def late():\n  from pyspark_mq.sources.connections.supervisor import ConnectionSupervisor"
    assert from_above("supervisor", imports_of(source)) == from_above("session", imports_of(source)) != []
    assert from_above("worker", imports_of(source)) == []


def test_the_repository_has_few_doors() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode != 0:
        missing("this is no checkout of git, so it cannot say which folders belong to the repository")
    folders = {path.parts[:-1] for path in map(Path, tracked.stdout.splitlines())}
    assert {parts[0] for parts in folders if parts and not parts[0].startswith(".")} == DOORS
    assert {parts[1] for parts in folders if parts[:1] == ("dev",) and len(parts) > 1} == DEV_ROOMS


def test_the_test_bed_has_no_import_loops() -> None:
    assert loops_in("testbed", modules_of("testbed", DEV)) == []


def test_the_store_in_redis_is_imported_by_the_reader_alone_when_it_is_asked_for() -> None:
    users = {name: item for name, items in imports().items() for item in items if item.inner == REDIS_STORE}
    assert list(users) == ["spark_source.extras"]
    assert users["spark_source.extras"].lazy


def test_the_errors_import_nothing_of_the_package() -> None:
    assert [item.name for item in imports()["errors"] if item.top == PACKAGE] == []


def test_the_package_itself_imports_its_layers_only_when_they_are_asked_for() -> None:
    assert {item.inner for item in imports()[""] if item.top == PACKAGE and not item.lazy and not item.checking} == {
        "errors"
    }


def test_importing_the_package_loads_neither_spark_nor_a_client() -> None:
    # Spark imports every module called pyspark_* in every Python process, workers included.
    code = (
        "import json, sys; before = set(sys.modules); import pyspark_mq; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    )
    loaded = json.loads(done.stdout)
    assert sorted(name for name in loaded if name.startswith(PACKAGE)) == [PACKAGE, f"{PACKAGE}.errors"]
    heavy = {"pyspark", "pyarrow", "pandas", "numpy", *CLIENTS}
    assert heavy & {name.partition(".")[0] for name in loaded} == set()


# -- the rules see what they forbid -----------------------------------------------------------


def test_the_rules_see_the_imports_there_are() -> None:
    assert Import("pyspark_mq.ack") in imports()["sources.queues.reader"]
    assert Import("pika.exceptions") in imports()["wire.amqp091.errors"]
    assert Import("pyspark_mq.dedup.identity") in imports()["dedup.digests"]
    assert Import("pyspark_mq.spark_source.datasource", checking=True) in imports()[""]
    assert Import("pyspark_mq.dedup.redis_store", lazy=True) in imports()["spark_source.extras"]
    assert {"ack.in_flight", "dedup.memory", "dedup.store"} < set(PURE_MODULES)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import a.b, c", [Import("a.b"), Import("c")]),
        ("from pyspark_mq import errors", [Import("pyspark_mq.errors")]),
        ("from pyspark_mq.errors import MqError", [Import("pyspark_mq.errors")]),
        (
            "from pyspark_mq.dedup import memory, Key",
            [Import("pyspark_mq.dedup.memory"), Import("pyspark_mq.dedup")],
        ),
        ("def f():\n  import time", [Import("time", lazy=True)]),
        ("class C:\n  def f(self):\n    if 1:\n      from time import sleep", [Import("time", lazy=True)]),
        ("try:\n  import redis\nexcept ImportError:\n  import time", [Import("redis"), Import("time")]),
        ("if TYPE_CHECKING:\n  import pika", [Import("pika", checking=True)]),
    ],
)
def test_imports_are_found_wherever_they_are(source: str, found: list[Import]) -> None:
    assert imports_of(source) == found


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("sources.new", "from pyspark_mq.spark_source import reader"),
        ("sources.new", "import pyspark_mq.spark_source.options"),
        ("sources.new", "import pyspark_mq"),
        ("ack.new", "from pyspark_mq.decode import columns"),
        ("dedup.new", "from pyspark_mq.ack import State"),
        ("ack.new", "def late():\n  from pyspark_mq.sources.connections.session import Session"),
        ("dedup.new", "from pyspark_mq import brokers"),
        ("brokers.new", "from pyspark_mq.wire.url import redact"),
        ("sources.new", "from pyspark_mq.admin import ask_depth"),
        ("wire.new", "from pyspark_mq.sources.connections.session import Session"),
        ("sink.new", "from pyspark_mq.sources.settings import Settings"),
        ("streams.new", "from pyspark_mq.sources.runtime import Runtime"),
        ("sources.new", "def late():\n  from pyspark_mq.admin.checks import check_queue"),
    ],
)
def test_an_import_against_the_layers_is_found(name: str, source: str) -> None:
    assert len(against_the_layers(name, imports_of(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from datetime import datetime",
        "import threading",
        "import socket",
        "import random",
        "from os import environ",
        "import logging",
        "from pyspark_mq.dedup.redis_store import RedisStore",
        "from pyspark_mq.dedup import redis_store",
        "from pyspark_mq.brokers import BROKERS",
        "def late():\n  import time",
        "data = open('x').read()",
        "print('x')",
    ],
)
def test_an_impurity_is_found(source: str) -> None:
    assert against_purity("dedup.new", source, imports_of(source))


def test_an_import_loop_is_found() -> None:
    sources = {
        "nodes": "from testbed.process import Node",
        "process": "import os",
        "clusters": "def make():\n  from testbed.pair import Pair",
        "pair": "from testbed.more import Half\nfrom testbed.nodes import Node",
        "more": "import testbed.clusters",
        "chaos": "from testbed.clusters import make\nif TYPE_CHECKING:\n  from testbed.soak import Soak",
        "soak": "from testbed.chaos import ChaosTest",
    }
    assert loops_in("testbed", sources) == [["testbed.clusters", "testbed.more", "testbed.pair"]]


@pytest.mark.parametrize(
    "source",
    [
        "queue.ended = True",
        "for queue in queues:\n  queue.last_activity_s += 1.0",
        "one.queue.taking: bool = True",
        "queue.ended, other = True, 1",
        "del queue._retained_bytes",
    ],
)
def test_a_write_to_a_queue_is_found(source: str) -> None:
    attributes = attributes_of(MODULES[QUEUE], "QueueReader")
    assert {"ended", "last_activity_s", "taking", "_retained_bytes"} <= attributes
    assert len(writes_to(attributes, source)) == 1
    assert writes_to(attributes, "self.ended = queue.ended") == []


@pytest.mark.parametrize(
    "source", ["from testbed.brokers.factory import make_node", "def f():\n  import testcontainers.core"]
)
def test_an_import_of_what_is_not_shipped_is_found(source: str) -> None:
    assert len(against_shipping(imports_of(source))) == 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("sources.epochs", "import pika"),
        ("sources.epochs", "def late():\n  from stomp import Connection"),
        ("sources.amqp091.session", "from proton import Message"),
        ("sources.amqp0911.session", "import pika"),
        ("dedup.store", "import redis"),
        ("brokers.rabbitmq", "from pika.spec import Basic"),
        ("spark_source.reader", "import redis.backoff"),
    ],
)
def test_a_client_in_another_module_is_found(name: str, source: str) -> None:
    assert len(against_the_clients(name, imports_of(source))) == 1


def test_the_name_of_a_class_exists_once() -> None:
    assert named_twice(MODULES) == {}


def named_twice(modules: Mapping[str, str]) -> dict[str, list[str]]:
    """Names of classes that more than one module defines -> these modules."""
    found: dict[str, list[str]] = {}
    for module, source in modules.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(module)
    return {name: places for name, places in found.items() if len(places) > 1}


def test_a_class_that_exists_twice_is_found() -> None:
    twice = {"a": "class Window: ...", "b": "def f():\n  class Window: ...", "c": "class Windows: ..."}
    assert named_twice(twice) == {"Window": ["a", "b"]}
