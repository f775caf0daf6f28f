"""Partials that somebody made up end in an answer, quickly and in little memory, or in a sentence that names them."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from perfscope.constants import GIB, MOST_RANKS
from perfscope.engine.analysis_report import to_report
from perfscope.engine.run import Plan, analyze
from perfscope.errors import PerfscopeError
from perfscope.renderers import Format, render
from perfscope.sources.partials import pack_value, read_partials, to_bytes, unpack_value
from tests.conftest import ROOT
from tests.engine.storing import copy_with_partials, without_traces

#: An answer to the unaltered partials takes two seconds.
LONGEST_S = 60
MOST_BYTES = 6 * GIB
MUTATIONS = 15
WHOLE_NUMBERS = (0, -1, 1, 7, 10**6, 10**9, 2**31, 2**40, 2**63 - 1, -(2**63), 2**64 - 1)
NUMBERS = (0.0, -1.0, 1e308, 5e-324, float("inf"), -float("inf"), float("nan"))
TEXTS = ("", "\0", "x" * 100_000, "../../etc/passwd", "<script>", "1e999", "\x1b[2J")

Sections = dict[str, Any]
Place = tuple[str, tuple[Any, ...]]


@pytest.fixture(scope="module", params=["light/host_bound", "runs/h200_zero2"])
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_with_partials(ROOT / "fixtures" / request.param, tmp_path_factory.mktemp("measured"))


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


def mutate(value: Any, chance: random.Random) -> Any:
    """Something else of the same type, or nearly."""
    choices: dict[type, Callable[[], Any]] = {
        bool: lambda: not value,
        int: lambda: chance.choice(WHOLE_NUMBERS),
        float: lambda: chance.choice(NUMBERS),
        str: lambda: chance.choice(TEXTS),
        list: lambda: chance.choice([[], value[:1], value + value, value[::-1], value * 50]),
        dict: lambda: dict(list(value.items())[: chance.choice([0, 1])]),
        msgspec.msgpack.Ext: lambda: mutate_extension(value, chance),
    }
    return choices.get(type(value), lambda: chance.choice([0, "text", []]))()


def mutate_extension(value: msgspec.msgpack.Ext, chance: random.Random) -> msgspec.msgpack.Ext:
    kind = np.dtype(msgspec.msgpack.decode(value.data)[0]).type
    array = unpack_value(msgspec.msgpack.encode(value), npt.NDArray[kind])  # type: ignore[valid-type]
    changed = pack_value(mutate_array(array, chance), npt.NDArray[kind])  # type: ignore[valid-type]
    mutated: msgspec.msgpack.Ext = msgspec.msgpack.Decoder(ext_hook=keep_extension).decode(changed)
    return mutated


def mutate_array(array: Any, chance: random.Random) -> Any:
    shapes = [array[:0], array[:-1], np.concatenate([array, array])]
    if not array.size or array.dtype.kind in "bf" or chance.random() < 0.4:
        return np.ascontiguousarray(chance.choice(shapes))
    changed, info = array.copy(), np.iinfo(array.dtype)
    for _ in range(chance.choice([1, array.size])):
        changed[chance.randrange(len(changed))] = chance.choice([info.min, info.max, 0, info.max // 2])
    return changed


def ends_well(run: Path) -> str | None:
    """What an analysis of the run ends with, if that is neither an answer nor a sentence."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        problem = ""
        try:
            resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
            signal.alarm(LONGEST_S)
            analysis = analyze([run])
            for form in (Format.JSON, Format.MARKDOWN):
                render(to_report(analysis), form)
        except PerfscopeError:
            pass
        except BaseException as error:  # noqa: BLE001 - it is what this looks for
            problem = f"{type(error).__name__}: {error}"[:500]
        finally:
            os.write(writing, problem.encode())
            os._exit(0)
    os.close(writing)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with os.fdopen(reading) as answer:
        return answer.read() or (f"signal {-status}" if status else None)


@pytest.mark.slow
@pytest.mark.parametrize("is_absent", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork beside the threads of whoever runs the tests
def test_real_partials_in_which_anything_is_changed_end_in_an_answer_or_a_sentence(
    measured: Path, tmp_path: Path, *, is_absent: bool
) -> None:
    run = Path(shutil.copytree(measured, tmp_path / "run"))
    partials = sorted(run.rglob("*.partials"))[0]
    sections = read(partials)
    every: list[Place] = [(name, path) for name, value in sections.items() for path in places(value)]
    if is_absent:
        without_traces(run)
    chance = random.Random(f"{measured.name} {is_absent}")
    for _ in range(MUTATIONS):
        # Each section as often as any other one: some hold thousands of names.
        name = chance.choice(sorted(sections))
        path = chance.choice([path for section, path in every if section == name])
        changed = alter(sections[name], path, lambda value: mutate(value, chance))
        write(partials, sections | {name: changed})
        assert ends_well(run) is None, (name, path)


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
