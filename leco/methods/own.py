"""Methods of other packages: a row of one's own, by `my_module:ROW` or by an entry point of the group `leco.methods`.

[project.entry-points."leco.methods"]
inverse = "my_module:INVERSE"
"""

from __future__ import annotations

from importlib.metadata import entry_points

from leco.references import load_object

GROUP = "leco.methods"


def installed_names() -> list[str]:
    """The methods that installed packages bring along."""
    return sorted({each.name for each in entry_points(group=GROUP)})


def find_own(name: str) -> object | None:
    """What a name of this kind stands for; None if it is of no such kind.

    Raises:
        ValueError: it is, but cannot be loaded.
    """
    if ":" in name:
        return load_object(name)
    for each in entry_points(group=GROUP, name=name):
        return load_object(each.value)
    return None
