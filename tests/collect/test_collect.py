"""Parts of a run come together whole, or nothing is changed and the reason is said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from perfscope import wire
from perfscope.collect.parts import LocalPart
from perfscope.commands import collect as command
from perfscope.commands.collect import collect
from perfscope.engine.analysis_report import to_report
from perfscope.engine.run import Plan, analyze
from perfscope.errors import PerfscopeError, SourceError
from perfscope.outcome import Outcome
from perfscope.renderers import Format, render
from perfscope.wire.records import RankRecord, StepRecord, to_line
from tests.aggregation.test_tables import largest_file
from tests.conftest import ROOT, analysis, perfscope
from tests.engine.storing import copy_with_partials

S = 10**9
BEGAN = 1_800_000_000 * S


def part(
    root: Path,
    host: str,
    ranks: list[int],
    *,
    world_size: int = 4,
    run_id: str | None = "one",
    described: bool = False,
    began_s: float = 0,
    ahead_s: float = 0,
    steps: int = 10,
    attempt: int = 0,
    pid: int = 100,
    rendezvous: str | None = "node1:29500",
) -> Path:
    """What a host holds: ranks with a step a second, whose monotonic clock began at 0, and a trace and NVML samples."""
    began_ns = BEGAN + int((began_s + ahead_s) * S)
    for rank in ranks:
        folder = root / wire.RANKS_FOLDER / wire.rank_folder(rank, attempt)
        folder.mkdir(parents=True)
        record = RankRecord(
            rank, world_size, host, pid + rank, began_ns, 0, "3.11", run_id=run_id, rendezvous=rendezvous
        )
        (folder / wire.RANK_FILE).write_bytes(to_line(record))
        lines = [StepRecord(step, step * S, "deepspeed", wall_ns=S) for step in range(1, steps + 1)]
        (folder / wire.STEPS_FILE).write_bytes(b"".join(to_line(line) for line in lines))
        (folder / wire.EVENTS_FILE).touch()
        trace = root / wire.TRACES_FOLDER / f"{host}_{pid + rank}.17.pt.trace.json.gz"
        trace.parent.mkdir(exist_ok=True)
        trace.write_bytes(b"trace of rank %d" % rank)
    (root / wire.NVML_FOLDER).mkdir(exist_ok=True)
    (root / wire.NVML_FOLDER / f"{host}.jsonl").write_text(json.dumps({"note": f"none on {host}"}) + "\n")
    if described:
        facts = {"command": ["train"], "host": host, "run_id": run_id, "started_ns": began_ns}
        (root / wire.RUN_FILE).write_text(json.dumps(facts))
        (root / wire.BOOT_FOLDER).mkdir(exist_ok=True)
        (root / wire.BOOT_FOLDER / "config.json").write_text("{}")
    return root


def files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def bring(*parts: Path, into: Path) -> tuple[int, dict[str, Any], str]:
    outcome: Outcome = collect([str(one) for one in parts], into, None, Format.JSON)
    return outcome.exit_code, json.loads(outcome.output()), "\n".join(outcome.notes)


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    return (
        part(tmp_path / "a", "node1", [0, 1], described=True),
        part(tmp_path / "b", "node2", [2, 3]),
    )


def test_two_parts_become_a_run_that_analyze_reads(two: tuple[Path, Path], tmp_path: Path) -> None:
    before = [files(one) for one in two]
    for _ in range(2):  # again changes nothing
        code, answer, _ = bring(*two, into=tmp_path / "whole")
        assert (code, answer["ranks"], answer["missing_ranks"]) == (0, [0, 1, 2, 3], [])
    assert [files(one) for one in two] == before
    whole = files(tmp_path / "whole")
    for name, content in [*files(two[0]).items(), *files(two[1]).items()]:
        assert name.startswith((".boot", "run.json")) or whole[name] == content
    assert not any(name.startswith(".") for name in whole)
    assert not list(tmp_path.glob(".*"))
    assert analysis(tmp_path / "whole")["results"]["steps"]["count"] == 10


def test_a_part_of_another_run_is_refused_and_nothing_is_changed(two: tuple[Path, Path], tmp_path: Path) -> None:
    other = part(tmp_path / "c", "node3", [2, 3], run_id="another", rendezvous="node3:29500")
    with pytest.raises(SourceError, match="is not of the same run") as error:
        bring(two[0], other, into=tmp_path / "whole")
    assert "run another" in error.value.problem
    assert not (tmp_path / "whole").exists()
    bring(*two, into=tmp_path / "whole")
    whole = files(tmp_path / "whole")
    with pytest.raises(SourceError, match="is not of the same run"):
        bring(other, into=tmp_path / "whole")
    assert {name: content for name, content in files(tmp_path / "whole").items() if ".collect/" not in name} == whole


def test_hosts_that_each_ran_profile_are_one_run_where_their_ranks_met_at_one_time(tmp_path: Path) -> None:
    one = part(tmp_path / "a", "node1", [0, 1], described=True, run_id="x")
    other = part(tmp_path / "b", "node2", [2, 3], described=True, run_id="y", began_s=1)
    code, answer, said = bring(one, other, into=tmp_path / "whole")
    assert (code, answer["missing_ranks"]) == (0, []), said
    whole = tmp_path / "whole"
    assert json.loads((whole / wire.RUN_FILE).read_bytes())["host"] == "node1"
    assert sorted(path.name for path in (whole / wire.HOSTS_FOLDER).iterdir()) == ["node1.json", "node2.json"]
    bring(one, other, into=whole)  # again, with the descriptions in their places
    later = part(tmp_path / "c", "node2", [2, 3], described=True, run_id="z", began_s=3600)
    with pytest.raises(SourceError, match="is not of the same run"):
        bring(one, later, into=tmp_path / "other")


def test_a_different_file_of_the_same_name_is_never_overwritten(two: tuple[Path, Path], tmp_path: Path) -> None:
    bring(*two, into=tmp_path / "whole")
    steps = two[1] / wire.RANKS_FOLDER / "00002" / wire.STEPS_FILE
    steps.write_bytes(steps.read_bytes().replace(b"deepspeed", b"optimizer"))
    before = files(tmp_path / "whole")
    with pytest.raises(SourceError, match="exists with other content"):
        bring(two[1], into=tmp_path / "whole")
    assert {name: content for name, content in files(tmp_path / "whole").items() if ".collect/" not in name} == before


def test_a_part_that_went_on_replaces_what_its_job_writes_again(two: tuple[Path, Path], tmp_path: Path) -> None:
    places, whole = two[1] / wire.RANKS_FOLDER / "00002" / wire.PLACES_FILE, tmp_path / "whole"
    brought = whole / wire.RANKS_FOLDER / "00002" / wire.PLACES_FILE
    for content in (b'{"places":[]}', b'{"places": []}'):  # after the last step, too
        places.write_bytes(content)
        bring(*two, into=whole)
        assert brought.read_bytes() == content
    earlier = part(tmp_path / "earlier", "node2", [2, 3], steps=9)
    (earlier / wire.RANKS_FOLDER / "00002" / wire.PLACES_FILE).write_bytes(b"{}")
    bring(earlier, into=whole)
    assert brought.read_bytes() == content


def test_a_rank_that_moved_to_another_host_after_a_restart_has_two_attempts_in_order_of_time(tmp_path: Path) -> None:
    first = part(tmp_path / "a", "node1", [0], world_size=2)
    second = part(tmp_path / "b", "node2", [0, 1], world_size=2, began_s=20)
    for parts in ([first, second], [second, first]):
        whole = tmp_path / f"whole-{parts[0].name}"
        for one in parts:
            bring(one, into=whole)
        hosts = {
            folder.name: json.loads((folder / wire.RANK_FILE).read_bytes())["host"]
            for folder in (whole / wire.RANKS_FOLDER).iterdir()
        }
        assert hosts == {"00000": "node1", "00000.1": "node2", "00001": "node2"}


def test_two_processes_that_were_one_rank_at_once_are_a_contradiction(tmp_path: Path) -> None:
    one = part(tmp_path / "a", "node1", [0, 1])
    other = part(tmp_path / "b", "node2", [1, 2])
    with pytest.raises(SourceError, match="are rank 1 at the same time: process 101 on node1 and 101 on node2"):
        bring(one, other, into=tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_a_copy_that_was_interrupted_goes_on(
    two: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(command, "_merge", fail)
        with pytest.raises(KeyboardInterrupt):
            bring(*two, into=tmp_path / "whole")
    assert not (tmp_path / "whole").exists()
    code, answer, _ = bring(*two, into=tmp_path / "whole")
    assert code == 0
    assert [one["copied_files"] for one in answer["parts"]] == [0, 0]
    assert analysis(tmp_path / "whole")["results"]["steps"]["count"] == 10


def test_a_file_that_the_job_renames_meanwhile_comes_under_its_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = part(tmp_path / "a", "node1", [0], world_size=1)
    steps = one / wire.RANKS_FOLDER / "00000" / wire.STEPS_FILE
    copy = LocalPart.copy

    def rename_and_copy(self: LocalPart, names: Iterable[str], folder: Path) -> None:
        if steps.exists():
            steps.rename(steps.with_name("steps.000001.jsonl"))
        copy(self, names, folder)

    monkeypatch.setattr(LocalPart, "copy", rename_and_copy)
    assert bring(one, into=tmp_path / "whole")[0] == 0
    assert analysis(tmp_path / "whole")["results"]["steps"]["count"] == 10


def test_a_disk_that_fills_is_told_and_the_copy_goes_on_when_there_is_room(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    (two[0] / wire.TRACES_FOLDER / "large.pt.trace.json.gz").write_bytes(bytes(20_000))
    names = [str(part) for part in two]
    with largest_file(10_000), pytest.raises(SourceError, match="cannot be written: File too large"):
        collect(names, tmp_path / "whole", None, Format.JSON)
    assert not (tmp_path / "whole").exists()
    assert not list(tmp_path.rglob(".large*"))
    assert collect(names, tmp_path / "whole", None, Format.JSON).exit_code == 0
    assert (tmp_path / "whole" / wire.TRACES_FOLDER / "large.pt.trace.json.gz").stat().st_size == 20_000


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "nowhere is not a folder"),
        (["-oProxyCommand=x:path"], "is not a host"),
        (["s3://bucket/run"], "is a URL"),
        (["whole"], "is both a part and the merged run"),
        (["empty"], "is not a part of a run"),
    ],
)
def test_what_cannot_be_right_is_said(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    part(tmp_path / "whole", "node1", [0])
    (tmp_path / "empty").mkdir()
    with pytest.raises(PerfscopeError, match=says):
        collect(words, tmp_path / ("whole" if words == ["whole"] else "new"), None, Format.JSON)


def test_a_part_on_another_host_comes_over_ssh(two: tuple[Path, Path], tmp_path: Path) -> None:
    ssh = """sh -c 'test "$0" = node2 && eval "$1"'"""  # it runs the command here
    (two[1] / "a 'b.txt").write_text("x")
    names = [str(two[0]), f"node2:{two[1]}"]
    outcome = collect(names, tmp_path / "whole", ssh, Format.JSON)
    assert (outcome.exit_code, outcome.notes) == (0, ())
    bring(*two, into=tmp_path / "local")
    over_ssh, local = files(tmp_path / "whole"), files(tmp_path / "local")
    assert {**over_ssh, wire.COLLECTED_FILE: b""} == {**local, wire.COLLECTED_FILE: b""}


def test_a_host_that_does_not_answer_keeps_nobody_else(two: tuple[Path, Path], tmp_path: Path) -> None:
    ended = perfscope(
        "collect", two[0], "nowhere.invalid:/run", "-o", tmp_path / "whole", "--ssh", "false", cwd=tmp_path
    )
    assert ended.code == 4
    assert "warning: nowhere.invalid:/run: exit status 1" in ended.stderr
    assert "2 of 4 ranks are missing: 2-3" in ended.stderr
    assert (tmp_path / "whole" / wire.RANKS_FOLDER / "00001").is_dir()


NODES = ROOT / "fixtures" / "nodes"
LIGHT = ROOT / "fixtures" / "light" / "host_bound"


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    return [copy_with_partials(NODES / name, tmp_path) for name in ("node1", "node2")]


def bring_traces(parts: list[Path], into: Path, **options: Any) -> dict[str, Any]:
    outcome = collect([str(part) for part in parts], into, format=Format.JSON, **options)
    assert outcome.report is not None
    data: dict[str, Any] = json.loads(render(outcome.report, Format.JSON))
    return data


def names(run: Path) -> list[str]:
    return sorted(path.name.partition("_")[0] for path in (run / "traces").rglob("*.gz"))


def answer(run: Path) -> list[str]:
    plan = Plan(only=frozenset({"steps", "breakdown", "host", "overlap", "idle", "collectives", "stragglers"}))
    return [render(to_report(analyze([run], plan)), to) for to in Format]


def test_a_run_of_partials_alone_gives_the_answers_of_its_traces(parts: list[Path], tmp_path: Path) -> None:
    data = bring_traces(parts, tmp_path / "run")
    expected = answer(tmp_path / "run")
    assert [part["left_traces"] for part in data["parts"]] == [0, 0]
    shutil.rmtree(tmp_path / "run")
    data = bring_traces(parts, tmp_path / "run", traces="none")
    assert names(tmp_path / "run") == []
    assert [part["left_traces"] for part in data["parts"]] == [1, 1]
    assert answer(tmp_path / "run") == expected


def test_traces_come_when_somebody_asks_for_them(parts: list[Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    bring_traces(parts, run, traces="none")
    partials = {path.name: path.read_bytes() for path in run.rglob("*.partials")}
    data = bring_traces(parts, run, traces="1")
    assert names(run) == ["node2"]
    assert [part["left_traces"] for part in data["parts"]] == [1, 0]
    bring_traces(parts, run, traces="1,5-7")
    assert names(run) == ["node2"]
    bring_traces(parts, run, traces="all")
    assert names(run) == ["node1", "node2"]
    assert {path.name: path.read_bytes() for path in run.rglob("*.partials")} == partials
    assert not analyze([run]).damage


def test_a_trace_without_partials_comes_along(parts: list[Path], tmp_path: Path) -> None:
    next(parts[0].rglob("*.partials")).unlink()
    content = next(parts[1].rglob("*.partials"))
    content.write_bytes(content.read_bytes()[:-9])
    data = bring_traces(parts, tmp_path / "run", traces="none")
    assert names(tmp_path / "run") == ["node1", "node2"]
    assert [part["left_traces"] for part in data["parts"]] == [0, 0]
