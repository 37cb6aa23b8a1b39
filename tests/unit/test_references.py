"""What docstrings and comments of the package refer to is there: modules, classes, functions, attributes and paths."""

from __future__ import annotations

import ast
import builtins
import re
from functools import cache

import pytest

from tests.unit.test_architecture import MODULES, PACKAGE, ROOT

_ROLE = re.compile(r":(?:mod|class|meth|func|attr|data|exc):`~?([\w.]+)`")
_PATH = re.compile(
    r"(?<![\w/.{<])((?:docs|pyspark_mq|tests|dev|testbed|tools|spec|examples|benchmarks)/[\w/.-]*\w\.(?:py|md|tla))\b"
)
#: Of other packages, by the names that they are known by.
_OTHERS = {"HTTPResponse", "decimal.Decimal", "pyspark.sql.streaming.StreamingQueryListener"}


def names_of(source: str) -> set[str]:
    """All that can be referred to in a module: names, imported ones too, and `Class.name` for what a class has."""
    tree = ast.parse(source)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    found = {alias.asname or alias.name for node in imports for alias in node.names}
    for node in tree.body:
        found.update(_bound(node))
        if isinstance(node, ast.ClassDef):
            members = {name for inner in node.body for name in _bound(inner)} | _of_self(node)
            found.update(f"{node.name}.{name}" for name in members)
    return found


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def _of_self(owner: ast.ClassDef) -> set[str]:
    attributes = [node for node in ast.walk(owner) if isinstance(node, ast.Attribute)]
    return {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "self"}


@cache
def names() -> dict[str, set[str]]:
    """By module. Not at import: each worker of a run imports this, and one needs it."""
    return {module: names_of(source) for module, source in MODULES.items()}


@cache
def anywhere() -> set[str]:
    """Sphinx finds them anywhere in the package when a reference begins with a dot."""
    return set().union(*names().values()) | {name.rpartition(".")[2] for name in MODULES}


def dangling(module: str, source: str) -> list[str]:
    """References that lead nowhere, and paths of files that are not there."""
    own = names_of(source)
    classes = [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    found = [name for name in _ROLE.findall(source) if not _leads(name, module, own, classes)]
    return found + [path for path in _PATH.findall(source) if not (ROOT / path).exists()]


def _leads(name: str, module: str, own: set[str], classes: list[str]) -> bool:
    if name in _OTHERS or hasattr(builtins, name):
        return True
    inner = name.removeprefix(f"{PACKAGE}.")
    if inner != name:
        parts = inner.split(".")
        splits = [(".".join(parts[:at]), ".".join(parts[at:])) for at in range(1, len(parts))]
        return inner in MODULES or any(last in names().get(owner, ()) for owner, last in splits)
    if name.startswith("."):
        return name[1:] in anywhere() or f"{module}{name}" in MODULES or f"{module.rpartition('.')[0]}{name}" in MODULES
    return name in own or any(f"{one}.{name}" in own for one in classes)


@pytest.mark.parametrize("module", MODULES)
def test_what_a_module_refers_to_is_there(module: str) -> None:
    assert dangling(module, MODULES[module]) == []


SOURCE = '''
"""See {}."""
TIMES = 3
class Reader:
    size: int
    def __init__(self) -> None:
        self.held = 0
    def read(self) -> None: ...
'''


@pytest.mark.parametrize(
    "text",
    [
        ":class:`Reader`", ":meth:`~Reader.read`", ":meth:`read`", ":attr:`Reader.held`", ":attr:`Reader.size`",
        ":data:`TIMES`", ":class:`.EpochSource`", ":mod:`.worker`", ":mod:`pyspark_mq.errors`", ":exc:`ValueError`",
        ":class:`pyspark_mq.errors.MqError`", "docs/options.md", "tests/unit/test_references.py",
    ],
)  # fmt: skip
def test_a_reference_that_leads_somewhere_is_left_alone(text: str) -> None:
    assert dangling("sources.connections", SOURCE.format(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        ":class:`Writer`", ":meth:`~Reader.write`", ":meth:`write`", ":attr:`Reader.lost`", ":data:`TIME`",
        ":class:`.EpochSink`", ":mod:`.no_such_module`", ":mod:`pyspark_mq.nothing`",
        ":class:`pyspark_mq.errors.NoError`", "docs/nowhere.md", "pyspark_mq/sources/receiver.py",
    ],
)  # fmt: skip
def test_a_reference_that_leads_nowhere_is_found(text: str) -> None:
    assert len(dangling("sources.connections", SOURCE.format(text))) == 1


def test_there_are_references_to_look_at() -> None:
    roles = [name for source in MODULES.values() for name in _ROLE.findall(source)]
    assert len(roles) > 100
    assert any(_PATH.search(source) for source in MODULES.values())
