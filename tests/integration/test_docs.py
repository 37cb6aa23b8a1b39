"""The site, built as `make docs` does; a broken link is an error."""

from __future__ import annotations

import html
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.plugin import missing

DOCS = Path(__file__).parents[2] / "docs"

pytestmark = pytest.mark.whole


def build(pages: Path, site: Path) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec("sphinx") is None:
        missing("Sphinx is not installed: make setup")
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", DOCS, pages, site],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


@dataclass(frozen=True)
class Site:
    """A copy of the pages, and what Sphinx made of it."""

    pages: Path
    folder: Path
    done: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The site, for all tests of the module."""
    folder = tmp_path_factory.mktemp("site")
    pages = tmp_path_factory.mktemp("pages") / "docs"
    shutil.copytree(DOCS, pages)
    return Site(pages, folder, build(pages, folder))


def test_the_site_is_built_without_a_warning_and_has_every_page(site: Site) -> None:
    assert (site.done.returncode, site.done.stderr) == (0, "")
    folder = site.folder
    start = (folder / "index.html").read_text("utf-8")
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")}
    assert {str(page.relative_to(folder).with_suffix("")) for page in folder.rglob("*.html")} >= pages
    assert [page for page in pages - {"index"} if f'href="{page}.html"' not in start] == []
    for page in pages:
        file = folder / f"{page}.html"
        links = re.findall(r'(?:href|src)="([^"#?:]+)["#?]', file.read_text("utf-8"))
        assert [link for link in links if not file.parent.joinpath(link).exists()] == []
        assert "mermaid" not in file.read_text("utf-8")
    errors = (folder / "errors.html").read_text("utf-8")
    assert 'id="data-loss"' in errors
    assert "DataLossError" in (folder / "api.html").read_text("utf-8")
    assert "copybutton.js" in start
    found = (folder / "searchindex.js").read_text("utf-8")
    assert [
        word for word in ("airflow", "rewind", "json", "dead", "letter") if not re.search(rf'"?\b{word}"?:', found)
    ] == []


def test_a_broken_link_is_an_error(site: Site, tmp_path: Path) -> None:
    # With what it knows of the other pages, Sphinx reads only the one that has changed.
    shutil.copytree(site.folder, tmp_path / "site")
    page = site.pages / "protocols.md"
    text = page.read_text("utf-8")
    page.write_text(f"{text}\n[a](design.md#rule-16) [b](design.md#rule-99) [c](gone.md) [d](../gone.py)\n", "utf-8")
    done = build(site.pages, tmp_path / "site")
    page.write_text(text, "utf-8")
    assert done.returncode != 0
    assert [name for name in ("rule-99", "gone.md", "../gone.py") if name not in done.stderr] == []
    assert "rule-16" not in done.stderr


#: Loads each page in a frame as wide as a telephone, and writes what does not fit, and the colours it has.
LOOK = """<!doctype html><body><pre id="seen"></pre><script>
const pages = PAGES;
const seen = {};
async function look(page, theme) {
  localStorage.setItem("theme", theme);
  const frame = document.createElement("iframe");
  frame.style.width = "390px";
  frame.style.height = "844px";
  const loaded = new Promise((done) => { frame.onload = done; });
  frame.src = page;
  document.body.append(frame);
  await loaded;
  const inside = frame.contentDocument, view = frame.contentWindow;
  const scrolls = (one) => {
    for (let at = one; at.tagName !== "ARTICLE"; at = at.parentElement) {
      if (["auto", "scroll"].includes(view.getComputedStyle(at).overflowX)) return true;
    }
    return false;
  };
  const cut = [...inside.querySelectorAll("article *")].filter(
    (one) => one.getBoundingClientRect().right > 391 && !scrolls(one)
  );
  const found = {
    width: inside.documentElement.scrollWidth,
    cut: cut.slice(0, 3).map((one) => one.outerHTML.slice(0, 120)),
    background: view.getComputedStyle(inside.body).backgroundColor,
    buttons: inside.querySelectorAll("button.copybtn").length,
  };
  frame.remove();
  return found;
}
(async () => {
  for (const page of pages) seen[page] = { light: await look(page, "light"), dark: await look(page, "dark") };
  document.getElementById("seen").textContent = JSON.stringify(seen);
  document.title = "done";
})();
</script></body>"""


def test_a_telephone_shows_every_page_whole_by_day_and_by_night(site: Site, tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        missing("chromium is not installed: make setup")
        return
    assert site.done.returncode == 0, site.done.stderr
    pages = sorted(str(page.relative_to(DOCS).with_suffix(".html")) for page in DOCS.rglob("*.md"))
    (site.folder / "look.html").write_text(LOOK.replace("PAGES", json.dumps(pages)), "utf-8")
    handler = partial(SilentHandler, directory=str(site.folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        told = subprocess.run(
            [browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
             "--timeout=60000", "--virtual-time-budget=60000", "--dump-dom",
             f"http://127.0.0.1:{server.server_port}/look.html"],
            capture_output=True, text=True, check=False, timeout=180,
        )  # fmt: skip
        server.shutdown()
    found = re.search(r'<pre id="seen">(.+?)</pre>', told.stdout, re.DOTALL)
    assert found is not None, told.stderr[-2000:]
    seen = json.loads(html.unescape(found[1]))
    assert sorted(seen) == pages
    assert {page: one[by] for page, one in seen.items() for by in one if one[by]["width"] > 390 or one[by]["cut"]} == {}
    assert {one["light"]["background"] for one in seen.values()} == {"rgb(255, 255, 255)"}
    for one in seen.values():
        dark = [int(part) for part in re.findall(r"\d+", one["dark"]["background"])[:3]]
        assert max(dark) < 64, one["dark"]["background"]
    assert seen["quick-start.html"]["light"]["buttons"] >= 5


class SilentHandler(SimpleHTTPRequestHandler):
    """Serves a folder and logs nothing."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""
