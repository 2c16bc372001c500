# ruff: noqa: INP001 # hooks of the site, no package
"""What the site needs beside mkdocs: pages from elsewhere in the repository, links to its files, and folders in the navigation.

Links in Markdown are written for people who read the repository: relative to the file that they are in. mkdocs serves docs/
only. So each link is looked up in the repository:

- a page of the site is linked as such, and mkdocs checks its anchor;
- any other file or folder is linked at `repo_url`; without one, the link becomes plain text;
- what does not exist is a warning, which ends a strict build.
"""

from __future__ import annotations

import itertools
import logging
import operator
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LOG = logging.getLogger("mkdocs.hooks.leco")  # below "mkdocs", so that a strict build counts its warnings

_LINK = re.compile(
    r"(?P<text>!?\[(?:[^\[\]\n]|\n(?!\n))*\])\((?P<target>[^()\s]+)\)"
)  # its text may go over a line's end
_FENCE = re.compile(r"^\s*(```|~~~)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """A folder in the navigation, such as `decisions/`, stands for its pages in the order of their names."""
    config.nav = _expanded(config.nav, Path(config.docs_dir))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that `extra.pages` takes from elsewhere in the repository."""
    for uri, source in config.extra["pages"].items():
        files.append(File.generated(config, uri, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they must be on the site."""
    pages: dict[str, str] = config.extra["pages"]
    here = pages.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    served = {source: uri for uri, source in pages.items()}
    served |= {f"docs/{each.src_uri}": each.src_uri for each in files if each.src_uri not in pages}

    def rewritten(match: re.Match[str]) -> str:
        text, target = match["text"], match["target"]
        if re.match(r"[a-z]+:|#|/", target):
            return match[0]
        path, hash_, anchor = target.partition("#")
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
        if wanted in served:
            start = posixpath.dirname(page.file.src_uri) or "."
            return f"{text}({posixpath.relpath(served[wanted], start)}{hash_}{anchor})"
        if wanted.startswith("..") or not (ROOT / wanted).exists():
            LOG.warning("%s links to %s, and there is no %s in the repository", here, target, wanted)
        if not config.repo_url:
            return text.removeprefix("[").removesuffix("]")
        kind = "tree" if (ROOT / wanted).is_dir() else "blob"
        return f"{text}({config.repo_url.rstrip('/')}/{kind}/main/{wanted}{hash_}{anchor})"

    parts = itertools.groupby(_lines(_four_spaces(markdown)), key=operator.itemgetter(1))
    texts = [(code, "\n".join(line for line, _ in lines)) for code, lines in parts]
    return "\n".join(text if code else _LINK.sub(rewritten, text) for code, text in texts)


def _expanded(nav: Any, docs: Path) -> Any:  # whatever YAML holds
    if isinstance(nav, dict):
        return {title: _expanded(each, docs) for title, each in nav.items()}
    if not isinstance(nav, list):
        return nav
    folders = [each for each in nav if isinstance(each, str) and each.endswith("/")]
    named = str(nav)
    more = {
        folder: sorted(
            f"{folder}{page.name}" for page in (docs / folder).glob("*.md") if f"'{folder}{page.name}'" not in named
        )
        for folder in folders
    }
    return [page for each in nav for page in (more[each] if each in folders else [_expanded(each, docs)])]


def _lines(markdown: str) -> list[tuple[str, bool]]:
    """Each line, and whether it is of a fenced block of code."""
    result, fenced = [], False
    for line in markdown.split("\n"):
        fence = bool(_FENCE.match(line))
        result.append((line, fenced or fence))
        fenced ^= fence
    return result


def _four_spaces(markdown: str) -> str:
    """What belongs to an item of a numbered list is indented by three spaces on GitHub, and by four in Python's Markdown."""
    result, listed = [], False
    for line, code in _lines(markdown):
        if line and not line.startswith(" ") and not code:
            listed = bool(re.match(r"\d\. ", line))
        result.append(f" {line}" if listed and re.match(r" {3}(\S| {4})", line) else line)
    return "\n".join(result)
