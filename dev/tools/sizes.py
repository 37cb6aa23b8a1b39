"""Prints how large pages, modules and packages are, for who wants to know: ``python -m tools.sizes``. Nothing fails.

A size is a sign to look at. A test that forbids one makes people cut sentences that somebody needs.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_GENERATED = re.compile(r"<!-- written by make docs: .+? -->\n.*?<!-- end -->", re.DOTALL)
_LARGEST = 5


def words(page: Path) -> int:
    """Return the words of a page, without tables that are written from the code."""
    return len(_GENERATED.sub("", page.read_text("utf-8")).split())


def lines(module: Path) -> int:
    """Return the lines of a module."""
    return module.read_text("utf-8").count("\n")


def main() -> None:
    """Print the sums and the largest of each."""
    counted = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    pages = {str(page.relative_to(ROOT)): words(page) for page in counted}
    modules = {str(path.relative_to(ROOT)): lines(path) for path in (ROOT / "pyspark_mq").rglob("*.py")}
    packages: Counter[str] = Counter()
    for name, size in modules.items():
        packages[str(Path(name).parent)] += size
    of_all = (("words", "pages", pages), ("lines", "modules", modules), ("lines", "packages", packages))
    for unit, what, sizes in of_all:
        largest = sorted(sizes.items(), key=lambda one: -one[1])[:_LARGEST]
        print(
            f"{sum(sizes.values()):,} {unit} in {len(sizes)} {what}:", *(f"{name} {size:,}" for name, size in largest)
        )


if __name__ == "__main__":
    main()
