"""How a rank trains, from ``setup.json``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from perfscope import wire
from perfscope.files import read_regular
from perfscope.wire.setup import SetupRecord


def read_setup(folder: Path, damage: list[str]) -> SetupRecord | None:
    """Read one process's set-up; None where it recorded none."""
    try:
        return msgspec.json.decode(read_regular(folder / wire.SETUP_FILE), type=SetupRecord)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError):
        damage.append(f"{wire.RANKS_FOLDER}/{folder.name}/{wire.SETUP_FILE} cannot be read")
        return None
