"""The pieces of the capture that need no training."""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
from pathlib import Path

import pytest

from perfscope.hooks.config import Config
from perfscope.hooks.rank_files import Recorder
from perfscope.hooks.reach.imports import PostImportFinder
from perfscope.hooks.reach.launch import build_environment, find_obstacles, prepare
from perfscope.hooks.record_files import replace_file
from perfscope.hooks.selection import StepWindow, parse_windows
from perfscope.hooks.side_process import _create_file
from perfscope.wire.records import StepRecord, to_line
from tests.conftest import run


def test_windows_are_sorted_and_inclusive() -> None:
    assert parse_windows("7-9, 2-4,12") == (StepWindow(2, 4), StepWindow(7, 9), StepWindow(12, 12))


@pytest.mark.parametrize("text", ["", "1-3", "0", "3-2", "2-4,4-6", "2-4,5", "a", "2-", "-3", "2--4", "2,,4"])
def test_windows_that_cannot_be_profiled_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"window|steps"):
        parse_windows(text)


def test_a_config_survives_both_ways_of_travelling() -> None:
    config = Config("/a b/ü", parse_windows("2-4,7"), frozenset({0, 3}), shapes=True, nvml_path=None)
    assert Config.from_json(config.to_json()) == config
    word = config.to_environment()
    assert word.replace("-", "").replace("_", "").isalnum()
    assert Config.from_environment(word) == config


def test_a_module_is_patched_before_its_importer_binds_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "watched_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    finder = PostImportFinder(frozenset({"watched_module"}), lambda _name, module: setattr(module, "value", 2))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    from watched_module import value  # type: ignore[import-not-found]

    module = sys.modules.pop("watched_module")
    assert value == 2
    assert module.__spec__ is not None
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"
    assert module.__loader__ is module.__spec__.loader


def test_the_shadowed_sitecustomize_still_runs_and_sys_path_is_as_it_was(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("print('the user\\'s own')\n")
    config = Config(str(tmp_path / "RUN"), parse_windows("4-6"))
    inherited = {**os.environ, "PYTHONPATH": str(site)}
    hooked = build_environment(config, prepare(config), inherited)
    code = "import sys, sitecustomize; print([p for p in sys.path if p]); print(sitecustomize.__file__)"
    with_hook = run([sys.executable, "-c", code], tmp_path, PYTHONPATH=hooked["PYTHONPATH"])
    without = run([sys.executable, "-c", code], tmp_path, PYTHONPATH=str(site))
    assert with_hook.stdout.startswith("the user's own")
    assert with_hook == without


def test_a_foreign_module_in_the_script_is_left_alone(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "perfscope").mkdir(parents=True)
    (site / "perfscope" / "__init__.py").write_text("mine = True\n")
    config = Config(str(tmp_path / "RUN"), parse_windows("4-6"))
    hooked = build_environment(config, prepare(config), {**os.environ, "PYTHONPATH": str(site)})
    for order in ("perfscope, torch", "torch, perfscope"):
        ended = run(
            [sys.executable, "-c", f"import {order}; print(perfscope.mine)"],
            tmp_path,
            PYTHONPATH=hooked["PYTHONPATH"],
        )
        assert (ended.code, ended.stdout) == (0, "True\n")
        assert ended.stderr.count("another project's module named perfscope") == 1


def test_what_keeps_the_hook_away_is_said_before_the_start() -> None:
    assert find_obstacles(["python", "train.py"]) == []
    assert "ignores PYTHONPATH" in find_obstacles(["python3", "-I", "train.py"])[0]


def test_a_second_process_of_a_rank_has_a_folder_of_its_own(tmp_path: Path) -> None:
    first, second = Recorder(str(tmp_path), 3), Recorder(str(tmp_path), 3)
    for recorder in (first, second):
        recorder.late.add(recorder.steps_file, to_line, StepRecord(1, 1, "optimizer"))
        recorder.late.close()
    assert sorted(path.name for path in (tmp_path / "ranks").iterdir()) == ["00003", "00003.1"]
    assert (tmp_path / "ranks" / "00003.1" / "steps.jsonl").read_text() == (
        '{"step":1,"end_ns":1,"source":"optimizer"}\n'
    )


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "rank.json"
    replace_file(str(file), b"1")
    with pytest.raises(OSError, match="directory"):
        replace_file(str(tmp_path / "missing" / "rank.json"), b"2")
    assert [path.name for path in tmp_path.iterdir()] == ["rank.json"]


LONGEST_S = 60
SCRIPT = "import os, sys, time\nprint(os.getpid(), *sys.argv[1:], __name__, flush=True)\ntime.sleep(60)\n"
#: What a training does that waits for all of its children.
TRAINING = """
import os, sys
from perfscope.hooks.side_process import start_once_a_node
for _ in range(2):
    start_once_a_node("test", *sys.argv[1:], ["a", "b"])
try:
    os.wait()
except ChildProcessError:
    print(os.getpid())
"""


def test_a_script_that_waits_for_its_children_does_not_wait_for_it(tmp_path: Path) -> None:
    script, output = tmp_path / "beside.py", tmp_path / "beside"
    script.write_text(SCRIPT)
    ended = run([sys.executable, "-c", TRAINING, str(tmp_path / uuid.uuid4().hex), output, script], tmp_path)
    assert ended.code == 0, ended.stderr
    until_s = time.monotonic() + LONGEST_S
    while not any(file.read_text() for file in output.glob("*.jsonl")) and time.monotonic() < until_s:
        time.sleep(0.02)
    (file,) = output.glob("*.jsonl")
    pid, *words = file.read_text().split()
    assert words == ["a", "b", "__main__"]
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] != ended.stdout.strip()
    os.kill(int(pid), 9)


def test_a_name_whose_file_was_compressed_is_not_given_again(tmp_path: Path) -> None:
    host = socket.gethostname()
    for name in (f"{host}.jsonl.gz", f"{host}.1.jsonl.gz", f"{host}.3.jsonl.gz"):
        (tmp_path / name).write_bytes(b"")
    os.close(_create_file(str(tmp_path)))
    assert [path.name for path in tmp_path.glob("*.jsonl")] == [f"{host}.2.jsonl"]
