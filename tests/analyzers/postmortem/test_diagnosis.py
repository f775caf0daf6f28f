"""The right rank and the right reason, from dumps and stacks that are made by hand, and none for a clean training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.postmortem.diagnosis import Diagnosis, diagnose
from perfscope.analyzers.postmortem.matching import match_calls
from perfscope.analyzers.postmortem.places import Reason
from perfscope.sources.postmortem import read_post_mortem
from perfscope.tables.postmortem import (
    Death,
    Failure,
    KernelError,
    PostMortem,
    RankState,
    ThreadStack,
)
from perfscope.wire.incidents import CodeFrame
from tests.sources.postmortem.dumps import entry, write_dumps

STEPS = 6
#: A step: two collectives of the framework, and two of the script.
STEP = (("all_gather", 16, 20), ("reduce_scatter", 32, 21), ("all_reduce", 1, 30), ("all_reduce", 4, 30))


def number(calls: list[dict[str, Any]], state: str = "started", first: int = 1) -> list[dict[str, Any]]:
    sequences: dict[str, int] = {}
    entries = []
    for index, call in enumerate(calls):
        group = call.get("group", "0")
        sequences[group] = sequences.get(group, first - 1) + 1
        last = index == len(calls) - 1
        created_ns = 10**18 + index * 10**6
        entries.append(entry(sequences[group], **call, created_ns=created_ns, state=state if last else "completed"))
    return entries


def calls() -> list[dict[str, Any]]:
    return [dict(zip(("operation", "size", "line"), call, strict=True)) for _ in range(STEPS) for call in STEP]


def changed(fault: str) -> list[dict[str, Any]]:
    """The calls of the rank that does something wrong in the last step."""
    faulty = calls()
    match fault:
        case "skip":
            del faulty[-2]
        case "size":
            faulty[-1]["size"] = 5
        case "dtype":
            faulty[-1]["dtype"] = "Half"
        case "operation":
            faulty[-1]["operation"] = "reduce"
        case "order":
            faulty[-2:] = [faulty[-1], faulty[-2]]
        case "group":
            faulty[-1]["group"] = "1"
    return faulty


REASONS = {
    "skip": Reason.SKIPPED,
    "size": Reason.SIZE,
    "dtype": Reason.DTYPE,
    "operation": Reason.OPERATION,
    "order": Reason.ORDER,
    "group": Reason.GROUP,
}


def diagnose_dumps(folder: Path, ranks: dict[int, list[dict[str, Any]]]) -> Diagnosis:
    write_dumps(folder, ranks, groups=("0", "1"))
    return diagnose(read_post_mortem(folder))


@pytest.mark.parametrize("ranks", [8, 2])
@pytest.mark.parametrize("fault", REASONS)
def test_dumps_alone_name_the_rank_and_the_reason(fault: str, ranks: int, tmp_path: Path) -> None:
    """Buffers of different ranks have wrapped at different calls."""
    entries = {rank: number(changed(fault) if rank == 1 else calls())[5 - 3 * (rank % 2) :] for rank in range(ranks)}
    diagnosis = diagnose_dumps(tmp_path, entries)
    assert (diagnosis.reason, diagnosis.ranks) == (REASONS[fault], (1,)), diagnosis.text
    assert diagnosis.line == CodeFrame("/job/train.py", 30, "train")


@pytest.mark.parametrize("later", [1, 5])
@pytest.mark.parametrize(("fault", "reason"), [("skip", Reason.SKIPPED), ("order", Reason.ORDER)])
def test_calls_that_went_on_meanwhile_tell_one_that_was_left_out_from_two_that_changed_places(
    fault: str, reason: Reason, later: int, tmp_path: Path
) -> None:
    whole = [*calls(), *calls()[: len(STEP) + later]]
    faulty = [*changed(fault), *calls()[: len(STEP) + later]]
    diagnosis = diagnose_dumps(tmp_path, {0: number(whole), 1: number(faulty)})
    assert (diagnosis.reason, diagnosis.ranks) == (reason, (1,)), diagnosis.text


@pytest.mark.parametrize("is_exchanged", [False, True])
def test_lines_of_code_tell_apart_calls_that_look_alike(is_exchanged: bool, tmp_path: Path) -> None:
    """A norm, whether all could update, a maximum: without the norm, the rest looks like the first two exchanged."""
    step: list[dict[str, Any]] = [
        {"size": 1, "line": 40},
        {"size": 1, "line": 41, "dtype": "Int"},
        {"size": 1, "line": 42},
    ]
    faulty = [step[1], step[0]] if is_exchanged else step[1:]
    diagnosis = diagnose_dumps(tmp_path, {0: number(step * STEPS), 1: number([*step * (STEPS - 1), *faulty])})
    reason = Reason.ORDER if is_exchanged else Reason.SKIPPED
    assert (diagnosis.reason, diagnosis.ranks) == (reason, (1,)), diagnosis.text


def sends(rank: int, state: str, others: str = "completed") -> list[dict[str, Any]]:
    """Steps of a stage: a batch that sends or receives, then a collective; ``state`` is that of the last batch."""
    operation = ("send 0->1", "recv 1<-0")[rank]
    entries = []
    for step in range(1, STEPS + 1):
        now = state if step == STEPS else others
        transfer = entry(step, operation, p2p=True, state="scheduled", created_ns=10**18 + step * 100)
        whole = {**entry(step - 1, "coalesced", state=now, created_ns=10**18 + step * 100 + 1), "p2p_seq_id": step}
        over = "scheduled" if step == STEPS else "completed"
        entries += [transfer, whole, entry(step, state=over, created_ns=10**18 + step * 100 + 2)]
    return entries


def test_a_device_that_does_not_begin_a_send_which_another_stage_waits_for_hangs(tmp_path: Path) -> None:
    diagnosis = diagnose_dumps(tmp_path, {0: sends(0, "scheduled"), 1: sends(1, "started")})
    assert (diagnosis.reason, diagnosis.ranks) == (Reason.DEVICE, (0,)), diagnosis.text
    assert "send 0->1" in diagnosis.text


@pytest.mark.parametrize(("line", "reason"), [(30, Reason.GROUP), (31, Reason.SKIPPED)])
def test_a_call_that_no_recorder_holds_waits_in_another_group_where_it_is_the_usual_one(
    line: int, reason: Reason, tmp_path: Path
) -> None:
    evidence = read_post_mortem(write_dumps(tmp_path, {0: number(calls()[:-1], "completed"), 1: number(calls())}))
    dump = evidence.ranks[1].dump
    assert dump is not None
    usual = dump.calls[-1].frames
    stack = ThreadStack("0x1", (*usual[:-1], CodeFrame(usual[-1].file, line, usual[-1].function)))
    waits = CodeFrame("/lib/torch/cuda/__init__.py", 1162, "synchronize")
    ranks = {
        0: replace(evidence.ranks[0], stack=stack, noticed_ns=1),
        1: replace(evidence.ranks[1], stack=ThreadStack("0x1", (waits, usual[-1])), noticed_ns=1),
    }
    diagnosis = diagnose(replace(evidence, ranks=ranks))
    assert (diagnosis.reason, diagnosis.ranks, diagnosis.waiting) == (reason, (0,), (1,)), diagnosis.text


def test_uneven_exchanges_are_no_difference(tmp_path: Path) -> None:
    exchanges = [{"operation": "all_to_all", "size": size} for size in (3, 5, 8)]
    others = [{"operation": "all_to_all", "size": size} for size in (4, 4, 9)]
    entries = {0: number(exchanges, state="completed"), 1: number(others, state="completed")}
    matching = match_calls(read_post_mortem(write_dumps(tmp_path, entries)).ranks, 2)
    assert matching.differences == []


def test_what_a_ring_has_forgotten_is_no_absence_and_what_was_called_first_stands_first(tmp_path: Path) -> None:
    """Two groups take turns; rank 1 remembers four calls more, and calls something else in both groups."""
    entries = {}
    for rank in range(2):
        made: list[dict[str, Any]] = [{"operation": "all_reduce", "size": 1, "group": each} for each in "01" * 10]
        made[13]["size"] = made[16]["size"] = 1 + rank
        entries[rank] = number(made, "completed")[6 - 4 * rank :]
    matching = match_calls(read_post_mortem(write_dumps(tmp_path, entries, groups=("0", "1"))).ranks, 2)
    assert [(found.group, found.sequence) for found in matching.differences] == [("1", 7), ("0", 9)]
    assert matching.absences == []


WAITING = ThreadStack(
    "0x1", (CodeFrame("/lib/torch/distributed/distributed_c10d.py", 1, "all_reduce"), CodeFrame("/job/a.py", 5, "f"))
)
OWN = ThreadStack("0x1", (CodeFrame("/job/a.py", 77, "download"),))
LOADER = ThreadStack(
    "0x1", (CodeFrame("/job/data.py", 3, "__getitem__"), CodeFrame("/lib/torch/utils/data/_utils/fetch.py", 5, "fetch"))
)
SAVING = ThreadStack("0x1", (CodeFrame("/lib/torch/serialization.py", 3, "save"), CodeFrame("/job/a.py", 9, "main")))


def stalled(rank: int, stack: ThreadStack | None, **fields: Any) -> RankState:
    return RankState(rank, "host", 10, stack=stack, stalled_ns=10**11, noticed_ns=10**18, **fields)


def job(*ranks: RankState, world_size: int | None = None, **fields: Any) -> PostMortem:
    return PostMortem("RUN", {state.rank: state for state in ranks}, world_size or len(ranks), **fields)


@pytest.mark.parametrize(
    ("stack", "reason", "line"),
    [(OWN, Reason.HOST, 77), (LOADER, Reason.LOADING, 3), (SAVING, Reason.SAVING, 9)],
)
def test_stacks_alone_name_the_rank_that_waits_for_nobody(stack: ThreadStack, reason: Reason, line: int) -> None:
    diagnosis = diagnose(job(stalled(0, WAITING), stalled(1, stack), stalled(2, WAITING)))
    assert (diagnosis.reason, diagnosis.ranks, diagnosis.waiting) == (reason, (1,), (0, 2))
    assert diagnosis.line is not None
    assert diagnosis.line.line == line


def standing(call: str, line: int) -> tuple[CodeFrame, ...]:
    return CodeFrame("/lib/torch/distributed/distributed_c10d.py", 1, call), CodeFrame("/job/a.py", line, "step")


@pytest.mark.parametrize("how", ["alive", "aborted", "raised"])
def test_ranks_that_stand_in_different_collectives_are_a_mismatch_though_one_of_them_died(how: str) -> None:
    stack = ThreadStack("0x1", standing("broadcast", 9))
    lost = Failure("RuntimeError", "[gloo] Timed out waiting 1800000ms for recv operation", 5, standing("broadcast", 9))
    other = {
        "alive": stalled(1, stack),
        "aborted": RankState(1, "host", 10, stack=stack, death=Death(5, signal=6)),
        "raised": RankState(1, "host", 10, failure=lost, death=Death(5, exit_code=1)),
    }[how]
    diagnosis = diagnose(job(stalled(0, WAITING), other))
    assert (diagnosis.reason, diagnosis.ranks) == (Reason.OPERATION, (0, 1))
    assert diagnosis.text == (
        "ranks stand in different collectives: rank 0 in all_reduce, communication at /job/a.py:5 (f); "
        "rank 1 in broadcast, communication at /job/a.py:9 (step)"
    )
    most = diagnose(job(stalled(0, WAITING), other, stalled(2, WAITING)))
    assert (most.reason, most.ranks) == (Reason.OPERATION, (1,))
    assert most.line is not None
    assert most.line.line == 9


def ended(rank: int, wall_ns: int, **how: Any) -> RankState:
    return RankState(rank, "host", 10, death=Death(wall_ns, **how))


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (ended(1, 5, signal=11), Reason.CRASH),
        (ended(1, 5, exit_code=3), Reason.CRASH),
        (ended(1, 5, signal=9, memory_kills=1), Reason.MEMORY),
        (ended(1, 5, signal=9, memory_kills=0), Reason.CRASH),
        (RankState(1, "h", 1, failure=Failure("ValueError", "bad", 5)), Reason.CRASH),
        (RankState(1, "h", 1, failure=Failure("torch.OutOfMemoryError", "CUDA out of memory.", 5)), Reason.MEMORY),
        (
            RankState(1, "h", 1, failure=Failure("RuntimeError", "CUDA error: an illegal memory access", 5)),
            Reason.KERNEL,
        ),
    ],
)
def test_the_rank_that_failed_by_itself_comes_before_those_that_it_took_along(first: RankState, reason: Reason) -> None:
    lost = Failure("RuntimeError", "[gloo/transport/tcp/pair.cc:553] Connection closed by peer", 4)
    others = RankState(0, "host", 10, failure=lost, death=Death(3, exit_code=1)), ended(2, 6, signal=15)
    diagnosis = diagnose(job(others[0], first, others[1]))
    assert (diagnosis.reason, diagnosis.ranks) == (reason, (1,))


def test_a_gpus_error_is_the_ranks_that_use_it() -> None:
    errors = (KernelError("GPU-1", 79, 3, (1,)),)
    diagnosis = diagnose(job(stalled(0, WAITING), stalled(1, WAITING), kernel_errors=errors))
    assert (diagnosis.reason, diagnosis.ranks) == (Reason.KERNEL, (1,))
    assert "Xid 79" in diagnosis.text


def test_a_job_that_a_person_ends_after_a_stall_did_not_crash() -> None:
    killed = Death(2 * 10**18, signal=9)
    diagnosis = diagnose(job(stalled(0, WAITING, death=killed), stalled(1, OWN, death=killed)))
    assert (diagnosis.reason, diagnosis.ranks) == (Reason.HOST, (1,))


def test_a_gpus_error_as_its_stalled_ranks_are_killed_is_of_the_end() -> None:
    killed, end_ns = [Death(2 * 10**18 + rank, signal=9) for rank in range(2)], 2 * 10**18 - 1000
    ranks = stalled(0, WAITING, death=killed[0]), stalled(1, OWN, death=killed[1])
    of_the_end = (KernelError("GPU-1", 31, end_ns, (0, 1)),)
    diagnosis = diagnose(job(*ranks, kernel_errors=of_the_end))
    assert (diagnosis.reason, diagnosis.ranks) == (Reason.HOST, (1,))
    long_before = (KernelError("GPU-1", 31, end_ns - 10**10, (0, 1)),)
    assert diagnose(job(*ranks, kernel_errors=long_before)).reason is Reason.KERNEL


def test_a_rank_that_left_nothing_never_started() -> None:
    failure = Failure("torch.distributed.DistStoreError", "Timed out after 61 seconds waiting for clients.", 5)
    diagnosis = diagnose(job(RankState(0, "h", 0, failure=failure), world_size=2))
    assert (diagnosis.reason, diagnosis.ranks) == (Reason.ABSENT, (1,))


def test_a_clean_training_and_a_job_without_steps_are_blamed_for_nothing() -> None:
    clean = [RankState(rank, "host", 0, death=Death(5, exit_code=0), has_ended=True) for rank in range(2)]
    assert diagnose(job(*clean)).reason is Reason.NOTHING
    assert diagnose(job(*clean)).ranks == ()
