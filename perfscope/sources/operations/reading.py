"""Operations of a job in the columns that ByteDance published: parquet, or CSV with the same columns.

Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025; the columns are those
of its artifact, https://github.com/ByteDance-Seed/StragglerAnalysis. Times there are in seconds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from perfscope.constants import NS_PER_S
from perfscope.errors import PerfscopeError, SourceError
from perfscope.tables.columns import Int64
from perfscope.tables.operations import Operations

#: The columns that a file must have.
COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "gmc")
_PARQUET_MAGIC = b"PAR1"
_LONGEST_S = 2**62 / NS_PER_S


def read_operations(path: Path) -> Operations:
    """Read a file of operations.

    Raises:
        SourceError: It cannot be read, lacks columns or rows, or has values that no operation can have.
        PerfscopeError: It is parquet, and pyarrow is not installed.
    """
    frame = _read_frame(path)
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise SourceError(path, f"lacks the columns {', '.join(missing)}", hint=f"needed: {', '.join(COLUMNS)}")
    if not len(frame):
        raise SourceError(path, "has no operations")
    if frame["optype"].isna().any():
        raise SourceError(path, f"has no optype in row {int(np.argmax(frame['optype'].isna()))}")
    names, codes = np.unique(frame["optype"].astype(str).to_numpy().astype(str), return_inverse=True)
    duration_ns = _nanoseconds(path, frame, "duration")
    if (duration_ns < 0).any():
        row = int(np.argmax(duration_ns < 0))
        raise SourceError(
            path, f"has {int((duration_ns < 0).sum())} operations with a negative duration, the first in row {row}"
        )
    pipeline, stage = _counts(path, frame, "dp_rank"), _counts(path, frame, "stage")
    return Operations(
        kinds=tuple(names.tolist()),
        kind=np.asarray(codes, np.int64),
        step=_integers(path, frame, "step"),
        rank=_integers(path, frame, "rank"),
        pipeline=pipeline,
        stage=stage,
        start_ns=_nanoseconds(path, frame, "start_ts"),
        duration_ns=duration_ns,
        sequence=_integers(path, frame, "seq_id"),
        chunk=_integers(path, frame, "mc", absent=-1),
        global_chunk=_integers(path, frame, "gmc", absent=-1),
    )


def _read_frame(path: Path) -> pd.DataFrame:
    try:
        with path.open("rb") as file:
            is_parquet = file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror}") from None
    try:
        return pd.read_parquet(path, engine="pyarrow") if is_parquet else pd.read_csv(path)
    except ImportError:
        raise PerfscopeError(
            f"{path} is parquet, which needs pyarrow",
            hint="pip install 'perfscope-toolkit[parquet]', or write it as CSV",
        ) from None
    except (ValueError, OSError) as error:  # errors of pandas' and pyarrow's parsers are ValueErrors
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise SourceError(path, f"is neither parquet nor CSV: {reason[0]}") from None


def _counts(path: Path, frame: pd.DataFrame, name: str) -> Int64:
    """A column of positions: 0, 1, 2 ... without a gap."""
    values = _integers(path, frame, name)
    numbers = np.unique(values)
    if not np.array_equal(numbers, np.arange(len(numbers))):
        raise SourceError(
            path, f"has {name} {', '.join(map(str, numbers[:8]))}: they are to count from 0 without a gap"
        )
    return values


def _integers(path: Path, frame: pd.DataFrame, name: str, absent: int | None = None) -> Int64:
    values = _numbers(path, frame, name, absent)
    if (values != np.floor(values)).any():
        raise SourceError(path, f"has a fraction in {name}, in row {int(np.argmax(values != np.floor(values)))}")
    return np.asarray(values, np.int64)


def _nanoseconds(path: Path, frame: pd.DataFrame, name: str) -> Int64:
    return np.asarray(np.rint(_numbers(path, frame, name, None) * NS_PER_S), np.int64)


def _numbers(
    path: Path, frame: pd.DataFrame, name: str, absent: int | None
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """A column of numbers; ``absent`` stands for what is missing, and without it nothing may be."""
    try:
        values = np.array(frame[name].astype("Float64").to_numpy(np.float64, na_value=np.nan))
    except (TypeError, ValueError):
        raise SourceError(path, f"has text in {name}, where numbers are needed") from None
    if absent is not None:
        values[np.isnan(values)] = absent
    bad = ~(np.abs(values) < _LONGEST_S)
    if bad.any():
        raise SourceError(path, f"has no number in {name}, in row {int(np.argmax(bad))}")
    return values
