"""Other people's modules, by name: `my_module`, or an object in one, `my_module:NAME`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def import_named(module: str) -> ModuleType:
    """A module that is installed, or lies in the folder where the command was started.

    That folder comes last on the path, so that nothing in it stands for a part of leco or of Python.

    Raises:
        ValueError: there is none, or it ends in an error.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise ValueError(
                f"there is no module {module!r}: install it, or run leco in the folder that has it, or name that folder in "
                "PYTHONPATH"
            ) from None
        raise ValueError(f"the module {module} cannot be imported: {error}") from error
    except Exception as error:  # whatever it does when it is imported
        raise ValueError(f"the module {module} cannot be imported: {type(error).__name__}: {error}") from error


def load_object(reference: str) -> object:
    """What `module:NAME` names.

    Raises:
        ValueError: there is no such module, or nothing of that name in it.
    """
    module, _, name = reference.partition(":")
    found = import_named(module)
    try:
        return getattr(found, name)
    except AttributeError:
        raise ValueError(f"the module {module!r} has no {name!r}") from None
