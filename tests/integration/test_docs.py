"""The site, built as `make docs` does; a broken link is an error."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import missing

DOCS = Path(__file__).parents[2] / "docs"

pytestmark = pytest.mark.whole


def build(pages: Path, site: Path) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec("sphinx") is None:
        missing("Sphinx is not installed: make setup")
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", DOCS, pages, site],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


def test_the_site_is_built_without_a_warning_and_has_every_page(tmp_path: Path) -> None:
    done = build(DOCS, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    start = (tmp_path / "index.html").read_text("utf-8")
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")}
    assert {str(page.relative_to(tmp_path).with_suffix("")) for page in tmp_path.rglob("*.html")} >= pages
    assert [page for page in pages - {"index"} if f'href="{page}.html"' not in start] == []
    for page in pages:
        html = tmp_path / f"{page}.html"
        links = re.findall(r'(?:href|src)="([^"#?:]+)["#?]', html.read_text("utf-8"))
        assert [link for link in links if not html.parent.joinpath(link).exists()] == []
        assert "mermaid" not in html.read_text("utf-8")
    errors = (tmp_path / "errors.html").read_text("utf-8")
    assert 'id="data-loss"' in errors
    assert "DataLossError" in (tmp_path / "api.html").read_text("utf-8")
    assert "copybutton.js" in start
    found = (tmp_path / "searchindex.js").read_text("utf-8")
    assert [
        word for word in ("airflow", "rewind", "json", "dead", "letter") if not re.search(rf'"?\b{word}"?:', found)
    ] == []


def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    pages = tmp_path / "docs"
    shutil.copytree(DOCS, pages)
    with (pages / "protocols.md").open("a", encoding="utf-8") as page:
        page.write("\n[a](how-it-works.md#rule-16) [b](how-it-works.md#rule-99) [c](gone.md) [d](../gone.py)\n")
    done = build(pages, tmp_path / "site")
    assert done.returncode != 0
    assert [name for name in ("rule-99", "gone.md", "../gone.py") if name not in done.stderr] == []
    assert "rule-16" not in done.stderr
