"""The one run.json of a run whose hosts each wrote their own: that of rank 0's host; all are kept in ``hosts/``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfscope import wire
from perfscope.collecting.agreement import Process, read_json
from perfscope.errors import SourceError
from perfscope.files import replace_file


def place_descriptions(staged: Sequence[Path], run: Path, processes: Sequence[Process]) -> None:
    """Write run.json, and hosts/HOST.json for each host where there are several.

    Args:
        staged: The parts.
        run: The run.
        processes: Its processes.

    Raises:
        SourceError: Two of one host are of different runs.
    """
    files = [*(part / wire.RUN_FILE for part in staged), run / wire.RUN_FILE, *(run / wire.HOSTS_FOLDER).glob("*.json")]
    by_host: dict[str, dict[str, Any]] = {}
    for path in files:
        described = read_json(path)
        if described:
            host = str(described.get("host", "unknown"))
            by_host[host] = _later(by_host[host], described, path) if host in by_host else described
    if not by_host:
        return
    leader = min(processes, key=lambda one: (one.record.rank, one.first_ns)).record.host if processes else ""
    chosen = by_host.get(leader) or min(by_host.values(), key=lambda one: int(one.get("started_ns", 0)))
    if len(by_host) > 1:
        (run / wire.HOSTS_FOLDER).mkdir(exist_ok=True)
        for host, described in by_host.items():
            replace_file(run / wire.HOSTS_FOLDER / f"{host.replace('/', '_')}.json", wire.to_file(described))
    replace_file(run / wire.RUN_FILE, wire.to_file(chosen))
    for part in staged:
        (part / wire.RUN_FILE).unlink(missing_ok=True)


def _later(one: dict[str, Any], other: dict[str, Any], path: Path) -> dict[str, Any]:
    """Of two descriptions by one host, the one that knows how the command ended."""
    if one.get("run_id") != other.get("run_id") or one.get("started_ns") != other.get("started_ns"):
        raise SourceError(path, f"is of another run on {one.get('host')}", hint="nothing was overwritten")
    return one if "ended_ns" in one else other
