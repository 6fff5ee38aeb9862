#!/usr/bin/env python3
"""Opens the pages of the site in headless Chromium, from files.

    site.py SITE CHROMIUM

Fails where a script of a page does, where a page asks for anything but files, and
where the search does not find a word.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from chromium import Chromium  # noqa: E402

WORD = "softcap"
NO_WORD = "no-such-word-anywhere"

SEARCH = """(() => {{
  const input = document.getElementById("mkdocs-search-query");
  input.value = {word!r};
  input.dispatchEvent(new Event("input"));
  const results = document.getElementById("mkdocs-search-results");
  return [...results.querySelectorAll("a")].map(link => link.href);
}})()"""


def check_search(browser: Chromium, page: Path) -> None:
    browser.open(page)
    links = browser.value(SEARCH.format(word=WORD))
    if not links:
        sys.exit(f"{page}: the search does not find {WORD!r}")
    path = Path(links[0].removeprefix("file://").partition("#")[0])
    if not path.is_file() or WORD not in path.read_text():
        sys.exit(f"{page}: the first result for {WORD!r} is {links[0]}")
    if browser.value(SEARCH.format(word=NO_WORD)):
        sys.exit(f"{page}: the search finds {NO_WORD!r}")


def main(site: Path, program: str) -> None:
    pages = [p for p in sorted(site.rglob("*.html")) if p.name != "404.html"]
    guides = [p for p in pages if "api" not in p.relative_to(site).parts]
    with tempfile.TemporaryDirectory() as profile:
        browser = Chromium(program, profile)
        try:
            for page in guides:
                browser.open(page)
            for page in (site / "index.html", site / "docs/swap.html"):
                check_search(browser, page)
        finally:
            browser.close()
        local = ("file:", "data:")
        outside = [url for url in browser.requests if not url.startswith(local)]
        if outside:
            sys.exit(f"pages ask for {outside}")
    print(f"{len(guides)} pages: no errors")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2])
