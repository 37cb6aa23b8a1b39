"""How Sphinx makes a site of this folder: ``make docs``, into build/site. Warnings are errors there.

The pages are Markdown that reads well on GitHub. Two things of GitHub's Sphinx does not know:

- A link out of this folder (``../CONTRIBUTING.md``) becomes one to the repository. What it names has to exist.
- An anchor written as HTML (``<a id="rule-1"></a>``) can be linked to.

Why Sphinx, with MyST for Markdown and the theme Furo: MkDocs has had no release since August 2024, its next version
drops plugins, and Material for MkDocs is in maintenance only, promised until November 2026. Their successor, Zensical,
is at 0.1 and changes. Sphinx is released several times a year, and checks anchors by itself.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

_DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(_DOCS.parent))

from pyspark_mq import __version__  # noqa: E402 - found by the line above

project = "pyspark-mq"
author = "pyspark-mq developers"
copyright = f"2026, {author}"  # noqa: A001 - Sphinx's name for it
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False

nitpicky = True
# Of Python and other libraries: their documentation is elsewhere.
nitpick_ignore_regex = [("py:class", r"(collections|pyspark|opentelemetry)\..+|\w+Provider")]

html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

_REPOSITORY = "https://github.com/pyspark-mq/pyspark-mq"
_OUTWARD = re.compile(r"\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)")
_ANCHOR = re.compile(r'<a id="([\w-]+)">')


def _link_to_the_repository(_: Sphinx, name: str, source: list[str]) -> None:
    def absolute(found: re.Match[str]) -> str:
        target = (_DOCS / name).parent.joinpath(found[1]).resolve()
        if target.is_relative_to(_DOCS):
            return found[0]
        path = target.relative_to(_DOCS.parent)
        if not target.exists():
            logging.getLogger(__name__).warning("link to %s, which does not exist", found[1], location=name)
        kind = "tree" if target.is_dir() else "blob"
        return f"]({_REPOSITORY}/{kind}/main/{path}{found[2] or ''})"

    source[0] = _OUTWARD.sub(absolute, source[0])


class _HtmlAnchors(SphinxTransform):
    """Makes targets of anchors in HTML, before MyST resolves the links of the page (its transform has priority 879)."""

    default_priority = 400

    def apply(self, **_: Any) -> None:
        for raw in list(self.document.findall(nodes.raw)):
            found = _ANCHOR.fullmatch(raw.astext())
            if found is not None:
                target = nodes.target("", "", ids=[found[1]], names=[found[1]])
                self.document.note_explicit_target(target, target)
                raw.replace_self(target)
            elif raw.astext() == "</a>":
                raw.parent.remove(raw)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _link_to_the_repository)
    app.add_transform(_HtmlAnchors)
