"""Folders in which trainers keep metrics as JSON beside their text logs: each run is found, and found once."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from perfscope.engine.sides import read_side
from perfscope.sources.joblog import find_logs
from perfscope.sources.joblog.files import is_log, is_log_name
from tests.sources.joblog.test_metrics_files import DETECTRON2, MMCV_EPOCHS, MMENGINE, MMENGINE_TEXT

MMCV_TEXT = "2026-11-24 00:28:33,851 - mmcls - INFO - Start running, host: a@b, work_dir: /w\n"
DETECTRON2_TEXT = "[11/24 00:29:43] d2.engine.train_loop INFO: Starting training from iteration 0\n"
STAMP = "20261124_002809"
RESULTS = '{\n    "epoch": 3.0,\n    "train_runtime": 80.2776,\n    "train_steps_per_second": 1.495\n}\n'
STATE = '{\n  "log_history": [\n    {\n      "step": 120,\n      "train_runtime": 80.2776\n    }\n  ]\n}\n'
#: The file, its content, and the text log of the same run.
KEPT = {
    "detectron2": ("metrics.json", DETECTRON2, "log.txt", DETECTRON2_TEXT),
    "mmengine": (f"{STAMP}/vis_data/scalars.json", MMENGINE, f"{STAMP}/{STAMP}.log", MMENGINE_TEXT),
    "mmengine-dated": (f"{STAMP}/vis_data/{STAMP}.json", MMENGINE, f"{STAMP}/{STAMP}.log", MMENGINE_TEXT),
    "mmengine-published": ("rtmdet_tiny.log.json", MMENGINE, "rtmdet_tiny.log", MMENGINE_TEXT),
    "results": ("out/train_results.json", RESULTS, "out/trainer_state.json", STATE),
    "all-results": ("out/all_results.json", RESULTS, "out/train_results.json", RESULTS),
    "mmcv": (f"{STAMP}.log.json", MMCV_EPOCHS, f"{STAMP}.log", MMCV_TEXT),
}


def put(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(("name", "text", "log", "lines"), KEPT.values(), ids=KEPT)
class TestEachFramework:
    def test_its_file_is_found(self, tmp_path: Path, name: str, text: str, log: str, lines: str) -> None:
        path = put(tmp_path, name, text)
        assert find_logs([tmp_path]) == [path]
        assert is_log(path)
        assert is_log_name(f"runs/{name}")

    def test_a_compressed_one_is_found(self, tmp_path: Path, name: str, text: str, log: str, lines: str) -> None:
        path = put(tmp_path, f"{name}.gz", gzip.compress(text.encode()))
        assert find_logs([tmp_path]) == [path]

    def test_the_text_log_of_the_run_stands_for_it(
        self, tmp_path: Path, name: str, text: str, log: str, lines: str
    ) -> None:
        file, told = put(tmp_path, name, text), put(tmp_path, log, lines)
        assert find_logs([tmp_path]) == [told]
        assert find_logs([file, tmp_path]) == [file, told]

    def test_a_file_of_its_name_with_other_content_is_none(
        self, tmp_path: Path, name: str, text: str, log: str, lines: str
    ) -> None:
        for other in ("", "{}", '{"accuracy": 0.9, "iteration": 3}', "[1, 2]", b"\x1f\x8bbroken", text[:20]):
            path = put(tmp_path, name, other)
            assert not find_logs([tmp_path])
            assert not is_log(path)


def test_the_two_equal_files_of_mmengine_are_one_run(tmp_path: Path) -> None:
    scalars = put(tmp_path, f"{STAMP}/vis_data/scalars.json", MMENGINE)
    put(tmp_path, f"{STAMP}/vis_data/{STAMP}.json", MMENGINE)
    assert find_logs([tmp_path]) == [scalars]


def test_the_folder_itself_may_be_named_as_one_stands_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, f"{STAMP}/vis_data/scalars.json", MMENGINE)
    monkeypatch.chdir(path.parent)
    assert find_logs([Path()]) == [Path("scalars.json")]
    put(tmp_path, f"{STAMP}/{STAMP}.log", MMENGINE_TEXT)  # not in the folder that was named
    assert find_logs([Path()]) == [Path("scalars.json")]


def test_a_resumed_run_is_two_starts(tmp_path: Path) -> None:
    for stamp in (STAMP, "20261124_002823"):
        put(tmp_path, f"{stamp}/vis_data/scalars.json", MMENGINE)
    assert len(find_logs([tmp_path])) == 2


def test_other_json_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.json", "coco/instances.json", "tokenizer.json", "x.metrics.json", "2026.json"):
        put(tmp_path, name, MMENGINE)
    monkeypatch.setattr("perfscope.sources.joblog.files.read_blocks", lambda *_: pytest.fail("opened"))
    assert not find_logs([tmp_path])


def test_folders_with_such_files_are_compared_as_logs(tmp_path: Path) -> None:
    before = put(tmp_path / "a", "metrics.json", DETECTRON2)
    put(tmp_path / "b", "metrics.json", DETECTRON2)
    for side in (before, tmp_path / "b"):
        assert read_side(str(side)).name == str(side)


def test_the_states_in_checkpoints_are_one_run_with_the_last_one(tmp_path: Path) -> None:
    states = [put(tmp_path, f"out/checkpoint-{step}/trainer_state.json", STATE) for step in (90, 100, 500)]
    other = put(tmp_path, "other/checkpoint-1000/trainer_state.json", STATE)
    assert find_logs([tmp_path]) == [other, states[-1]]
    assert find_logs([states[0].parent]) == states[:1]
    assert find_logs([states[0]]) == [states[0]]
    last = put(tmp_path, "out/trainer_state.json", STATE)
    assert find_logs([tmp_path]) == [other, last]
