"""One run.json for a run whose hosts each wrote their own: that of rank 0's host; all are kept in ``hosts/``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfscope import wire
from perfscope.errors import SourceError
from perfscope.files import replace_file
from perfscope.sources.runs.processes import RankProcess, RunDescription, read_description
from perfscope.wire.records import to_file


def merge_descriptions(staged: Sequence[Path], run: Path, processes: Sequence[RankProcess]) -> None:
    """Write run.json, and hosts/HOST.json for each host where there are several.

    Args:
        staged: Folders of the parts.
        run: The run's folder.
        processes: The run's processes.

    Raises:
        SourceError: Two descriptions of one host belong to different runs.
    """
    paths = [
        *(part / wire.RUN_FILE for part in staged),
        run / wire.RUN_FILE,
        *(run / wire.HOSTS_FOLDER).glob("*.json"),
    ]
    by_host: dict[str, RunDescription] = {}
    for path in paths:
        description = read_description(path)
        if description is not None:
            earlier = by_host.get(description.host)
            by_host[description.host] = description if earlier is None else _choose_later(earlier, description, path)
    if not by_host:
        return
    leader = min(processes, key=lambda process: (process.record.rank, process.first_ns)) if processes else None
    leading = by_host.get(leader.record.host) if leader is not None else None
    chosen = leading or min(by_host.values(), key=lambda description: description.started_ns)
    if len(by_host) > 1:
        (run / wire.HOSTS_FOLDER).mkdir(exist_ok=True)
        for host, description in by_host.items():
            path = run / wire.HOSTS_FOLDER / f"{host.replace('/', '_')}.json"
            replace_file(path, to_file(description.document))
    replace_file(run / wire.RUN_FILE, to_file(chosen.document))
    for part in staged:
        (part / wire.RUN_FILE).unlink(missing_ok=True)


def _choose_later(earlier: RunDescription, description: RunDescription, path: Path) -> RunDescription:
    """Choose, of two descriptions by one host, the description that says how the command ended."""
    if (earlier.run_id, earlier.started_ns) != (description.run_id, description.started_ns):
        raise SourceError(path, f"is of another run on {earlier.host}", hint="nothing was overwritten")
    return earlier if earlier.has_ended else description
