"""`examples/notebook.ipynb`, run by a kernel of Jupyter as it stands there."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.brokers.rabbitmq import RabbitNode
from tests.plugin import missing
from tests.support.checks import total
from tests.support.pages import ROOT

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def cells(notebook: Path) -> list[dict[str, Any]]:
    """The cells with code."""
    found: list[dict[str, Any]] = json.loads(notebook.read_text("utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def test_the_file_has_no_outputs() -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells(NOTEBOOK))


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_a_kernel_reads_what_it_published_and_stops(rabbit: RabbitNode, tmp_path: Path) -> None:
    if importlib.util.find_spec("nbclient") is None or importlib.util.find_spec("ipykernel") is None:
        missing("nbclient and ipykernel are not installed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MQ_URL": rabbit.url(), "PYSPARK_DRIVER_PYTHON": "jupyter"}
    # Nothing of the user's: no kernels, no settings.
    environment |= {"JUPYTER_NO_CONFIG": "1", "JUPYTER_DATA_DIR": str(tmp_path), "IPYTHONDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", "from nbclient.cli import main; main()", f"--output={tmp_path / 'run'}", NOTEBOOK],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=450,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4_000:]
    _, _, looked, _, shown, _ = [
        "".join("".join(output["text"]) for output in cell["outputs"] if output.get("name") == "stdout")
        for cell in cells(tmp_path / "run.ipynb")
    ]
    assert "3 message(s), returned" in looked
    assert "0 problem(s), 0 warning(s)" in looked
    assert [number for number in range(10) if f"|order {number}|" not in shown] == []
    assert total(rabbit, "notebook") == 0
    rabbit.delete("notebook")
