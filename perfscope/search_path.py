"""The order in which this process looks for modules: a user's ``json.py`` or ``typer.py`` is not the one that is meant.

``perfscope`` starts where training starts: in the folder of the scripts, with their PYTHONPATH. Only this process is
concerned; the command that it starts has its own. Nothing that could be hidden may be imported before.
"""

import os
import sys


def put_own_modules_first() -> None:
    """Look in the standard library, beside perfscope and in site-packages before PYTHONPATH and the working folder."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # an editable installation is not on the path
    sys.path[:] = sorted([*sys.path, *({own} - {*sys.path})], key=_rank)


def _rank(entry: str) -> int:
    """The position of a group of entries; those of one group stay in their order."""
    standard_library = os.path.dirname(os.__file__)
    if entry == standard_library or entry.startswith(os.path.join(standard_library, "lib-")) or entry.endswith(".zip"):
        return 0
    if entry == os.path.dirname(os.path.dirname(os.path.abspath(__file__))):
        return 1
    return 3 if entry in _typed_entries() else 2


def _typed_entries() -> set[str]:
    """What the user put on the path: PYTHONPATH, and the working folder, which ``python -m`` puts first."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    try:
        folder = os.getcwd()
    except OSError:  # it was deleted
        return {"", *entries}
    return {"", folder, *entries, *(os.path.abspath(entry) for entry in entries)}
