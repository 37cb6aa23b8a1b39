"""The site in Chromium, opened from files: what its search finds, and what no reader could see or copy."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_docs import DOCS, build
from tests.plugin import missing
from tests.support.searches import HITS, SEARCHES

pytestmark = pytest.mark.whole

#: Opens one address after another in a frame, and leaves what it sees in an attribute of the body.
HARNESS = """<!doctype html><body><iframe id="frame" style="width:WIDTHpx;height:844px;border:0"></iframe><script>
function seen(page) {
  // Where the address leads to: furo scrolls there slowly.
  const target = page.getElementById(decodeURIComponent(frame.contentWindow.location.hash.slice(1)));
  const from = target ? target.getBoundingClientRect().top : 0, to = from + frame.contentWindow.innerHeight;
  const article = page.querySelector("article");
  const clipped = [...article.querySelectorAll("*")].filter(e =>
    ["hidden", "clip"].includes(getComputedStyle(e).overflowX) && e.clientWidth && e.scrollWidth > e.clientWidth + 1);
  return {
    clipped: clipped.map(e => e.textContent.trim().slice(0, 60)),
    blocks: article.querySelectorAll("div.highlight pre").length,
    buttons: article.querySelectorAll("button.copybtn").length,
    screen: [...article.querySelectorAll("h1, h2, h3, h4, p, li, td, th, pre")]
      .filter(e => { const box = e.getBoundingClientRect(); return box.bottom > from && box.top < to; })
      .map(e => e.textContent).join("\\n"),
    hits: [...page.querySelectorAll("#search-results ul.search > li > a")].map(a => a.getAttribute("href")),
  };
}
(async () => {
  const all = {};
  for (const [key, address] of Object.entries(ADDRESSES)) {
    // By way of another: a page that is there already would only scroll, and load nothing.
    for (const next of ["about:blank", address])
      await new Promise(loaded => { frame.onload = loaded; frame.src = next; });
    const page = frame.contentDocument;
    const asked = address.includes("?q=");
    // What is found comes one by one, and then this line.
    const line = () => page.querySelector("#search-results p.search-summary")?.textContent;
    const over = () => /finished|did not match/.test(line());
    for (let tries = 0; asked && tries < 50 && !over(); tries++)
      await new Promise(later => setTimeout(later, 100));
    all[key] = seen(page);
  }
  document.body.dataset.seen = JSON.stringify(all);
})();
</script></body>"""


def look(addresses: dict[str, str], folder: Path, width: int = 390) -> dict[str, Any]:
    """Return what Chromium shows at each address."""
    chromium = shutil.which("chromium")
    if chromium is None:
        missing("Chromium is not installed: make setup")
        return {}
    harness = folder / "harness.html"
    code = HARNESS.replace("WIDTH", str(width)).replace("ADDRESSES", json.dumps(addresses))
    harness.write_text(code, encoding="utf-8")
    command = [
        chromium, "--headless", "--disable-gpu", "--allow-file-access-from-files",
        f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=120000",
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


def test_every_block_has_a_button_and_nothing_is_clipped(site: Path, tmp_path: Path) -> None:
    names = sorted(str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md"))
    shown = look({name: (site / f"{name}.html").as_uri() for name in names}, tmp_path)
    assert [name for name, page in shown.items() if page["buttons"] != page["blocks"]] == []
    assert {name: page["clipped"] for name, page in shown.items() if page["clipped"]} == {}
    assert shown["quick-start"]["blocks"] > 0


def test_a_block_without_a_button_and_what_is_clipped_are_seen(site: Path, tmp_path: Path) -> None:
    text = (site / "quick-start.html").read_text("utf-8")
    cut = '<div style="width:100px;overflow:hidden;white-space:nowrap">a line that is longer than its box</div>'
    broken = text.replace("</article>", f"{cut}</article>").replace("copybutton.js", "gone.js")
    (site / "broken.html").write_text(broken, encoding="utf-8")
    shown = look({"broken": (site / "broken.html").as_uri()}, tmp_path)["broken"]
    assert shown["clipped"] == ["a line that is longer than its box"]
    assert shown["buttons"] == 0 < shown["blocks"]


def test_what_a_user_types_finds_a_page_that_answers_in_its_first_screen(site: Path, tmp_path: Path) -> None:
    start = (site / "search.html").as_uri()
    shown = look({words: f"{start}?q={words.replace(' ', '+')}" for words in SEARCHES}, tmp_path)
    hits = {words: page["hits"][:HITS] for words, page in shown.items()}
    assert [words for words in SEARCHES if not hits[words]] == []
    opened = look({hit: f"{site.as_uri()}/{hit}" for hit in sorted(set(chain(*hits.values())))}, tmp_path, 1280)
    missed = {
        words: hits[words]
        for words, answer in SEARCHES.items()
        if not any(re.search(answer, opened[hit]["screen"]) for hit in hits[words])
    }
    assert missed == {}
