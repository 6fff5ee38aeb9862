#!/usr/bin/env python3
"""Prepares the pages of the repository for MkDocs.

    stage.py ROOT OUT [API]

Copies all pages to OUT/pages, in their folders, with the files that they link, and
API, a folder of Doxygen, to OUT/pages/api, with a link to the guides in its menu;
writes OUT/mkdocs.yml. The order of the guides is that of the README's list.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
GUIDE = re.compile(r"^\d+\. \[(.+?)\]\((docs/.+?\.md)\)", re.MULTILINE)

SETTINGS = {
    "site_name": "TorchAttention",
    "docs_dir": "pages",
    "site_dir": "html",
    # Pages can be read without a server.
    "use_directory_urls": False,
    "theme": {
        "name": "mkdocs",
        "custom_dir": str(Path(__file__).parent / "theme"),
        "highlightjs": False,
        "color_mode": "auto",
        # MkDocs's own script of the search needs a server.
        "search_index_only": True,
    },
    "plugins": ["search"],
    "extra_javascript": [
        {"path": "search_index.js", "defer": True},
        {"path": "search.js", "defer": True},
    ],
    "markdown_extensions": [
        "tables",
        "sane_lists",
        {"codehilite": {"guess_lang": False}},
        {"toc": {"permalink": True}},
    ],
    # With --strict each of these is an error.
    "validation": {
        "nav": {"omitted_files": "info"},
        "links": {
            "not_found": "warn",
            "anchors": "warn",
            "absolute_links": "warn",
            "unrecognized_links": "warn",
        },
    },
}


def outside_fences(text: str, change) -> str:
    """Changes a page where it is no code."""
    parts, start = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[start : fence.start()]), fence.group()]
        start = fence.end()
    return "".join([*parts, change(text[start:])])


def staged(page: Path, root: Path, linked: set[Path]) -> str:
    """Returns a page without what its readers do not see. Notes the files that it
    links; a link to a folder becomes its text."""

    def link(match: re.Match[str]) -> str:
        target = match[3]
        if re.match(r"\w+:", target):
            return match[0]
        path = (page.parent / target).resolve()
        if path.is_dir():
            return match[2]
        if path.suffix != ".md" and path.is_file():
            linked.add(path.relative_to(root))
        return match[0]

    text = page.read_text()
    text = outside_fences(text, lambda part: COMMENT.sub("", part))
    return outside_fences(text, lambda part: LINK.sub(link, part))


def pages_of(root: Path) -> list[Path]:
    start = root / "README.md"
    return [
        start,
        *sorted(set(root.glob("*.md")) - {start}),
        *sorted((root / "docs").glob("*.md")),
        *sorted((root / "examples").glob("*/README.md")),
        root / "benchmarks/README.md",
        root / "packaging/README.md",
    ]


def navigation(root: Path, pages: list[Path], has_api: bool) -> list:
    def title(page: Path) -> str:
        return re.search(r"^# (.+)$", page.read_text(), re.MULTILINE)[1]

    guides = GUIDE.findall((root / "README.md").read_text())
    named = {root / path for _, path in guides}
    rest = [page for page in pages[1:] if page not in named]
    return [
        {"Start": "README.md"},
        {"Guides": [{name: path} for name, path in guides]},
        {"More": [{title(p): p.relative_to(root).as_posix()} for p in rest]},
        *([{"API reference": "api/index.html"}] if has_api else []),
    ]


def code_colors(style: str) -> str:
    from pygments.formatters import HtmlFormatter

    colors = HtmlFormatter(style=style).get_style_defs(".codehilite")
    return f"{colors}\n.codehilite pre {{ padding: .8em; }}\n"


def copy_api(api: Path, place: Path) -> None:
    shutil.copytree(api, place)
    menu = place / "menudata.js"
    first = "var menudata={children:["
    text = menu.read_text()
    if text.count(first) != 1:
        sys.exit(f"{api}/menudata.js is not the menu of Doxygen that was expected")
    guides = '{text:"Guides",url:"../index.html"},'
    menu.write_text(text.replace(first, first + guides))


def main(root: Path, out: Path, api: Path | None) -> None:
    place = out / "pages"
    shutil.rmtree(place, ignore_errors=True)
    linked: set[Path] = set()
    pages = pages_of(root)
    for page in pages:
        copy = place / page.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(staged(page, root, linked))
    for path in linked:
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, place / path)
    if api:
        copy_api(api, place / "api")
    shutil.copyfile(Path(__file__).parent / "search.js", place / "search.js")
    (place / "code-light.css").write_text(code_colors("default"))
    (place / "code-dark.css").write_text(code_colors("github-dark"))
    settings = SETTINGS | {"nav": navigation(root, pages, api is not None)}
    # JSON is YAML.
    (out / "mkdocs.yml").write_text(json.dumps(settings, indent=2) + "\n")


if __name__ == "__main__":
    arguments = [Path(argument).resolve() for argument in sys.argv[1:]]
    main(arguments[0], arguments[1], arguments[2] if arguments[2:] else None)
