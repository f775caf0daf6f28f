"""What the host costs a pipeline, and what its transfers do: two stages, one micro-batch, times by hand."""

from __future__ import annotations

from perfscope.analyzers.pipeline_bubble.decomposition import StageParts, decompose
from perfscope.analyzers.pipeline_bubble.rank_passes import MeasuredPass, PassesOfStep, Transfer
from perfscope.schedules.operations import PassKind, PassOrder, single_block

PLAN = PassOrder(
    microbatches=1,
    stages=2,
    orders=tuple(
        (single_block(PassKind.FORWARD, 0, stage), single_block(PassKind.BACKWARD, 0, stage)) for stage in (0, 1)
    ),
)


def measured(kind: PassKind, start: int, end: int, position: int, work: int | None = None) -> MeasuredPass:
    return MeasuredPass(kind, 0, None, start, end, end - start if work is None else work, position, position)


def stages(*, work: int | None = None, transfers: bool = True) -> list[PassesOfStep]:
    """Each send takes 30 or 5; its receive ends 10 or 5 later, and the next pass begins another 5 later."""
    first = [Transfer(100, 130, 2, "send"), Transfer(110, 355, 3, "recv")]
    second = [Transfer(20, 140, 1, "recv"), Transfer(345, 350, 4, "send")]
    return [
        PassesOfStep(
            "1",
            (measured(PassKind.FORWARD, 0, 100, 1, work), measured(PassKind.BACKWARD, 360, 460, 4)),
            tuple(first if transfers else ()),
            {},
        ),
        PassesOfStep(
            "1",
            (measured(PassKind.FORWARD, 145, 245, 2), measured(PassKind.BACKWARD, 245, 345, 3)),
            tuple(second if transfers else ()),
            {},
        ),
    ]


def parts(steps: list[PassesOfStep]) -> StageParts:
    found = decompose(PLAN, steps)
    (first, second) = found.stages
    for stage in (first, second):
        assert None not in (stage.useful, stage.schedule, stage.imbalance, stage.transfer, stage.host)
        parts = (stage.useful, stage.schedule, stage.imbalance, stage.transfer, stage.host)
        whole = sum(part for part in parts if part is not None)
        assert whole == found.section_ns == 460
    assert (first.transfer, first.host) == (second.transfer, second.host)
    return first


def test_a_receive_that_ends_behind_its_send_is_the_transfers_and_what_the_device_then_waits_is_the_hosts() -> None:
    found = parts(stages())
    assert found.host == 5 + 5
    assert found.transfer == 30 + 10 + 5 + 5


def test_gaps_within_a_pass_are_the_hosts() -> None:
    found = parts(stages(work=93))
    assert found.host == 5 + 5 + 7
    assert found.transfer == 30 + 10 + 5 + 5


def test_where_the_traces_show_no_transfer_its_time_is_among_the_hosts() -> None:
    found = parts(stages(transfers=False))
    assert found.transfer == 0
    assert found.host == 60
