"""With `--all`, what the tests of the failure matrix do has to be a behaviour of the specification."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engine_traces import read_trace, written_down
from tests.support.entries import ENTRIES, TRACED_ENTRY, MatrixEntry
from tests.support.traces import Trace, refused, where


@pytest.fixture(scope="module")
def traces(request: pytest.FixtureRequest) -> Iterator[list[Trace]]:
    """Those of a module, which are checked together at its end."""
    told: list[Trace] = []
    yield told
    left = refused(told)
    assert not left, "\n\n".join(map(where, left))


@pytest.fixture(autouse=True)
def _traced(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    thorough = request.config.getoption("--thorough")
    if not (request.config.getoption("--all") or thorough) or not _has_trace(request, all_entries=thorough):
        yield
        return
    request.getfixturevalue("checker")
    told: list[Trace] = request.getfixturevalue("traces")
    file = tmp_path / "trace.jsonl"
    with written_down(request.getfixturevalue("entry").node, file):
        yield
    trace = read_trace(file, request.node.name)
    if trace is not None:
        told.append(trace)


def _has_trace(request: pytest.FixtureRequest, *, all_entries: bool) -> bool:
    if "entry" not in request.fixturenames or request.node.get_closest_marker("untraced"):
        return False
    entry: MatrixEntry = request.node.callspec.params["entry"]
    # The checker takes half as long as the tests.
    return entry in ENTRIES if all_entries else entry == TRACED_ENTRY
