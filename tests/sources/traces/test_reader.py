"""What is read of a trace, in every layout that exporters write."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import ABSENT, BASIC_EVENTS, Events, Work
from tests.sources.traces.making import (
    LAYOUTS,
    MAIN,
    PROCESS,
    Event,
    call,
    copy,
    distributed,
    document,
    in_microseconds,
    kernel,
    kineto,
    one_line,
    span,
    step,
    write,
)
from tests.sources.traces.two_windows import BASE_NS

NOON_NS = 4_362_342_475_491_371  # digits that a careless product of doubles loses
EVENTS = [
    span("cpu_op", "aten::mm", NOON_NS, NOON_NS + 4000, args={"External id": 5}),
    step(9, NOON_NS, NOON_NS + 100_000),
    call("cudaLaunchKernel", NOON_NS + 500, NOON_NS + 900, launch=31),
    kernel("gemm", NOON_NS + 1001, NOON_NS + 5003, launch=31, **{"External id": 5}),
    kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", NOON_NS + 2000, NOON_NS + 9999, stream=20),
    copy("Memcpy HtoD (Pinned -> Device)", NOON_NS + 10_000, NOON_NS + 10_007, bytes=4096),
    copy("Memset (Device)", NOON_NS + 10_100, NOON_NS + 10_101, category="gpu_memset"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["rank0.json", "rank0.json.gz"])
def test_every_layout_reads_the_same(tmp_path: Path, layout: Callable[[Mapping[str, Any]], str], name: str) -> None:
    trace = read_trace(write(tmp_path / name, EVENTS, layout, **distributed(3, 8), baseTimeNanoseconds=17))
    assert (trace.rank, trace.world_size, trace.backend, trace.base_ns) == (3, 8, "nccl", 17)
    assert [trace.names[name].split("(")[0].strip() for name in trace.device.name] == [
        "gemm",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "Memcpy HtoD",
        "Memset",
    ]
    assert trace.device.work.tolist() == [Work.COMPUTE, Work.COMMUNICATION, Work.COPY, Work.COPY]
    assert (trace.device.start_ns - NOON_NS).tolist() == [1001, 2000, 10_000, 10_100]
    assert trace.device.duration_ns.tolist() == [4002, 7999, 7, 1]
    assert trace.device.stream.tolist() == [7, 20, 7, 7]
    assert trace.device.bytes.tolist() == [ABSENT, ABSENT, 4096, ABSENT]
    assert trace.launch.tolist() == [0, ABSENT, ABSENT, ABSENT]
    assert trace.step.tolist() == [0, ABSENT, ABSENT, ABSENT]
    assert [trace.names[name] for name in trace.operators.name] == ["aten::mm"]
    assert trace.damage == ()


def test_only_what_is_asked_for_is_decoded(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "rank0.json", EVENTS), Events.DEVICE)
    assert len(trace.device) == 4
    assert not len(trace.operators)
    assert not len(trace.calls)
    assert "aten::mm" not in trace.names


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        ("1700000000123456", 1_700_000_000_123_456_000),
        ("1700000000123456.5", 1_700_000_000_123_456_500),
        ("4362342475491.371", 4_362_342_475_491_371),
        ('"4362342475491.371"', 4_362_342_475_491_371),
        ("0.001", 1),
        ("-12.5", -12_500),
    ],
)
def test_no_digit_of_a_time_is_lost(tmp_path: Path, written: str, ns: int) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        f'{{"traceEvents":[{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{written},"dur":0.001}}]}}'
    )
    assert read_trace(path).device.start_ns.tolist() == [ns]
    assert read_trace(path).device.duration_ns.tolist() == [1]


def test_the_rank_is_what_the_profiler_says_else_what_the_hooks_say_else_the_name(tmp_path: Path) -> None:
    def rank(name: str, **head: Any) -> int | None:
        return read_trace(write(tmp_path / name, EVENTS, **head)).rank

    assert rank("rank7.json", **distributed(2), perfscope={"rank": 5}) == 2
    assert rank("rank7.json", perfscope={"rank": 5, "first_step": 9}) == 5
    assert rank("worker_rank-7.123.pt.trace.json") == 7
    assert rank("host_4242.1700000000.pt.trace.json") is None


@pytest.mark.parametrize("written", ["NaN", "Infinity", "-Infinity", "nan", "inf", "N/A"])
def test_numbers_that_are_none_do_no_harm(tmp_path: Path, written: str) -> None:
    path = write(tmp_path / "trace.json", EVENTS)
    path.write_text(path.read_text().replace('"stream": 7', f'"stream": 7, "memory bandwidth (GB/s)": {written}'))
    trace = read_trace(path)
    assert len(trace.device) == 4
    assert trace.damage == ()


@pytest.mark.parametrize("bad", [b"\x00", b"\x01\x1f", b"\n", b"\xff\xfe", b"\\x41", b"\\q"])
def test_names_with_bytes_that_json_forbids_are_read(tmp_path: Path, bad: bytes) -> None:
    path = write(tmp_path / "trace.json", EVENTS)
    path.write_bytes(path.read_bytes().replace(b'"gemm"', b'"ge' + bad + b'mm"'))
    trace = read_trace(path)
    assert len(trace.device) == 4
    assert trace.names[trace.device.name[0]].startswith("ge")
    assert trace.damage == ()


def _many(count: int) -> list[Event]:
    return [kernel(f"kernel {index}", 1000 * index, 1000 * index + 500) for index in range(count)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_that_is_cut_off_gives_every_whole_event(
    tmp_path: Path, layout: Callable[[Mapping[str, Any]], str]
) -> None:
    text = in_microseconds(layout(document(_many(20), **distributed(1, 2)))).encode()
    cut = text.index(b"kernel 13") + 20
    path = tmp_path / "trace.json"
    path.write_bytes(text[:cut])
    trace = read_trace(path)
    assert [trace.names[name] for name in trace.device.name] == [f"kernel {index}" for index in range(13)]
    assert trace.rank == 1
    assert trace.damage == (f"{path}: is cut off after 13 events; what was not written is lost",)


def test_a_cut_gzip_gives_every_whole_event_before_the_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json.gz", _many(5000))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    trace = read_trace(path)
    assert 1000 < len(trace.device) < 5000
    assert any("gzip stream is cut off" in line for line in trace.damage)


def test_a_wrong_checksum_costs_no_event(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json.gz", _many(500))
    whole = bytearray(path.read_bytes())
    whole[-6] ^= 0xFF
    path.write_bytes(bytes(whole))
    trace = read_trace(path)
    assert len(trace.device) == 500
    assert trace.damage == (
        f"{path}: its gzip stream is damaged (its checksum does not match); what follows it is lost",
    )


def test_a_gzip_of_several_members_is_one_trace(tmp_path: Path) -> None:
    text = in_microseconds(kineto(document(_many(30)))).encode()
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text[:1000]) + gzip.compress(text[1000:]))
    trace = read_trace(path)
    assert len(trace.device) == 30
    assert trace.damage == ()


def test_one_unreadable_event_costs_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", _many(10), one_line)
    path.write_text(path.read_text().replace('"name": "kernel 4"', '"name" "kernel 4"'))
    trace = read_trace(path)
    assert len(trace.device) == 9
    assert len(trace.damage) == 1
    assert "1 of its events cannot be read and are left out" in trace.damage[0]


def test_process_groups_are_known_from_the_head_and_from_kernels(tmp_path: Path) -> None:
    group = {"pg_name": "7", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "pg_size": 2, "ranks": [0, 1]}
    stated: dict[str, Any] = {
        "Collective name": "allreduce",
        "Process Group Name": "9",
        "Process Group Description": "mesh_dp",
        "Process Group Ranks": "[0, 2]",
        "Group size": 2,
        "In msg nelems": 1024,
        "Out msg nelems": 1024,
        "dtype": "BFloat16",
        "Seq": 4,
    }
    trace = read_trace(
        write(tmp_path / "rank0.json", [kernel("renamed_kernel", 0, 10, **stated)], **distributed(0, 4, [group]))
    )
    assert {name: (one.description, one.size, one.ranks) for name, one in trace.groups.items()} == {
        "7": ("TENSOR_MODEL_PARALLEL_GROUP", 2, (0, 1)),
        "9": ("mesh_dp", 2, (0, 2)),
    }
    assert trace.device.work.tolist() == [Work.COMMUNICATION]
    (collective,) = trace.collectives
    assert (collective.operation, collective.group, collective.in_elements, collective.sequence) == (
        "allreduce",
        "9",
        1024,
        4,
    )


def test_the_host_is_stated_by_the_exporter_by_the_hooks_or_by_the_name_that_torch_gives(tmp_path: Path) -> None:
    def host(name: str, **head: Any) -> str:
        return read_trace(write(tmp_path / name, EVENTS, **head)).host

    hooks = {"perfscope": {"rank": 0, "host": "node7"}}
    assert host("rank0.json", host_name="node6", **hooks) == "node6"
    assert host("rank0.json", **hooks) == "node7"
    assert host(f"node_8_{PROCESS}.1700000000.pt.trace.json.gz") == "node_8"
    assert host(f"rank_{PROCESS + 1}.1700000000.pt.trace.json") == ""  # a number that is no process of the trace
    assert host("rank0.json") == ""


def of_process(process: int, delay: int) -> list[Event]:
    """Two steps of five launches; the kernels of process 1 run a step later than they are launched by the other one."""
    events = [
        {**step(number, 1000 * number + delay, 1000 * number + delay + 1000), "pid": process} for number in (0, 1)
    ]
    for number in range(10):
        launched = 200 * number + delay
        events += [
            call("cudaLaunchKernel", launched, launched + 5, launch=number, pid=process),
            kernel(f"of {process}", launched + 20, launched + 90, launch=number, device=process),
        ]
    return events


def test_each_kernel_has_the_launch_and_the_step_of_its_own_process(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "both.json", [*of_process(1, 0), *of_process(2, 90)]))
    assert (trace.device.correlation != ABSENT).all()
    assert trace.calls.process[trace.launch].tolist() == trace.device.device.tolist()
    assert trace.steps.process[trace.step].tolist() == trace.device.device.tolist()
    assert (trace.device.start_ns - trace.calls.start_ns[trace.launch] == 20).all()


OWN = [step(4, 0, 1_000_000), step(5, 1_000_000, 2_000_000), step(6, 2_000_000, 3_000_000)]
EDGES = [0, 1_000_000, 2_000_000, 3_000_000]
Layout: TypeAlias = Callable[[Mapping[str, Any]], str]


def steps_of(
    path: Path, layout: Layout, marks: Sequence[Event], activities: str | None = "operators"
) -> list[tuple[str, int, int]]:
    """The steps of a trace, with their times."""
    edges = [BASE_NS + edge for edge in EDGES] if activities == "light" else []
    metadata = {"first_step": 4, "pid": MAIN, "activities": activities, "edges_ns": edges}
    head = {"perfscope": metadata} if activities else {}
    operators = [span("cpu_op", "aten::mm", start, start + 50_000) for start in range(0, 3_000_000, 100_000)]
    trace = read_trace(write(path, [*operators, *marks], layout, baseTimeNanoseconds=BASE_NS, **head), BASIC_EVENTS)
    times = zip(trace.steps.name.tolist(), trace.steps.start_ns.tolist(), trace.steps.end_ns.tolist(), strict=True)
    return [(trace.name_of(name).removeprefix("ProfilerStep#"), start, end) for name, start, end in times]


EXPECTED = [("4", 0, 1_000_000), ("5", 1_000_000, 2_000_000), ("6", 2_000_000, 3_000_000)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("activities", ["operators", "light"])
@pytest.mark.parametrize(
    "others",
    [
        [step(3, 200_000, 1_200_000), step(4, 1_200_000, 2_200_000), step(5, 2_200_000, 2_999_000)],
        [step(4, 200_000, 1_200_000), step(5, 1_200_000, 2_200_000), step(6, 2_200_000, 2_999_000)],
        [step(5, 200_000, 1_200_000), step(6, 1_200_000, 2_200_000), step(7, 2_200_000, 2_999_000)],
        [step(number, 100_000 * number, 100_000 * (number + 1)) for number in range(2, 29)],
        [],
    ],
    ids=["a step behind", "the same numbers", "a step ahead", "for each micro-batch", "none"],
)
def test_other_marks_do_not_count(others: list[Event], activities: str, layout: Layout, tmp_path: Path) -> None:
    marks = [*others, *(OWN if activities == "operators" else [])]
    assert steps_of(tmp_path / "rank0.json", layout, marks, activities) == EXPECTED


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_marks_of_a_trace_that_is_not_ours_stay(layout: Layout, tmp_path: Path) -> None:
    marks = [step(1, 0, 1_500_000), step(2, 1_500_000, 2_900_000)]
    expected = [("1", 0, 1_500_000), ("2", 1_500_000, 2_900_000)]
    assert steps_of(tmp_path / "rank0.json", layout, marks, None) == expected
    assert steps_of(tmp_path / "rank1.json", layout, marks, "operators") == expected


def gather(mark: str, *launched: Event) -> list[Event]:
    """What a call to NCCL launches inside its annotation, and one copy behind it."""
    calls = [call("cudaMemcpyAsync", 100 + 10 * number, 105 + 10 * number, launch=number) for number in range(4)]
    behind = [
        call("cudaMemcpyAsync", 900, 905, launch=9),
        copy("Memcpy DtoD (Device -> Device)", 5_000, 5_100, launch=9),
    ]
    return [span("user_annotation", mark, 0, 500), *calls, *launched, *behind]


def copied(number: int, kind: str = "DtoD (Device -> Device)") -> Event:
    return copy(f"Memcpy {kind}", 1_000 + 100 * number, 1_100 + 100 * number, launch=number, stream=20)


@pytest.mark.parametrize(
    ("mark", "launched", "ranks", "expected"),
    [
        ("nccl:_all_gather_base", [copied(0), copied(1)], 3, [Work.COMMUNICATION] * 2),
        ("nccl2:all_gather_into_tensor", [copied(0)], 2, [Work.COMMUNICATION]),
        ("nccl:_all_gather_base", [copied(0, "HtoD (Pinned -> Device)")], 2, [Work.COPY]),
        ("nccl:_all_gather_base", [copied(0)], 1, [Work.COPY]),
        ("copies of mine", [copied(0), copied(1)], 3, [Work.COPY] * 2),
        (
            "nccl:all_gather",  # of lists: the result is copied into them on the device
            [kernel("ncclDevKernel_AllGather_RING_LL", 1_000, 1_100, launch=0, stream=20), copied(1)],
            2,
            [Work.COMMUNICATION, Work.COPY],
        ),
    ],
)
def test_copies_that_are_all_of_a_collective_communicate(
    mark: str, launched: list[Event], ranks: int, expected: list[Work], tmp_path: Path
) -> None:
    trace = read_trace(write(tmp_path / "rank0.json", gather(mark, *launched), **distributed(0, ranks)))
    assert trace.device.work.tolist() == [*expected, Work.COPY]
