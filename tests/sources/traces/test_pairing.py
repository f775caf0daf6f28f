"""Two windows of a process as one trace: times of the light one, what caused them from the one with operators."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from perfscope.sources.traces.matching import NoMatch, align
from perfscope.sources.traces.metadata import read_metadata
from perfscope.sources.traces.pairing import WindowTimeline, pair_windows
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import ABSENT, ALL_EVENTS, Events, HostSpans, Trace, join
from tests.sources.traces.making import AUTOGRAD
from tests.sources.traces.two_windows import (
    Launch,
    program,
    run_window,
    write_pair,
)

LOG = Launch("aten::item", "Memcpy DtoH", thread=AUTOGRAD)


def both(paths: tuple[Path, Path]) -> tuple[Trace, Trace]:
    return read_trace(paths[0]), read_trace(paths[1])


def operator_names(trace: Trace) -> list[str | None]:
    rows = join(trace.device.external_id, trace.operators.external_id)
    return [None if row == ABSENT else trace.names[trace.operators.name[row]] for row in rows]


def names_of(trace: Trace, spans: HostSpans) -> list[str]:
    return [trace.names[name] for name in spans.name]


@pytest.mark.parametrize("seed", range(2))
def test_every_device_event_has_its_light_time_and_the_operator_that_launched_it(seed: int, tmp_path: Path) -> None:
    steps = [program(3), program(5), program(3)]
    operators, light = both(write_pair(tmp_path, steps, steps, seed=seed))
    paired = pair_windows(operators, light)
    assert paired.device.start_ns.tolist() == light.device.start_ns.tolist()
    assert paired.device.duration_ns.tolist() == light.device.duration_ns.tolist()
    assert paired.device.stream.tolist() == light.device.stream.tolist()
    # The truth is the program's, by the correlation of each launch.
    truth = run_window(steps, first=9, light=True, seed=seed, begin=1_000_000).operator_of
    assert operator_names(paired) == [truth[correlation] for correlation in light.device.correlation.tolist()]
    assert operator_names(light) == [None] * len(light.device)


def test_a_collective_is_known_by_what_the_profiler_said_with_operators(tmp_path: Path) -> None:
    steps = [program(2), program(2)]
    operators, light = both(write_pair(tmp_path, steps, steps, world=2))
    paired = pair_windows(operators, light)
    assert not light.collectives
    sequences = [
        paired.collectives[row].sequence if row != ABSENT else None for row in paired.device.collective.tolist()
    ]
    expected = [
        100 * number + place if launch.is_collective else None
        for number, launches in enumerate(steps, 4)
        for place, launch in enumerate(launches)
    ]
    by_launch = [sequences[row] for row in np.argsort(paired.device.correlation, kind="stable")]
    assert by_launch == expected
    assert paired.groups["0"].ranks == (0, 1)


@pytest.mark.parametrize("seed", range(2))
def test_a_launch_is_inside_the_same_operators_and_ranges_as_it_was(seed: int, tmp_path: Path) -> None:
    steps = [program(4)] * 2
    operators, light = both(write_pair(tmp_path, steps, steps, seed=seed))
    paired = pair_windows(operators, light)

    def containments(trace: Trace) -> list[list[str]]:
        order = np.argsort(trace.device.correlation, kind="stable")
        rows = trace.launch[order]
        spans = [
            (trace.names[table.name[row]], int(table.start_ns[row]), int(table.end_ns[row]))
            for table in (trace.operators, trace.annotations)
            for row in range(len(table))
        ]
        return [
            sorted(
                name.partition("#")[0]
                for name, start, end in spans
                if start <= trace.calls.start_ns[row] and trace.calls.end_ns[row] <= end
            )
            for row in rows.tolist()
        ]

    assert containments(paired) == containments(operators)
    assert len(paired.annotations) == len(operators.annotations)


def test_a_step_is_matched_with_the_one_that_ran_the_same_wherever_it_stands(tmp_path: Path) -> None:
    logging = program(2, LOG)
    paired = pair_windows(
        *both(write_pair(tmp_path, [program(2), program(2), logging], [logging, program(2), program(2)]))
    )
    by_step = [
        "aten::item" in {name for name, of in zip(operator_names(paired), paired.step, strict=True) if of == step}
        for step in range(3)
    ]
    assert by_step == [True, False, False]
    assert None not in operator_names(paired)


def test_a_step_that_is_matched_twice_has_operators_of_its_own_each_time(tmp_path: Path) -> None:
    paired = pair_windows(*both(write_pair(tmp_path, [program(2)], [program(2), program(2)])))
    first, second = ({*paired.device.external_id[paired.step == step].tolist()} - {ABSENT} for step in (0, 1))
    assert len(first) == len(second) > 2
    assert not first & second
    assert operator_names(paired)[: len(paired.device) // 2] == operator_names(paired)[len(paired.device) // 2 :]


def test_events_without_a_twin_have_no_operator_and_all_others_have_their_own(tmp_path: Path) -> None:
    steps = [program(6), program(6, LOG), program(6)[1:]]  # of 19 device events: as many, one more, one less
    operators, light = both(write_pair(tmp_path, [program(6)], steps))
    paired = pair_windows(operators, light)
    truth = run_window(steps, first=7, light=True, begin=1_000_000).operator_of
    expected = [truth[correlation] for correlation in light.device.correlation.tolist()]
    assert operator_names(paired) == [None if name == "aten::item" else name for name in expected]
    assert paired.without_twin == expected.count("aten::item") == 1


@pytest.mark.parametrize(
    ("light", "reason"),
    [
        (program(3, LOG, LOG), "step 7 is not step 4 again: 9 instead of 7 device events on stream 7 of GPU 0"),
        (
            [
                dataclasses.replace(launch, kernel="other") if launch.kernel == "gemm0" else launch
                for launch in program(3)
            ],
            "step 7 is not step 4 again: device event 1 on stream 7 of GPU 0 is other, not gemm0",
        ),
        ([], "step 7 is not step 4 again: it launched nothing on a GPU"),
    ],
)
def test_windows_that_ran_something_else_are_not_matched(light: list[Launch], reason: str, tmp_path: Path) -> None:
    operators, other = both(write_pair(tmp_path, [program(3)], [light]))
    with pytest.raises(NoMatch) as raised:
        pair_windows(operators, other)
    assert raised.value.reason == reason
    assert raised.value.rank == 0


def test_a_window_without_steps_is_not_matched(tmp_path: Path) -> None:
    operators, light = both(write_pair(tmp_path, [program(3)], [program(3)]))
    none = np.zeros(0, np.int64)
    with pytest.raises(NoMatch, match="the light window contains no complete step"):
        pair_windows(operators, replace(light, annotations=light.annotations.take(none)))
    with pytest.raises(NoMatch, match="the window with operators contains no complete step"):
        pair_windows(replace(operators, annotations=operators.annotations.take(none)), light)


def test_the_metadata_are_read_from_the_beginning_of_a_trace(tmp_path: Path) -> None:
    _, light = write_pair(tmp_path, [program(1)], [program(1)])
    metadata = read_metadata(str(light))
    assert metadata is not None
    assert (metadata.activities, metadata.first_step, metadata.pid, len(metadata.edges_ns)) == ("light", 7, 100, 2)
    (tmp_path / "other.json").write_text(json.dumps({"a": 1}))
    (tmp_path / "foreign.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": []}))
    (tmp_path / "cut.json.gz").write_bytes(light.read_bytes()[:40])
    for name in ("other.json", "foreign.json", "cut.json.gz", "missing.json"):
        assert read_metadata(str(tmp_path / name)) is None


def test_a_timeline_leaves_out_what_contradicts_an_earlier_moment() -> None:
    timeline = WindowTimeline.through(np.array([10, 20, 20, 30, 40]), np.array([100, 150, 160, 140, 170]))
    assert (timeline.moments_ns.tolist(), timeline.same_ns.tolist()) == ([10, 20, 40], [100, 150, 170])


def test_a_timeline_stretches_what_is_between_its_moments_and_only_moves_what_is_outside() -> None:
    timeline = WindowTimeline.through(np.array([100, 200, 240]), np.array([1000, 1050, 1130]))
    at = timeline.at(np.array([90, 100, 150, 200, 210, 240, 250]))
    assert at.tolist() == [990, 1000, 1025, 1050, 1070, 1130, 1140]
    assert WindowTimeline.through(np.array([100]), np.array([7])).at(np.array([90, 110])).tolist() == [-3, 17]


def test_the_details_of_operators_follow_them_into_the_light_window(tmp_path: Path) -> None:
    steps = [program(2), program(2)]
    paths = write_pair(tmp_path, steps, steps)
    operators, light = (read_trace(path, ALL_EVENTS | Events.SEQUENCES | Events.SHAPES) for path in paths)
    assert operators.details is not None
    numbered = np.arange(len(operators.operators))
    paired = pair_windows(replace(operators, details=replace(operators.details, sequence=numbered)), light)
    assert paired.details is not None
    assert len(paired.details.sequence) == len(paired.operators) > 0
    names = names_of(operators, operators.operators)
    assert names_of(paired, paired.operators) == [names[number] for number in paired.details.sequence.tolist()]
    assert (np.diff(paired.operators.start_ns) >= 0).all()


def pairs_of(first: list[int], second: list[int]) -> list[tuple[int, int]]:
    places, others = align(np.array(first, np.int64), np.array(second, np.int64))
    return list(zip(places.tolist(), others.tolist(), strict=True))


def longest_common(first: list[int], second: list[int]) -> int:
    """The length of the longest sequence that is in both, by the textbook's table."""
    row = [0] * (len(second) + 1)
    for name in first:
        above = row
        row = [0]
        for place, other in enumerate(second):
            row.append(above[place] + 1 if name == other else max(above[place + 1], row[place]))
    return row[-1]


class Layers:
    """A step of layers: each has kernels that always run, and those of the experts that had tokens."""

    def __init__(self, seed: int, experts: float) -> None:
        draw = random.Random(seed)
        self.names: list[int] = []
        self.layer: list[int] = []
        for layer in range(12):
            active = [expert for expert in range(8) if draw.random() < experts]
            kernels = [1, 2, 1, 3, *(name for _ in active for name in (20, 30 + draw.randrange(2), 20)), 4, 5]
            self.names += kernels
            self.layer += [layer] * len(kernels)


def assert_twins(first: list[int], second: list[int], pairs: list[tuple[int, int]]) -> None:
    assert all(first[place] == second[other] for place, other in pairs)
    assert all((np.diff(column) > 0).all() for column in np.array(pairs).reshape(-1, 2).T)


@pytest.mark.parametrize("experts", [0.9, 1])
@pytest.mark.parametrize("seed", range(5))
def test_as_many_as_can_have_a_twin_and_it_is_of_the_same_layer(seed: int, experts: float) -> None:
    first, second = Layers(seed, experts), Layers(1000 + seed, experts)
    pairs = pairs_of(first.names, second.names)
    assert_twins(first.names, second.names, pairs)
    assert len(pairs) == longest_common(first.names, second.names)
    assert all(first.layer[place] == second.layer[other] for place, other in pairs)
