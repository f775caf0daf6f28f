"""The processes of a run: who had which rank, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfscope.sources.runs.records import read_object, read_rank_record
from perfscope.sources.runs.step_columns import read_step_columns
from perfscope.wire.records import RankRecord


@dataclass(frozen=True)
class RankProcess:
    """One process that had a rank, known to have lived from ``first_ns`` to ``last_ns`` on its host's wall clock."""

    folder: Path
    record: RankRecord
    steps: int
    first_ns: int
    last_ns: int

    @property
    def identity(self) -> tuple[str, int]:
        """Host and process number, which distinguish it from other processes of its rank."""
        return self.record.host, self.record.pid


@dataclass(frozen=True)
class RunDescription:
    """A run.json as one host wrote it; ``started_ns`` is of that host's wall clock."""

    document: Mapping[str, object]
    run_id: str | None
    host: str
    started_ns: int
    has_ended: bool


def read_rank_process(folder: Path) -> RankProcess | None:
    """Read a rank's process from its folder; None where rank.json is missing or damaged."""
    record = read_rank_record(folder)
    if record is None:
        return None
    columns = read_step_columns(folder, damage=[])
    times_ns = [record.wall_ns, *(columns.whole("end_ns") + record.wall_ns - record.monotonic_ns).tolist()]
    return RankProcess(folder, record, columns.rows, min(times_ns), max(times_ns))


def read_description(path: Path) -> RunDescription | None:
    """Read a run.json; None where the file is missing or damaged."""
    document = read_object(path)
    if not document:
        return None
    run_id, host, started_ns = (document.get(key) for key in ("run_id", "host", "started_ns"))
    return RunDescription(
        document,
        run_id=str(run_id) if run_id else None,
        host=str(host or "unknown"),
        started_ns=started_ns if isinstance(started_ns, int) else 0,
        has_ended="ended_ns" in document,
    )
