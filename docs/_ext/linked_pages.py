"""Docstrings name pages by their files, docs/how-to/training.md; on the site these are links."""

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
PAGE = re.compile(r"`*docs/([\w/-]+)\.md(?:#([\w-]+))?`*")


def link(match: re.Match[str]) -> str:
    """Return a page's name as a link; ValueError if there is no such page."""
    if not (DOCS / f"{match[1]}.md").is_file():
        raise ValueError(f"a docstring names {match[0]}, which is not there")
    return f":doc:`/{match[1]}`"


def link_pages(_app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Replace the names of pages in a docstring."""
    lines[:] = [PAGE.sub(link, line) for line in lines]


def setup(app: Sphinx) -> dict[str, Any]:
    """Have Sphinx ask for each docstring."""
    app.connect("autodoc-process-docstring", link_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
