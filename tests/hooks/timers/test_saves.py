"""Checkpoint saves are timed, counted once, and kept out of the steps' time."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
import types
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from perfscope.frameworks import WATCHED
from perfscope.hooks import start
from perfscope.hooks.capture import Capture
from perfscope.hooks.config import Config
from perfscope.hooks.selection import parse_windows
from tests.conftest import SCRIPTS, analysis, profile, run, step_lines

pytestmark = pytest.mark.slow


def lines(run_dir: Path) -> list[dict[str, Any]]:
    file = run_dir / "ranks" / "00000" / "checkpoints.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_every_way_of_saving_is_timed_with_its_bytes_and_no_step_pays_for_it(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "saved").mkdir()
    alone = run([sys.executable, SCRIPTS / "saving.py", "alone"], tmp_path)
    ended = profile(sys.executable, SCRIPTS / "saving.py", "saved", cwd=tmp_path)
    assert (ended.code, ended.stdout) == (0, alone.stdout), ended.stderr
    saves = lines(tmp_path / "RUN")
    assert [(save["source"], save["step"], save["path"], save["asynchronous"]) for save in saves] == [
        ("torch.save", 2, "saved/whole.pt", False),
        ("torch.save", 4, "saved/open.pt", False),
        ("dcp", 6, "saved/dcp", False),
        ("dcp", 8, "saved/async", True),
    ]
    files = [["whole.pt"], ["open.pt"], *([f"{name}/.metadata", f"{name}/__0_0.distcp"] for name in ("dcp", "async"))]
    sizes = [[(f"saved/{file}", (tmp_path / "saved" / file).stat().st_size) for file in group] for group in files]
    assert [[tuple(file) for file in save["files"]] for save in saves] == sizes
    assert [save["size_bytes"] for save in saves] == [sum(size for _, size in group) for group in sizes]
    assert [save["file_count"] for save in saves] == [1, 1, 2, 2]
    assert saves[3]["drained_ns"] >= saves[3]["end_ns"]
    steps = step_lines(tmp_path / "RUN")
    held = {line["step"]: line["save_ns"] for line in steps if "save_ns" in line}
    assert held == {save["step"] + 1: save["end_ns"] - save["start_ns"] for save in saves}
    assert [line["step"] for line in steps if line.get("draining")] in ([9], [9, 10])
    # A step's own time and what held it are what passed since the step before it, the hooks' own time apart.
    apart_ns = steps[6]["end_ns"] - steps[5]["end_ns"] - steps[6]["wall_ns"] - steps[6]["save_ns"]
    assert apart_ns >= 0
    results = analysis(tmp_path / "RUN")["results"]
    assert [save["step"] for save in results["saves"]["saves"]] == [2, 4, 6, 8]
    assert any("Checkpoint saves stalled training in 4 steps" in note for note in results["steps"]["notes"])
    assert any(note.startswith("No step time, median, throughput or MFU: ") for note in results["steps"]["notes"])


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Capture:
    made = Capture(Config(str(tmp_path), parse_windows("4-6"), nvml_hz=0))
    monkeypatch.setattr(start.PROCESS, "capture", made)
    return made


def patched(name: str, **members: Any) -> Any:
    """A module of one framework with our wrappers around its functions."""
    module = types.ModuleType(name)
    for member, value in members.items():
        setattr(module, member, value)
    for file in WATCHED[name]:
        for feature, patch in import_module(f"perfscope.hooks.frameworks.{file}").PATCHES[name].items():
            if "save" in feature or "bytes" in feature:
                patch(module, start.PROCESS)
    return module


def torch_save(obj: bytes, f: Any) -> None:
    if isinstance(f, (str, Path)):
        Path(f).write_bytes(obj)
    else:
        f.write(obj)


def test_megatrons_asynchronous_save_ends_when_its_queue_is_empty(capture: Capture, tmp_path: Path) -> None:
    options = types.SimpleNamespace(save=str(tmp_path / "checkpoints"), async_save=True, ckpt_format="torch_dist")
    unfinished = [1]
    training = patched(
        "megatron.training.checkpointing", save_checkpoint=lambda iteration, *_: "saved", get_args=lambda: options
    )
    queue = patched(
        "megatron.training.async_utils",
        maybe_finalize_async_save=lambda blocking=False: None,
        is_empty_async_queue=lambda: not unfinished,
    )
    writer = type("FileSystemWriterAsync", (), {"retrieve_write_results": lambda self: self.results})
    patched("megatron.core.dist_checkpointing.strategies.filesystem_async", FileSystemWriterAsync=writer)
    capture.step.steps = 7
    assert training.save_checkpoint(7, "model", "optimizer") == "saved"
    queue.maybe_finalize_async_save()
    assert lines(tmp_path) == []
    unfinished.clear()
    written = writer()
    written.results = [types.SimpleNamespace(size_in_bytes=3), types.SimpleNamespace(size_in_bytes=4)]
    written.retrieve_write_results()
    queue.maybe_finalize_async_save(blocking=True)
    (save,) = lines(tmp_path)
    assert (save["source"], save["step"], save["size_bytes"], save["asynchronous"]) == ("megatron", 7, 7, True)
    assert save["path"] == f"{options.save}/iter_0000007"
    assert save["start_ns"] <= save["end_ns"] <= save["drained_ns"]


def test_a_save_inside_a_save_is_a_part_of_it(capture: Capture, tmp_path: Path) -> None:
    serialization = patched("torch.serialization", save=torch_save)

    class DeepSpeedEngine:
        def save_checkpoint(self, save_dir: str) -> None:
            serialization.save(b"12345", f"{save_dir}/a.pt")
            serialization.save(b"123", f"{save_dir}/b.pt")

    patched("deepspeed.runtime.engine", DeepSpeedEngine=DeepSpeedEngine)
    DeepSpeedEngine().save_checkpoint(str(tmp_path))
    serialization.save(b"1", tmp_path / "c.pt")
    assert [(save["source"], save["size_bytes"]) for save in lines(tmp_path)] == [("deepspeed", 8), ("torch.save", 1)]


def test_what_is_no_checkpoint_is_not_timed(capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serialization = patched("torch.serialization", save=torch_save)
    memory = io.BytesIO()
    serialization.save(b"123", memory)
    monkeypatch.setattr(start.PROCESS, "capture", None)
    serialization.save(b"123", tmp_path / "converted.pt")
    assert memory.getvalue() == (tmp_path / "converted.pt").read_bytes() == b"123"
    assert lines(tmp_path) == []


def test_a_save_in_another_thread_holds_nothing(capture: Capture, tmp_path: Path) -> None:
    serialization = patched("torch.serialization", save=torch_save)
    thread = threading.Thread(target=serialization.save, args=(b"123", tmp_path / "a.pt"))
    thread.start()
    thread.join()
    (save,) = lines(tmp_path)
    assert (save["asynchronous"], save["size_bytes"]) == (True, 3)
    assert save["start_ns"] == save["end_ns"] <= save["drained_ns"]
    assert capture.save_timer.take_step_times() == (None, True)
    assert capture.save_timer.take_step_times() == (None, None)


def test_a_save_that_fails_fails_as_without_us_and_is_noted(capture: Capture, tmp_path: Path) -> None:
    def fail(obj: bytes, f: Any) -> None:
        raise ZeroDivisionError("the user's own")

    serialization = patched("torch.serialization", save=fail)
    with pytest.raises(ZeroDivisionError, match="the user's own"):
        serialization.save(b"1", tmp_path / "a.pt")
    assert not capture.dead
    assert lines(tmp_path) == []
    assert "a checkpoint save by torch.save failed" in (tmp_path / "ranks" / "00000" / "events.jsonl").read_text()
    result: Future[None] = Future()
    saver = patched(
        "torch.distributed.checkpoint.state_dict_saver",
        save=lambda *_a, **_k: None,
        async_save=lambda *_a, **_k: result,
    )
    assert saver.async_save({}, checkpoint_id="x") is result
    result.set_exception(OSError("disk full"))
    (save,) = lines(tmp_path)
    assert "drained_ns" not in save


class Hostile:
    """What may stand where a path or a writer is expected, and answers nothing."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def write(self, data: bytes) -> int:
        return len(data)


def test_an_object_that_answers_no_question_is_saved_to_as_without_us(capture: Capture, tmp_path: Path) -> None:
    serialization = patched("torch.serialization", save=torch_save)
    serialization.save(b"123", Hostile())
    saver = patched(
        "torch.distributed.checkpoint.state_dict_saver", save=lambda *_a, **_k: 5, async_save=lambda *_a, **_k: None
    )
    assert saver.save({}, storage_writer=Hostile()) == 5
    assert not capture.dead
    assert [set(save) & {"path", "size_bytes"} for save in lines(tmp_path)] == [set(), set()]


def test_the_time_of_the_hooks_around_a_save_is_time_of_the_hooks_in_its_step(
    capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")  # what a step records is asked of it
    serialization = patched("torch.serialization", save=torch_save)
    recorder = capture.files.claim()
    write = recorder.append

    writing_ns = list[int]()

    def write_slowly(name: str, record: Any) -> None:
        writing_ns.append(time.monotonic_ns())
        time.sleep(0.05)
        write(name, record)

    monkeypatch.setattr(recorder, "append", write_slowly)
    capture.on_step_end("optimizer", capture)
    for path in (tmp_path / "a.pt", tmp_path / "b.pt"):
        serialization.save(b"123", path)
    capture.on_step_end("optimizer", capture)
    capture.on_step_end("optimizer", capture)
    recorder.late.close()
    hook_ns = [line["hook_ns"] for line in step_lines(tmp_path)]
    assert hook_ns[1] >= 100_000_000 > hook_ns[2]
    saves = lines(tmp_path)
    assert all(save["end_ns"] <= began_ns for save, began_ns in zip(saves, writing_ns, strict=True))


def test_a_background_that_ends_before_its_call_is_recorded_once(capture: Capture, tmp_path: Path) -> None:
    timer = capture.save_timer

    def write() -> None:
        with timer.saving("lightning", "a.ckpt"):
            timer.on_file("a.ckpt", 3)
        timer.on_written_beside("lightning", "a.ckpt", failed=False)

    with timer.saving("lightning", "a.ckpt", is_asynchronous=True):
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        assert lines(tmp_path) == []
    (save,) = lines(tmp_path)
    assert save["start_ns"] <= save["drained_ns"] <= save["end_ns"]
    assert (save["files"], save["size_bytes"]) == ([["a.ckpt", 3]], 3)
    assert capture.save_timer.take_step_times()[1] is True
    assert capture.save_timer.take_step_times()[1] is None


def test_a_script_that_waits_for_an_asynchronous_save_is_stalled_by_it(capture: Capture, tmp_path: Path) -> None:
    waited_ns = list[int]()

    class Slow(Future[str]):
        def result(self, timeout: float | None = None) -> str:
            waited_ns.append(time.monotonic_ns())
            if not self.done():
                time.sleep(0.03)
                waited_ns.append(time.monotonic_ns())
                self.set_result("saved")
            return super().result(timeout)

    saver = patched(
        "torch.distributed.checkpoint.state_dict_saver",
        save=lambda *_a, **_k: None,
        async_save=lambda *_a, **_k: Slow(),
    )
    returned = saver.async_save({}, checkpoint_id="x")
    assert capture.save_timer.take_step_times()[0] is not None
    asked_ns = time.monotonic_ns()
    assert returned.result(timeout=10) == "saved"
    answered_ns = time.monotonic_ns()
    time.sleep(0.02)
    (save,) = lines(tmp_path)
    ((began_ns, ended_ns),) = save["waits"]
    assert save["end_ns"] <= began_ns <= waited_ns[0] <= waited_ns[1] - 30_000_000
    assert waited_ns[1] <= ended_ns
    assert ended_ns <= save["drained_ns"]
    stalled_ns = capture.save_timer.take_step_times()[0]
    assert stalled_ns is not None
    assert ended_ns - began_ns <= stalled_ns <= answered_ns - asked_ns
    assert returned.result() == "saved"  # it waits no longer
    assert capture.save_timer.take_step_times() == (None, None)
