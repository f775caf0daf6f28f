"""The passes of a pipeline's stages: a slow device is told from a slow host, from more layers, and from exchanges."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.analyzers.late_ranks import analyze
from perfscope.analyzers.late_ranks.lateness import Cause
from perfscope.constants import NS_PER_MS as MS
from perfscope.tables.micro_batches import MicroBatches, PassTotal
from perfscope.tables.model import Model, PrecisionSigns, Weight
from perfscope.tables.run import Run
from tests.analyzers.late_ranks.test_device_pace import answers, probed
from tests.analyzers.late_ranks.test_lateness import make_steps


def stages_of(
    passes: list[list[int]], weights: list[tuple[int, int]], launches: tuple[float, ...] = (0, 0), **axes: int
) -> Run:
    """A pipeline: of each rank the times of its passes (ms) by step, what it multiplies with and what it looks up."""
    updates = [sum(sizes) / 100 for sizes in weights]
    run = probed(
        [{"forward": None, "launch": launch, "update": ms} for launch, ms in zip(launches, updates, strict=True)]
    )
    signs = PrecisionSigns()
    models = tuple(
        Model(
            rank,
            None,
            multiplied + embedded,
            multiplied + embedded,
            (Weight("", False, (multiplied,), 1), Weight("", True, (embedded,), 1)),
            None,
            "",
            signs,
            None,
        )
        for rank, (multiplied, embedded) in enumerate(weights)
    )
    records = tuple(
        MicroBatches(rank, 0, step, rank, 2, 2, 90 * MS, (PassTotal("F", rank, 2, ms * MS // 3), rest(ms)), ())
        for rank, times in enumerate(passes)
        for step, ms in enumerate(times)
    )
    ranks = tuple(
        replace(rank, parallel={"pp": rank.rank} | {axis: size * rank.rank for axis, size in axes.items()})
        for rank in run.ranks
    )
    return replace(run, models=models, micro_batches=records, ranks=ranks)


def rest(ms: int) -> PassTotal:
    return PassTotal("B", 0, 2, ms * MS - ms * MS // 3)


PASSES = [[30, 33, 27, 30, 30, 90, 30], [63, 60, 66, 63, 120, 63, 63]]


@pytest.mark.parametrize(
    ("weights", "relative"),
    [
        ([(50, 8), (58, 0)], 63 / 58 / (30 / 50)),
        ([(50, 8), (58, 8)], 63 / 66 / (30 / 50)),  # the embedding of the last stage may be its head
        ([(50, 90), (58, 0)], 63 / 58 / (30 / 50)),
    ],
)
def test_passes_of_stages_are_compared_by_what_is_multiplied_with(
    weights: list[tuple[int, int]], relative: float
) -> None:
    run = stages_of(PASSES, weights)
    result = analyze(run)
    pace = result.devices[1]
    assert pace.relative_passes == pytest.approx(relative)
    assert pace.passes_ns == 63 * MS
    (late,) = result.lateness
    assert (late.rank, late.cause) == (1, Cause.DEVICE)
    assert late.cost_ns == pytest.approx(63 * MS * (1 - 1 / relative) * len(run.steps[1]), rel=1e-6)
    assert late.detail.startswith(f"its passes take {relative:.2f} times")


@pytest.mark.parametrize(
    "run",
    [
        stages_of(PASSES, [(50, 8), (58, 0)], launches=(0, 1)),  # its device waits for its host
        stages_of(PASSES, [(50, 8), (58, 0)], tp=1),  # passes hold exchanges
        stages_of([PASSES[0][:3], PASSES[1]], [(50, 8), (58, 0)]),
        stages_of([PASSES[1], PASSES[1]], [(50, 8), (58, 0)]),
    ],
    ids=["waits", "exchanges", "few", "alike"],
)
def test_stages_that_wait_for_their_hosts_or_exchange_or_are_alike_are_not_slow(run: Run) -> None:
    assert answers(run) == []


def with_launches(run: Run, launches: dict[int, tuple[float, float] | None], *, has_probes: bool = False) -> Run:
    """The same pipeline, of which it is known how long hosts launched, and devices may have waited for that (ms).

    A third of both is of forward passes, as of the time of all passes.
    """
    records = tuple(
        dataclasses.replace(
            record,
            totals=tuple(
                total
                if (known := launches[record.rank]) is None
                else dataclasses.replace(
                    total, launch_ns=round(known[0] * part * MS / 3), wait_ns=round(known[1] * part * MS / 3)
                )
                for total, part in zip(record.totals, (1, 2), strict=True)
            ),
        )
        for record in run.micro_batches
    )
    steps = run.steps if has_probes else tuple(dataclasses.replace(table, probes=()) for table in run.steps)
    return replace(run, micro_batches=records, steps=steps)


WEIGHTS = [(50, 8), (58, 0)]
AHEAD: dict[int, tuple[float, float] | None] = {0: (20.0, 0.0), 1: (23.0, 0.0)}


@pytest.mark.parametrize(
    ("own", "peer", "expected"),
    [
        ((23, 0), (20, 0), [(1, Cause.DEVICE)]),
        ((99, 19), (20, 0), [(1, Cause.DEVICE)]),  # (63 - 19) / 58 is more than 1.25 times 30 / 50
        ((99, 20), (20, 0), []),
        ((23, 45), (20, 0), [(1, Cause.DEVICE)]),  # its launches take no longer by parameter, and do not bind it
        ((23, 45), (20, 29), [(1, Cause.DEVICE)]),
        ((38, 45), (20, 0), [(1, Cause.DEVICE)]),  # 1.81 is more than 1.1 times 38 / 58 / (20 / 50)
        ((39, 45), (20, 0), []),
        ((23, 48), (20, 0), []),  # its passes end soon after the last launch
        ((23, 45), (23, 0), []),  # launches that take most of the passes may hold waits for the device
        ((60, 60), (20, 20), []),  # a slow host: its passes take as long as it launches them
        ((60, 60), (60, 0), []),
        (None, None, []),  # records of before
        (None, (20, 0), []),
    ],
)
def test_a_stage_without_probes_is_slow_by_what_cannot_be_its_host(
    own: tuple[float, float] | None, peer: tuple[float, float] | None, expected: list[tuple[int, Cause]]
) -> None:
    run = with_launches(stages_of(PASSES, WEIGHTS), {0: peer, 1: own})
    assert answers(run) == expected
    for late in analyze(run).lateness:
        assert late.detail.startswith("its passes take 1.81 times"), "of all that they take"


def test_one_kind_of_passes_that_is_bound_by_launches_says_that_all_may_be() -> None:
    run = with_launches(stages_of(PASSES, WEIGHTS), {0: (20, 0), 1: (23, 30)})
    assert answers(run) == [(1, Cause.DEVICE)]
    records = tuple(
        dataclasses.replace(
            record,
            totals=tuple(
                dataclasses.replace(total, wait_ns=waits) for total, waits in zip(record.totals, own, strict=True)
            ),
        )
        for record in run.micro_batches
        for own in (((20 * MS, 10 * MS) if record.rank else (0, 0)),)
    )
    assert answers(replace(run, micro_batches=records)) == []


def test_a_stage_without_probes_has_the_figures_of_its_passes_alone() -> None:
    result = analyze(with_launches(stages_of(PASSES, WEIGHTS), AHEAD))
    _, pace = result.devices
    assert (pace.probes, pace.forward_ns, pace.backward_ns, pace.update_ns) == (0, None, None, None)
    assert (pace.passes_ns, pace.passes_steps) == (63 * MS, 7)
    table = next(section for section in result.sections() if section.title == "Pace of the devices")
    assert [column.heading for column in table.columns][:4] == ["Rank", "Timed steps", "Passes (ms)", "Relative passes"]
    assert table.rows[0][:3] == ("1", 7, 63.0)
    assert table.rows[0][3] == pace.relative_passes == pytest.approx(63 / 58 / (30 / 50))


def test_clean_stages_without_probes_are_compared_and_not_slow() -> None:
    run = with_launches(stages_of([[50] * 7, [60] * 7], WEIGHTS), AHEAD)
    assert answers(run) == []
    assert [pace.relative_passes for pace in analyze(run).devices] == [
        pytest.approx(58 / 60),
        pytest.approx(60 / 58),
    ]


@pytest.mark.parametrize(("probed_launch", "wait", "expected"), [(1, 0, [(1, Cause.DEVICE)]), (0, 60, [])])
def test_where_launches_of_passes_are_known_the_optimizer_s_say_nothing_of_them(
    probed_launch: float, wait: float, expected: list[tuple[int, Cause]]
) -> None:
    run = stages_of(PASSES, WEIGHTS, launches=(0, probed_launch))
    assert answers(with_launches(run, {0: AHEAD[0], 1: (60, wait)}, has_probes=True)) == expected


def test_the_host_of_a_slow_stage_may_be_late_where_launches_are_known() -> None:
    run = with_launches(stages_of(PASSES, WEIGHTS), AHEAD)
    tables = make_steps([{}, {0: {"sleep": 15}}], waits=False)
    assert set(answers(replace(run, steps=tuple(tables)))) == {(1, Cause.DEVICE), (1, Cause.BLOCKED)}


def with_fastest(run: Run, fastest: dict[int, tuple[int, int]], count: int = 4) -> Run:
    """The same pipeline, of whose passes (ms) the fastest forward and backward ones of each rank are known."""
    records = tuple(
        dataclasses.replace(
            record,
            totals=tuple(
                dataclasses.replace(total, count=count, fastest_ns=ms * MS)
                for total, ms in zip(record.totals, fastest[record.rank], strict=True)
            ),
        )
        for record in run.micro_batches
    )
    return replace(run, micro_batches=records)


@pytest.mark.parametrize(
    ("fastest", "count", "expected"),
    [
        ({0: (5, 10), 1: (5, 10)}, 4, [(1, Cause.DEVICE)]),
        ({0: (5, 10), 1: (6, 11)}, 4, []),  # a collective beside a pass
        ({0: (4, 9), 1: (5, 10)}, 4, []),  # micro-batches differ, and are those of all stages
        ({0: (5, 10), 1: (5, 10)}, 2, []),
    ],
)
def test_a_stage_whose_passes_are_longer_than_its_fastest_is_slow_at_times(
    fastest: dict[int, tuple[int, int]], count: int, expected: list[tuple[int, Cause]]
) -> None:
    """Both are alike by parameter; of the second stage, another process takes a tenth."""
    run = stages_of([[60] * 7, [70] * 7], [(50, 8), (58, 0)])
    assert answers(run) == [], "records without the fastest pass"
    run = with_fastest(run, fastest, count)
    assert answers(run) == expected
    if expected:
        (late,) = analyze(run).lateness
        assert late.cost_ns == pytest.approx((70 - 60) * MS * len(run.steps[1]), rel=0.02)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ((40, 0), [(1, Cause.DEVICE)]),
        ((40, 3), [(1, Cause.DEVICE)]),
        ((40, 5), []),
        ((23, 5), [(1, Cause.DEVICE)]),  # its host launches as usual
        ((23, 60), []),
    ],
)
def test_a_stage_that_waits_for_launches_at_times_is_not_slow(
    own: tuple[float, float], expected: list[tuple[int, Cause]]
) -> None:
    """The passes of its step take 70 ms, and 60 if all were as fast as the fastest of them."""
    run = with_fastest(stages_of([[60] * 7, [70] * 7], WEIGHTS), {0: (5, 10), 1: (5, 10)})
    run = with_launches(run, {0: AHEAD[0], 1: own})
    assert answers(run) == expected
    relative = analyze(run).devices[1].relative_passes
    assert relative == pytest.approx(70 / 60 if expected else 70 / 58 / (60 / 50))


@pytest.mark.parametrize("change", [{"weights": ()}, {"trainable": 8}, {"checkpointing": "full"}])
def test_stages_of_unknown_weights_or_that_train_or_recompute_different_parts_are_not_compared(
    change: dict[str, Any],
) -> None:
    run = stages_of(PASSES, [(50, 8), (58, 0)])
    assert analyze(run).devices[1].relative_passes
    models = (dataclasses.replace(run.models[0], **change), run.models[1])
    assert analyze(replace(run, models=models)).devices[1].relative_passes is None
