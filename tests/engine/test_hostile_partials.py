"""Partials with numbers that cannot be are not taken, and a sentence names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfscope.constants import MOST_RANKS
from perfscope.engine.analysis_report import to_report
from perfscope.engine.run import Plan, analyze
from perfscope.renderers import Format, render
from perfscope.sources.partials import read_partials, to_bytes
from tests.conftest import ROOT
from tests.engine.storing import copy_with_partials

Sections = dict[str, Any]


def keep_extension(code: int, block: memoryview) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, bytes(block))


def read(partials: Path) -> Sections:
    """The values of MessagePack, whatever their types; that of the trace has no name."""
    stored = read_partials(str(partials))
    decoder = msgspec.msgpack.Decoder(ext_hook=keep_extension)
    contents = {"": stored.trace, **stored.partials}
    return {name: decoder.decode(content) for name, content in contents.items()}


def write(partials: Path, sections: Sections) -> None:
    """Write them as whoever knows the format would: whole, with the right version, code and trace."""
    contents = {name: msgspec.Raw(msgspec.msgpack.encode(value)) for name, value in sections.items()}
    trace = contents.pop("")
    stored = msgspec.structs.replace(read_partials(str(partials)), trace=trace, partials=contents)
    partials.write_bytes(to_bytes(stored))


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, (list, dict)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def alter(value: Any, path: tuple[Any, ...], change: Callable[[Any], object]) -> Any:
    if not path:
        return change(value)
    key, *rest = path
    copy = value.copy()
    copy[key] = alter(value[key], tuple(rest), change)
    return copy


def test_infinite_numbers_are_refused_and_the_trace_is_read(tmp_path: Path) -> None:
    run = copy_with_partials(ROOT / "fixtures" / "runs" / "h200_zero2", tmp_path)
    partials = sorted(run.rglob("*.partials"))[0]
    plan = Plan(only=frozenset({"operations"}))
    expected = render(to_report(analyze([run], Plan(only=plan.only, is_fresh=True))), Format.JSON)
    sections = read(partials)
    path = next(path for path in places(sections["operations"]) if isinstance(at(sections["operations"], path), float))
    write(partials, sections | {"operations": alter(sections["operations"], path, lambda _: float("inf"))})
    analysis = analyze([run], plan)
    assert render(to_report(analysis), Format.JSON) == expected
    (note,) = analysis.notes
    assert "is damaged: operations: a number that is infinite, or none" in note


@pytest.mark.timeout(60)
def test_a_job_of_more_ranks_than_there_can_be_is_not_believed(tmp_path: Path) -> None:
    run = copy_with_partials(ROOT / "fixtures" / "runs" / "h200_zero2", tmp_path)
    plan = Plan(only=frozenset({"breakdown"}))
    expected = render(to_report(analyze([run], Plan(only=plan.only, is_fresh=True))), Format.JSON)
    for partials in run.rglob("*.partials"):
        sections = read(partials)
        path = next(path for path in places(sections[""]) if at(sections[""], path) == 2)
        write(partials, sections | {"": alter(sections[""], path, lambda _: 10**12)})
    analysis = analyze([run], plan)
    assert render(to_report(analysis), Format.JSON) == expected
    (note,) = analysis.notes
    assert "is of more ranks than a job has" in note
    record = run / "ranks" / "00001" / "rank.json"
    record.write_text(record.read_text().replace('"world_size":2', f'"world_size":{MOST_RANKS + 1}'))
    assert str(MOST_RANKS + 1) in record.read_text()
    assert "ranks/00001/rank.json cannot be read" in analyze([run], plan).damage


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value
