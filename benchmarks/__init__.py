"""Scripts that measure perfscope against peers and limits; each prints its ratios as a markdown table.

``processes`` measures commands for them, and ``code_statistics`` counts the lines and names of the code itself.
``kept_run`` gives a run of the fixtures, most of which are archives.
"""

from __future__ import annotations

import atexit
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path


@cache
def kept_run(path: Path) -> Path:
    """The folder of a run; that of an archive ``PATH.tar.gz`` lies in a temporary folder."""
    if path.is_dir():
        return path
    folder = Path(tempfile.mkdtemp(prefix="perfscope-kept-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(path.with_name(f"{path.name}.tar.gz")) as archive:
        archive.extractall(folder, filter="data")
    return folder / path.name
