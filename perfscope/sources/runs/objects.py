"""JSON objects of a run's folder, read without the records of its ranks, which take long to import."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path


def read_object(path: Path, damage: list[str]) -> dict[str, object]:
    """The JSON object in a file; empty where it cannot be read, which is added to ``damage``."""
    if not path.is_file():
        damage.append(f"{path.name} is missing")
        return {}
    try:
        fields = json.loads(path.read_bytes())
    except ValueError:
        damage.append(f"{path} is not complete JSON")
        return {}
    return fields if isinstance(fields, dict) else {}


def recorded_options(facts: Mapping[str, object]) -> frozenset[str]:
    """The profiler's options that were on; none where the run does not say."""
    options = facts.get("recorded")
    return (
        frozenset(option for option in options if isinstance(option, str)) if isinstance(options, list) else frozenset()
    )
