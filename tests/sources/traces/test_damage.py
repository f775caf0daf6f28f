"""Damage costs what is damaged: no error but a sentence, no figure that changes in silence, and little time."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import pytest

from perfscope.sources.traces.reader import read_trace
from tests.ratios import assert_ratio
from tests.sources.traces.damaging import FIXTURES, KINDS, damage, figures, flips_of_words, read_damaged
from tests.sources.traces.making import call, kernel, kineto, one_line, step, write

SMALL = ["gloo2/rank0", "loops/clean", "rpc2/rank1", "gloo_async2/rank1"]
DAMAGES = 15
#: The promise is twice the time of the whole file and two seconds: these files are read in a hundredth of a second.
MOST_OF_WHOLE = 400


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


@pytest.mark.parametrize("layout", [kineto, one_line])
def test_an_event_that_lost_its_phase_or_category_is_said(tmp_path: Path, layout: object) -> None:
    events = [
        event
        for n in range(30)
        for event in (
            call("cudaLaunchKernel", 100 * n, 100 * n + 5, launch=n),
            kernel(f"k{n}", 100 * n + 10, 100 * n + 60, launch=n),
        )
    ]
    path = write(tmp_path / "rank0.json", [step(1, 0, 5000), *events], kineto if layout is kineto else one_line)
    text, whole = path.read_bytes(), figures(read_trace(path))
    outcomes = []
    for damaged in flips_of_words(text):
        path.write_bytes(damaged)
        outcomes.append(read_damaged(path, whole))
    # A kernel is still one where its first letter is a capital, as older exporters write it.
    assert outcomes.count("nothing lost") == 1
    assert set(outcomes) == {"said", "nothing lost"}
    assert len(outcomes) == 8 * len("phcatXkernel")


def test_a_time_that_no_double_holds_in_a_damaged_file_is_no_error(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", [kernel(f"k{n}", 100 * n, 100 * n + 5) for n in range(20)])
    text = path.read_text()
    path.write_text(text.replace('"ts": 0.500', '"ts": 1700000000123456.500').replace('"name": "k9"', '"name" "k9"'))
    trace = read_trace(path)
    assert len(trace.device) == 19
    assert trace.damage != ()


def test_an_end_that_is_missing_in_megabytes_takes_no_longer(tmp_path: Path) -> None:
    """Each brace of what follows used to be tried as the end of the last event."""
    path = write(tmp_path / "rank0.json", [kernel(f"k{n}", 100 * n, 100 * n + 5) for n in range(20)], one_line)
    text = path.read_text()
    path.write_text(text[: text.index('"k12"') + 3] + '{"a": {}}, ' * 300_000)
    trace = assert_ratio(partial(read_trace, path), partial(json.loads, "[" + '{"a": {}}, ' * 300_000 + "0]"), 100)
    assert len(trace.device) == 12
    assert trace.damage != ()
