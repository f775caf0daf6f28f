"""One row a checkpoint, over all of its files and ranks; its share of the run is a union of intervals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.saves import SaveTimes, analyze, summarize_saves
from perfscope.sources.runs.run import read_run
from perfscope.tables.saves import Saves, SaveTiming

SECOND = 10**9


def record(start: float, end: float, path: str, *, source: str = "torch.save", step: int = 2, **more: Any) -> Any:
    fields = {"start_ns": int(start * SECOND), "end_ns": int(end * SECOND), "source": source, "step": step}
    files = more.pop("files", [[path, 100]])
    known = {} if files is None else {"files": files, "file_count": len(files), "size_bytes": sum(s for _, s in files)}
    return {**fields, "path": path, "asynchronous": False, **known, **more}


def write_run(folder: Path, records: dict[int, list[Any]], hosts: dict[int, tuple[str, int]] | None = None) -> Path:
    """A run of 10 steps of 1 s; each host has a clock of its own."""
    (folder / "run.json").write_text('{"command": ["train"]}')
    for rank, lines in records.items():
        host, offset_ns = (hosts or {}).get(rank, ("h", 0))
        place = folder / "ranks" / f"{rank:05d}"
        place.mkdir(parents=True)
        who = {"rank": rank, "world_size": len(records), "host": host, "pid": 1, "python": "3.12"}
        clock = {"wall_ns": 10**18 + 300 * rank, "monotonic_ns": offset_ns}  # not read at quite the same moment
        (place / "rank.json").write_text(json.dumps({**who, **clock}))
        (place / "checkpoints.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        steps = [
            {"step": n, "end_ns": n * SECOND + offset_ns, "source": "optimizer", "wall_ns": SECOND}
            for n in range(1, 11)
        ]
        (place / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    return folder


def times(tmp_path: Path, records: dict[int, list[Any]]) -> SaveTimes:
    return analyze(read_run(write_run(tmp_path, records)))


def test_files_of_one_folder_between_two_steps_are_one_checkpoint(tmp_path: Path) -> None:
    first = [record(2, 2.1, "out/a/model.pt"), record(2.1, 2.3, "out/a/optim.pt"), record(2.3, 2.4, "out/b/model.pt")]
    later = [record(5, 5.2, "out/a/model.pt", step=5), record(5.5, 5.7, "out/a/model.pt", step=5)]
    saves = times(tmp_path, {0: first + later}).saves
    assert [(save.step, save.path, save.files) for save in saves] == [
        (2, "out/a", 2),
        (2, "out/b/model.pt", 1),
        (5, "out/a/model.pt", 1),
        (5, "out/a/model.pt", 1),  # the same file once more is another checkpoint
    ]
    assert saves[0].blocked_s == pytest.approx(0.3)
    assert saves[0].bytes == 200
    assert saves[0].bytes_per_s == pytest.approx(200 / 0.3)


@pytest.mark.parametrize(
    "paths",
    [
        ("ckpt/step-2/model", "ckpt/step-2/optim"),
        ("ckpt/step-2", "ckpt/step-2/optimizer_0"),
        ("ckpt/step-2/rank0/model.pt", "ckpt/step-2/rank_1/model.pt"),
        ("ckpt/step-2/mp_rank_00_001/model_optim_rng.pt", "ckpt/step-2/mp_rank_00_002/model_optim_rng.pt"),
    ],
)
def test_folders_of_parts_and_of_ranks_belong_to_one_checkpoint(tmp_path: Path, paths: tuple[str, str]) -> None:
    sources = ["torch.save" if path.endswith(".pt") else "dcp" for path in paths]
    lines = [
        record(2 + n, 2.5 + n, path, source=source, files=[[path if source != "dcp" else f"{path}/__0_0.distcp", 7]])
        for n, (path, source) in enumerate(zip(paths, sources, strict=True))
    ]
    (save,) = times(tmp_path, {0: lines}).saves
    assert (save.path, save.files, save.bytes) == ("ckpt/step-2", 2, 14)


def test_ranks_that_write_the_same_file_count_it_once(tmp_path: Path) -> None:
    inside: dict[str, Any] = {"source": "transformers", "files": []}
    result = times(
        tmp_path,
        {
            0: [record(2, 4, "out", source="transformers", files=[["out/model.safetensors", 50]])],
            1: [record(2, 4.5, "out", **inside)],
            2: [record(2, 4.25, "out", **inside)],
            3: [record(2, 3, "out/model.safetensors", files=[["out/model.safetensors", 50]])],
            4: [],
        },
    )
    (save,) = result.saves
    assert (save.ranks, save.files, save.bytes) == (4, 1, 50)
    assert (save.blocked_s, save.slowest_rank) == (2.5, 1)


def test_the_share_is_a_union_of_the_stalls_of_all_ranks_on_one_clock(tmp_path: Path) -> None:
    """Two ranks of one host, and one whose clock begins much earlier; rank 0 waits for the end of its save, too."""
    ahead_s = 10**6
    first = record(2, 4, "out/a.pt", files=[["a", 1]]) | {"waits": [[6 * SECOND, 7 * SECOND]]}
    records = {
        0: [first],
        1: [record(3, 5, "out/b.pt", files=[["b", 1]])],
        2: [record(ahead_s + 3.5, ahead_s + 5.5, "out/c.pt", files=[["c", 1]])],
    }
    hosts = {0: ("a", 0), 1: ("a", 0), 2: ("b", ahead_s * SECOND)}
    result = analyze(read_run(write_run(tmp_path, records, hosts)))
    assert result.blocked_s == pytest.approx(4.5, abs=1e-5)  # from 2 to 5.5 s, and from 6 to 7 s
    assert result.blocked_share == pytest.approx(0.45, abs=1e-6)
    assert sum(save.blocked_share or 0 for save in result.saves) == pytest.approx(result.blocked_share)


def test_a_share_that_cannot_be_is_left_out() -> None:
    timing = SaveTiming(0, None, 5, 10 * SECOND, None, 100, asynchronous=False, source="the log's timer")
    result = summarize_saves(Saves((timing,), 4 * SECOND))
    assert result.blocked_share is None
    assert result.saves[0].blocked_share is None
    assert "The share of the run is left out: saves took 10.000 s, and the run only 4.000 s." in result.notes


def test_what_goes_on_beside_training_is_apart(tmp_path: Path) -> None:
    beside: dict[str, Any] = {"source": "dcp", "asynchronous": True}
    (save,) = times(
        tmp_path,
        {
            0: [record(2, 2.5, "out", **beside, files=[["out/0", 3]], drained_ns=7 * SECOND)],
            1: [record(2, 3, "out", **beside, files=[["out/1", 5]], drained_ns=6 * SECOND)],
        },
    ).saves
    assert (save.blocked_s, save.slowest_rank) == (1.0, 1)
    assert (save.background_s, save.drained_s, save.bytes_per_s) == (4.5, 5.0, 1.6)
    assert (save.files, save.bytes, save.asynchronous) == (2, 8, True)


def test_a_tokenizer_alone_is_no_checkpoint(tmp_path: Path) -> None:
    alone = record(1, 1.1, "out/tokenizer", source="transformers", step=0, files=[["out/tokenizer/tokenizer.json", 9]])
    result = times(tmp_path, {0: [alone, record(2, 3, "out/model.pt")]})
    assert [save.path for save in result.saves] == ["out/model.pt"]
    assert "1 save of configurations or tokenizers alone are not listed." in result.notes
