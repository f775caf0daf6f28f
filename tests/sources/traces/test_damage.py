"""Damage costs what is damaged: no error but a sentence, no figure that changes in silence, and little time."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import pytest

from perfscope.errors import SourceError
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import Trace
from tests.conftest import ROOT
from tests.ratios import assert_ratio
from tests.sources.traces.making import kernel, one_line, write

FIXTURES = ROOT / "fixtures" / "traces"
KINDS = ("flip", "cut", "splice")
SMALL = ["gloo2/rank0", "loops/clean", "rpc2/rank1", "gloo_async2/rank1"]
DAMAGES = 15
#: The promise is twice the time of the whole file and two seconds: these files are read in a hundredth of a second.
MOST_OF_WHOLE = 400


def damage(content: bytes, kind: str, order: random.Random) -> bytes:
    """A file's content with one damage."""
    begin, end = sorted(order.randrange(len(content)) for _ in range(2))
    if kind == "flip":
        return _flipped(content, begin, order.randrange(8))
    if kind == "cut":
        return content[:begin]
    return content[:begin] + content[end:] if order.random() < 0.5 else content[:end] + content[begin:]


def figures(trace: Trace) -> tuple[object, ...]:
    """What every figure is computed from."""
    tables = trace.device, trace.calls, trace.annotations
    return tuple(
        sorted(
            zip(
                (trace.names[name] for name in table.name),
                table.start_ns.tolist(),
                table.duration_ns.tolist(),
                strict=True,
            )
        )
        for table in tables
    )


def read_damaged(path: Path, whole: tuple[object, ...]) -> str:
    """What comes of reading a file."""
    try:
        trace = read_trace(path)
    except SourceError:
        return "refused"
    except Exception:  # noqa: BLE001 - that there is none is what is measured
        return "traceback"
    is_same = figures(trace) == whole
    if trace.damage:
        return "said, nothing lost" if is_same else "said"
    return "nothing lost" if is_same else "silent"


def _flipped(content: bytes, place: int, bit: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SMALL)
def test_a_damaged_file_is_read_soon_and_nothing_changes_in_silence(tmp_path: Path, name: str, kind: str) -> None:
    source = FIXTURES / f"{name}.pt.trace.json.gz"
    whole, content, order = figures(read_trace(source)), source.read_bytes(), random.Random(f"{name} {kind}")
    path = tmp_path / "rank0.json.gz"
    for _ in range(DAMAGES):
        path.write_bytes(damage(content, kind, order))
        outcome = assert_ratio(partial(read_damaged, path, whole), partial(read_trace, source), MOST_OF_WHOLE)
        assert outcome not in ("traceback", "silent")


def test_an_end_that_is_missing_in_megabytes_takes_no_longer(tmp_path: Path) -> None:
    """Each brace of what follows used to be tried as the end of the last event."""
    path = write(tmp_path / "rank0.json", [kernel(f"k{n}", 100 * n, 100 * n + 5) for n in range(20)], one_line)
    text = path.read_text()
    path.write_text(text[: text.index('"k12"') + 3] + '{"a": {}}, ' * 300_000)
    trace = assert_ratio(partial(read_trace, path), partial(json.loads, "[" + '{"a": {}}, ' * 300_000 + "0]"), 100)
    assert len(trace.device) == 12
    assert trace.damage != ()
