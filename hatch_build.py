"""The package's description on PyPI: README.md, with links that lead somewhere.

Links into the repository become absolute where LECO_REPOSITORY_URL says where it is, as for the documentation site; otherwise
their text stays.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Says what the readme is."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling for each package that it makes."""
        text = described(Path(self.root, "README.md").read_text(), os.environ.get("LECO_REPOSITORY_URL", ""))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def described(readme: str, repository: str) -> str:
    """README.md for who has no repository around it."""

    def link(found: re.Match[str]) -> str:
        picture, text, path = found.groups()
        if not repository:
            return text
        return f"{picture}[{text}]({repository.rstrip('/')}/{'raw' if picture else 'blob'}/main/{path})"

    return LINK.sub(link, readme)
