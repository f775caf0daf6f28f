"""Claims about merged timelines: every event of every rank, moved exactly; tracks of all ranks that add up."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.commands.report_cli import run
from tests.conftest import ROOT
from tests.viewers.test_perfetto import breaches

Event = dict[str, Any]
MergeInto = Callable[..., "MergedFile"]


@dataclass(frozen=True)
class MergedFile:
    """The merged file, and what the command said of it in JSON."""

    path: Path
    said: Event
    document: Event

    @property
    def events(self) -> list[Event]:
        return list(self.document["traceEvents"])

    def process(self, beginning: str) -> int:
        """The number of the process whose name begins so."""
        names = {
            event["pid"]: event["args"]["name"]
            for event in self.events
            if event["ph"] == "M" and event["name"] == "process_name"
        }
        (number,) = (number for number, name in names.items() if name.startswith(beginning))
        return int(number)

    def track(self, name: str) -> list[Event]:
        """The slices of a track of all ranks, in order."""
        threads = {
            event["tid"]
            for event in self.events
            if event["ph"] == "M" and event["name"] == "thread_name" and event["args"]["name"] == name
        }
        slices = [event for event in self.events if event["ph"] == "X" and event["pid"] == 1]
        return [event for event in slices if event["tid"] in threads]


def parse(path: Path) -> Event:
    """A trace with its times as exact numbers."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document: Event = json.loads(text, parse_float=Decimal)
    return document


@pytest.fixture(scope="module")
def merged_files() -> dict[tuple[str, ...], MergedFile]:
    """Those of a module's tests by what was typed, so that none is made twice."""
    return {}


@pytest.fixture
def merge_into(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], merged_files: dict[tuple[str, ...], MergedFile]
) -> MergeInto:
    def merge(*words: object, name: str = "all.json.gz", code: int = 0) -> MergedFile:
        typed = *map(str, words), name
        if typed not in merged_files:
            target = tmp_path / name
            answer = run(capsys, "export", *words, "-o", target, "--format", "json")
            assert answer.code == code, answer.err
            merged_files[typed] = MergedFile(target, answer.data, parse(target))
        return merged_files[typed]

    return merge


FIXTURES = ROOT / "fixtures"
BASE = FIXTURES / "whatif" / "base"
PIPELINE = FIXTURES / "pipeline" / "pp4_1f1b_m8"
GLOO = FIXTURES / "traces" / "gloo2"


def traces_of(merged: MergedFile) -> list[tuple[int, Event, Decimal]]:
    """Rank, document and shift of each trace: what must be added to its microseconds."""
    answer = []
    bases = []
    for trace in merged.said["traces"]:
        document = parse(ROOT / trace["path"])
        base_us = Decimal(document.get("baseTimeNanoseconds", 0)) / 1000
        bases.append(base_us - Decimal(str(trace["offset_us"])))
        answer.append((trace["rank"], document))
    first = min(
        Decimal(event["ts"]) + base
        for (_, document), base in zip(answer, bases, strict=True)
        for event in document["traceEvents"]
        if event.get("name", "").startswith("ProfilerStep#")
        or event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        if event["ph"] == "X"
        if event.get("cat") != "gpu_user_annotation"
    )
    return [(rank, document, base - first) for (rank, document), base in zip(answer, bases, strict=True)]


def _arguments(event: Event) -> str:
    return json.dumps(event.get("args"), default=str)


@pytest.mark.parametrize("folder", [BASE, PIPELINE, GLOO], ids=lambda folder: folder.name)
def test_every_event_is_there_once_and_moved_by_the_offset_of_its_rank(folder: Path, merge_into: MergeInto) -> None:
    merged = merge_into(folder)
    document = json.loads(gzip.decompress(merged.path.read_bytes()))
    assert breaches(document) == [], "it keeps every rule of viewers"
    assert all(isinstance(event["pid"], int) and isinstance(event["tid"], int) for event in document["traceEvents"])
    own = [event for event in merged.events if event["pid"] != 1 and event["ph"] not in "MC"]
    moved = Counter(
        (event["pid"] // 10_000, event["ph"], event["name"], event["ts"], event.get("dur"), _arguments(event))
        for event in own
    )
    expected: Counter[tuple[object, ...]] = Counter()
    for position, (_, document, shift_us) in enumerate(traces_of(merged), 1):
        for event in document["traceEvents"]:
            if event["ph"] != "M":
                time_us = Decimal(event["ts"]) + shift_us
                expected[position, event["ph"], event["name"], time_us, event.get("dur"), _arguments(event)] += 1
    assert moved == expected
    assert sum(trace["events"] for trace in merged.said["traces"]) >= len(own)


def test_of_chosen_steps_an_arrow_is_kept_with_both_of_its_ends(merge_into: MergeInto, tmp_path: Path) -> None:
    """The profiler draws a launch and its kernel as two events of one number; one end alone points nowhere."""
    folder = tmp_path / "traces"
    shutil.copytree(GLOO, folder)
    path = sorted(folder.glob("*.json.gz"))[0]
    document = json.loads(gzip.decompress(path.read_bytes()))
    step = next(event for event in document["traceEvents"] if event.get("name", "").startswith("ProfilerStep#"))
    end = {"cat": "ac2g", "name": "ac2g", "pid": step["pid"], "tid": step["tid"], "ts": step["ts"]}
    document["traceEvents"] += [{**end, "ph": ph, "id": number} for ph, number in (("s", 7), ("f", 7), ("s", 8))]
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    merged = merge_into(folder, "--steps", step["name"].partition("#")[2], name="arrows.json.gz")
    assert sorted(event["ph"] for event in merged.events if event.get("cat") == "ac2g") == ["f", "s"]


def test_a_shifted_clock_is_found(merge_into: MergeInto, tmp_path: Path) -> None:
    """Two hosts, the clock of one an hour and some nanoseconds ahead: the merged ends are where they were."""
    for name, ahead_ns in (("straight", 0), ("shifted", 3_600_000_012_345)):
        for rank in (0, 1):
            document = json.loads(gzip.decompress((BASE / f"rank{rank}.json.gz").read_bytes()))
            document["baseTimeNanoseconds"] += ahead_ns * rank
            document["host_name"] = f"host{rank}"
            target = tmp_path / name / f"rank{rank}.json.gz"
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(gzip.compress(json.dumps(document).encode()))
    straight, shifted = (merge_into(tmp_path / name, name=f"{name}.json.gz") for name in ("straight", "shifted"))
    offsets = [one.said["traces"][1]["offset_us"] for one in (straight, shifted)]
    assert offsets[1] - offsets[0] == pytest.approx(3_600_000_012.345, abs=0.0011)
    times = [[event["ts"] for event in one.events if event["pid"] // 10_000 == 2 and event["ph"] == "X"]
             for one in (straight, shifted)]  # fmt: skip
    assert times[0] == times[1]


def test_the_states_of_a_device_are_its_breakdown(merge_into: MergeInto, capsys: pytest.CaptureFixture[str]) -> None:
    merged = merge_into(BASE)
    answer = run(capsys, "analyze", BASE, "--only", "breakdown,idle", "--format", "json").data["results"]
    for rank, measured in enumerate(answer["breakdown"]["ranks"]):
        states = merged.track(f"rank {rank}: device {rank}")
        assert all(state["ts"] + state["dur"] == following["ts"] for state, following in pairwise(states))
        total: Counter[str] = Counter()
        for state in states:
            name = state["name"]
            total["idle" if name.startswith("idle: ") else name] += state["dur"]
        window_us = Decimal(str(measured["window_us"]))
        assert sum(total.values()) == states[-1]["ts"] + states[-1]["dur"] - states[0]["ts"]
        assert total["idle"] >= 0
        assert sum(total.values()) >= window_us
        assert {state["name"] for state in states} >= {"compute", "compute beside communication"}


def test_an_operation_is_an_arrow_from_its_first_rank_to_its_last_one(merge_into: MergeInto) -> None:
    merged = merge_into(BASE)
    points: dict[int, list[Event]] = defaultdict(list)
    for event in merged.events:
        if event.get("cat") == "operation of several ranks":
            points[event["id"]].append(event)
    assert len(points) == merged.said["operations"] > 0
    slices = {
        (event["tid"], event["ts"]): event["args"]
        for event in merged.events
        if event["ph"] == "X" and event["pid"] == 1
    }
    for begin, end in points.values():
        assert (begin["ph"], end["ph"]) == ("s", "f")
        assert begin["ts"] <= end["ts"]
        told = slices[begin["tid"], begin["ts"]]
        assert told["ranks"] == [told["first_to_arrive"], told["last_to_arrive"]]
        assert told["waiting_us"] >= 0
        assert slices[end["tid"], end["ts"]]["ranks"] == told["ranks"]


def test_a_stage_of_a_pipeline_runs_a_pass_or_has_a_bubble(merge_into: MergeInto) -> None:
    merged = merge_into(PIPELINE)
    for rank in range(4):
        passes, bubbles = merged.track(f"rank {rank}: passes"), merged.track(f"rank {rank}: bubbles")
        assert {part["name"].split()[0] for part in passes} == {"forward", "backward"}
        assert bubbles
        for bubble in bubbles:
            end = bubble["ts"] + bubble["dur"]
            assert all(part["ts"] >= end or part["ts"] + part["dur"] <= bubble["ts"] for part in passes)
    # In 1F1B the first stage waits in the middle of a step, the last one at its beginning and at its end.
    begins = [merged.track(f"rank {rank}: passes")[0]["ts"] for rank in range(4)]
    assert begins == sorted(begins)


def test_chosen_ranks_and_steps_are_all_that_is_left(merge_into: MergeInto) -> None:
    whole, part = merge_into(BASE), merge_into(BASE, "--ranks", "1", "--steps", "4", name="part.json.gz")
    assert [trace["rank"] for trace in part.said["traces"]] == [1]
    assert part.said["traces"][0]["offset_us"] == whole.said["traces"][1]["offset_us"]
    (step,) = part.track("rank 1: steps")[-1:]
    assert step["name"] == "step 4"
    kernels = [event for event in part.events if event.get("cat") == "kernel"]
    assert 0 < len(kernels) < sum(event.get("cat") == "kernel" for event in whole.events)
    arrows: dict[int, set[str]] = defaultdict(set)
    for event in part.events:
        if event["ph"] in "stf" and event["pid"] != 1:
            arrows[event["id"]].add(event["ph"])
    assert all({"s", "f"} <= phases for phases in arrows.values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "400"], "they hold ranks 0, 1, steps 3, 4"),
        (["--ranks", "7"], "they hold ranks 0, 1"),
        (["--ranks", "5-2"], "is not a list of numbers and ranges"),
    ],
)
def test_a_choice_that_names_nothing_is_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run(capsys, "export", BASE, "-o", tmp_path / "all.json.gz", *words)
    assert answer.code in (1, 2)
    assert message in answer.err
    assert not list(tmp_path.iterdir())


def test_no_trace_is_overwritten_and_no_part_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(BASE, tmp_path / "traces")
    trace = tmp_path / "traces" / "rank0.json.gz"
    content = trace.read_bytes()
    answer = run(capsys, "export", tmp_path / "traces", "-o", trace)
    assert (answer.code, trace.read_bytes()) == (2, content)
    assert run(capsys, "export", BASE, "-o", tmp_path / "all.csv").code == 2
    assert run(capsys, "export", BASE, "-o", tmp_path / "nowhere" / "all.json").code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["traces"]


def test_a_damaged_trace_gives_what_is_left_of_it(
    merge_into: MergeInto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "damaged"
    shutil.copytree(BASE, source)
    trace = source / "rank1.json.gz"
    trace.write_bytes(trace.read_bytes()[: trace.stat().st_size // 2])
    merged = merge_into(source, code=4)
    whole = merge_into(BASE, name="whole.json.gz")
    assert merged.said["traces"][0]["events"] == whole.said["traces"][0]["events"]
    assert 0 < merged.said["traces"][1]["events"] < whole.said["traces"][1]["events"]
    assert any("cut off" in warning for warning in merged.said["warnings"])
