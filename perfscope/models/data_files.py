"""The tables of facts that ship beside the code, as TOML."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


@cache
def read_data(name: str) -> dict[str, Any]:
    """The content of ``perfscope/models/NAME.toml``, whose comments say what it means and where it is from."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text("utf-8"))
