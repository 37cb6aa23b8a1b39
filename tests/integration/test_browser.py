"""The site in Chromium, from files and without a network: on a phone, in the dark, and its search."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import missing
from tests.integration.test_docs import DOCS, build

pytestmark = pytest.mark.whole

#: The width of a small phone, in pixels.
WIDTH = 390
#: What a reader types -> the page that has to be the first hit.
SEARCHES = {
    "airflow": "schedule", "rewind": "operate", "json": "write", "dead letter": "write", "databricks": "deploy",
    "lag": "monitor", "secrets": "operate", "driver memory": "operate", "merge": "write", "stop": "operate",
}  # fmt: skip

#: Opens one address after another in a frame of that width, and leaves what it sees in an attribute of the body.
HARNESS = """<!doctype html><body><iframe id="frame" style="width:%(width)dpx;height:844px;border:0"></iframe><script>
const scrolls = box => ["auto", "scroll"].includes(getComputedStyle(box).overflowX);
function seen(page, width) {
  const article = page.querySelector("article");
  const reachable = element => {
    for (let box = element; box !== article; box = box.parentElement)
      if (scrolls(box) && box.getBoundingClientRect().right <= width + 1) return true;
    return false;
  };
  const all = [...article.querySelectorAll("*")];
  const name = element => element.tagName + ": " + element.textContent.trim().slice(0, 60);
  return {
    width,
    beyond: all.filter(e => e.getBoundingClientRect().right > width + 1 && !reachable(e)).map(name),
    clipped: all.filter(e => ["hidden", "clip"].includes(getComputedStyle(e).overflowX)
      && e.clientWidth && e.scrollWidth > e.clientWidth + 1).map(name),
    blocks: article.querySelectorAll("div.highlight pre").length,
    buttons: article.querySelectorAll("button.copybtn").length,
    background: getComputedStyle(page.body).backgroundColor,
    text: getComputedStyle(page.body).color,
    hits: [...page.querySelectorAll("#search-results ul.search > li > a")].map(a => a.getAttribute("href")),
  };
}
(async () => {
  const all = {};
  for (const [key, address] of Object.entries(%(addresses)s)) {
    await new Promise(loaded => { frame.onload = loaded; frame.src = address; });
    const page = frame.contentDocument;
    const asked = address.includes("?q=");
    for (let tries = 0; asked && tries < 50 && !page.querySelector("#search-results ul.search > li"); tries++)
      await new Promise(later => setTimeout(later, 100));
    all[key] = seen(page, page.documentElement.clientWidth);
  }
  document.body.dataset.seen = JSON.stringify(all);
})();
</script></body>"""


def look(addresses: dict[str, str], folder: Path, *, dark: bool = False) -> dict[str, Any]:
    """Return what Chromium shows at each address."""
    chromium = shutil.which("chromium")
    if chromium is None:
        missing("Chromium is not installed: make setup")
    harness = folder / "harness.html"
    harness.write_text(HARNESS % {"width": WIDTH, "addresses": json.dumps(addresses)}, encoding="utf-8")
    command = [
        chromium, "--headless", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files",
        f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=120000",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        *(["--no-sandbox"] if os.geteuid() == 0 else []), "--dump-dom", harness.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180)
    found = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert found is not None, done.stderr[-2000:]
    shown: dict[str, Any] = json.loads(html.unescape(found[1]))
    assert shown.keys() == addresses.keys()
    return shown


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(DOCS, folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def pages(site: Path) -> dict[str, str]:
    names = sorted(str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md"))
    return {name: (site / f"{name}.html").as_uri() for name in names}


def test_a_phone_shows_every_page_whole_with_a_button_at_each_block(site: Path, tmp_path: Path) -> None:
    shown = look(pages(site), tmp_path)
    assert {page["width"] for page in shown.values()} == {WIDTH}
    assert {name: page["beyond"] for name, page in shown.items() if page["beyond"]} == {}
    assert {name: page["clipped"] for name, page in shown.items() if page["clipped"]} == {}
    assert [name for name, page in shown.items() if page["buttons"] != page["blocks"]] == []
    assert shown["quick-start"]["blocks"] > 0


def test_what_is_cut_off_and_a_block_without_a_button_are_seen(site: Path, tmp_path: Path) -> None:
    text = (site / "quick-start.html").read_text("utf-8")
    wide = '<div style="width:700px">too wide</div>'
    cut = '<div style="width:100px;overflow:hidden;white-space:nowrap">a line that is longer than its box</div>'
    broken = text.replace("</article>", f"{wide}{cut}</article>").replace("copybutton.js", "gone.js")
    (site / "broken.html").write_text(broken, encoding="utf-8")
    shown = look({"broken": (site / "broken.html").as_uri()}, tmp_path)["broken"]
    assert shown["beyond"] == ["DIV: too wide"]
    assert shown["clipped"] == ["DIV: a line that is longer than its box"]
    assert shown["buttons"] == 0 < shown["blocks"]


def test_pages_are_dark_where_the_reader_wants_it_dark(site: Path, tmp_path: Path) -> None:
    def brightness(colour: str) -> int:
        return sum(int(part) for part in re.findall(r"\d+", colour)[:3])

    some = {name: address for name, address in pages(site).items() if name in ("index", "options", "reports/audits")}
    for dark in (False, True):
        for name, page in look(some, tmp_path, dark=dark).items():
            assert (brightness(page["background"]) < brightness(page["text"])) is dark, (name, page)


def test_the_search_has_the_page_with_the_answer_first(site: Path, tmp_path: Path) -> None:
    start = (site / "search.html").as_uri()
    shown = look({words: f"{start}?q={words.replace(' ', '+')}" for words in SEARCHES}, tmp_path)
    first = {words: page["hits"][0].partition(".html")[0] if page["hits"] else "" for words, page in shown.items()}
    assert first == SEARCHES
