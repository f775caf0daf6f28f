"""The parts of a job's time add up exactly, over restarts, and each step is useful once."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.goodput import Goodput, Life, account, find_lives, find_logged_lives
from perfscope.constants import NS_PER_S
from perfscope.constants import NS_PER_S as S
from perfscope.errors import MissingInput, PerfscopeError, SourceError
from perfscope.measures.parts import Spent
from perfscope.sources.joblog import read_moments
from perfscope.sources.runs.run import read_run
from tests.conftest import ROOT, SCRIPTS, environment, perfscope


def make_life(start_s: int, first: int, steps: int, *, numbered: bool = True, **other: int) -> Life:
    """A life whose steps take a second each, with other parts in seconds."""
    parts = {part: other[part] * S for part in Spent if part in other}
    wall_ns = steps * S + sum(parts.values())
    return Life(
        name=f"start at {start_s}",
        start_ns=start_s * S,
        end_ns=start_s * S + wall_ns,
        iteration=np.arange(first, first + steps),
        step_ns=np.full(steps, S),
        is_skipped=np.zeros(steps, np.bool_),
        other_ns=parts,
        saved_steps=(other["saved"],) if "saved" in other else (),
        ranks=8,
        is_numbered=numbered,
    )


def seconds(lives: list[Life]) -> dict[str, float]:
    spent = account(lives).spent_ns
    return {str(place): place_ns / S for place, place_ns in spent.items() if place_ns}


def test_a_job_that_resumes_redoes_the_steps_behind_its_checkpoint() -> None:
    first = make_life(0, 1, 25, start_up=10, saves=5)  # ends at 40
    second = make_life(55, 21, 30, start_up=12, end=1)
    assert seconds([second, first]) == {
        "useful_steps": 50,
        "redone_steps": 5,
        "start_up": 10,
        "saves": 5,
        "restarts": 12,
        "down": 15,
        "end": 1,
    }


def test_steps_are_numbered_from_the_last_checkpoint_where_no_framework_does() -> None:
    first = make_life(0, 1, 25, numbered=False, saved=20)
    second = make_life(30, 1, 10, numbered=False)
    third = make_life(50, 1, 4, numbered=False)
    answer = account([first, second, third])
    assert [start.resumed_after_step for start in answer.starts] == [None, 20, 20]
    assert [start.redone_steps for start in answer.starts] == [5, 10, 0]
    assert answer.resumption_assumed


def test_gpu_hours_are_lost_where_no_useful_step_ran() -> None:
    answer = account([make_life(0, 1, 1800, start_up=1800)])
    assert answer.goodput == 0.5
    assert answer.lost_gpu_hours == 4.0


def test_starts_that_overlap_are_told_and_the_parts_still_add_up() -> None:
    answer = account([make_life(0, 1, 20), make_life(15, 21, 20)])
    assert answer.overlap_ns == 5 * S
    assert sum(answer.spent_ns.values()) == answer.wall_ns == 40 * S
    assert any("overlap by 5.000 s" in note for note in answer.sections()[0].notes)


def test_a_shell_that_becomes_the_second_training_is_no_part_of_it() -> None:
    first = make_life(10, 1, 20, start_up=5)  # until 35
    second = make_life(5, 21, 10, start_up=45)  # the shell was there before the first one; its steps end at 60
    assert seconds([second, first]) == {"useful_steps": 30, "start_up": 5, "restarts": 15}


FIXTURES = ROOT / "fixtures" / "goodput"


def test_a_job_that_was_killed_and_resumed_is_what_its_script_measured() -> None:
    truth = json.loads((FIXTURES / "killed" / "truth.json").read_text())
    answer = account(find_lives(read_run(FIXTURES / "killed")))
    step_ns = max(truth[0]["steps_ns"])
    assert answer.spent_ns[Spent.USEFUL] == pytest.approx(
        sum(truth[0]["steps_ns"][:6]) + sum(truth[1]["steps_ns"]), abs=2 * step_ns
    )
    assert answer.spent_ns[Spent.REDONE] == pytest.approx(sum(truth[0]["steps_ns"][6:]), abs=step_ns)
    assert answer.spent_ns[Spent.SAVES] == pytest.approx(sum(truth[0]["saves_ns"] + truth[1]["saves_ns"]), rel=0.05)
    assert [start.resumed_after_step for start in answer.starts] == [None, 6]
    assert answer.overlap_ns == 0


def test_random_jobs_add_up_and_each_iteration_is_useful_once() -> None:
    source = random.Random(7)
    for _ in range(100):
        lives: list[Life] = []
        now_s = reached = 0
        for _ in range(source.randint(1, 6)):
            first = source.randint(max(reached - 8, 0), reached) + 1 if lives else 1
            steps = source.randint(1, 20)
            parts = {place: source.randint(0, 9) for place in ("start_up", "saves", "validation", "stalls", "end")}
            lives.append(make_life(now_s, first, steps, **parts))  # type: ignore[arg-type]
            now_s = lives[-1].end_ns // S + source.randint(0, 30)
            reached = first + steps - 1
        answer = account(lives)
        # the slow way: walk through all steps, and keep the last of each number that nothing rolled back
        kept: dict[int, tuple[int, int]] = {}
        for number, life in enumerate(lives):
            kept = {step: owner for step, owner in kept.items() if step < int(life.iteration[0])}
            kept.update({int(step): (number, row) for row, step in enumerate(life.iteration)})
        assert answer.spent_ns[Spent.USEFUL] == len(kept) * S
        assert answer.wall_ns == lives[-1].end_ns - lives[0].start_ns
        assert sum(answer.spent_ns.values()) == answer.wall_ns


def test_a_job_without_steps_says_so() -> None:
    with pytest.raises(MissingInput, match="no training step"):
        account([])


MEGATRON = """\
[2026-11-20 10:00:00] using world size: 8, data-parallel size: 8
[2026-11-20 10:00:30] iteration       10/     100 | elapsed time per iteration (ms): 1000.0 |
[2026-11-20 10:00:40] iteration       20/     100 | elapsed time per iteration (ms): 1000.0 |
saving checkpoint at iteration      20 to /checkpoints
    save-checkpoint ................................: (4000.00, 5000.00)
[2026-11-20 10:00:55] iteration       30/     100 | elapsed time per iteration (ms): 1000.0 |
 validation loss at iteration 30 | lm loss value: 3.1
[2026-11-20 10:01:12] iteration       40/     100 | elapsed time per iteration (ms): 1000.0 |
[2026-11-20 10:01:15] killed
"""
RESUMED = """\
[2026-11-20 10:02:00] restarted
[2026-11-20 10:02:40] iteration       30/     100 | elapsed time per iteration (ms): 1000.0 |
[2026-11-20 10:02:50] iteration       40/     100 | elapsed time per iteration (ms): 1000.0 |
"""


def test_logs_of_megatron_with_times(tmp_path: Path) -> None:
    for name, text in (("one.log", MEGATRON), ("two.log", RESUMED)):
        (tmp_path / name).write_text(text)
    logs = [read_moments(tmp_path / name) for name in ("one.log", "two.log")]
    assert logs[0].ranks == 8
    lives = [life for log in logs for life in find_logged_lives(log)]
    expected = {
        "useful_steps": 40,
        "redone_steps": 20,
        "start_up": 20,
        "saves": 5,
        "validation": 7,
        "restarts": 33,  # 3 s at the end of the first start, 30 s before the steps of the second
        "down": 45,
    }
    assert seconds(lives) == expected
    (tmp_path / "both.log").write_text(MEGATRON + RESUMED)
    both = seconds(find_logged_lives(read_moments(tmp_path / "both.log")))
    assert sum(both.values()) == sum(expected.values())
    assert (both["useful_steps"], both["redone_steps"]) == (40, 20)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "2020-05-08 18:{:02}:16,177 - mmdet - INFO - Epoch [{epoch}][{rest}/20]\tlr: 1e-3, eta: 4:32:13, time: 0.5"
            ", data_time: 0.031, memory: 6836, loss: 0.4704",
            True,
        ),
        (
            "2023/05/24 20:{:02}:44 - mmengine - INFO - Epoch(train)  [{epoch}][  {rest}/20]  lr: 8e-08  eta: 0:00:25  "
            "time: 9.9  data_time: 0.000  memory: 0  loss: 11.4723",
            True,
        ),
        ("2023/05/24 20:{:02}:44 - mmengine - INFO - Epoch(val)  [{epoch}][  {rest}/20]", False),
        (
            "10/17/2025 16:{:02}:19 [INFO|DP=0|PP=0|TP=0]: iteration: {number} / 378950 | consumed_tokens: 85.8G | "
            "elapsed_time_per_iteration_ms: 11.5K | lm_loss: 2.38",
            True,
        ),
    ],
)
def test_iterations_and_times_are_found_in_what_other_frameworks_print(
    line: str, expected: bool, tmp_path: Path
) -> None:
    """A job that is killed behind iteration 35, of 20 in an epoch, and goes on at 21."""
    text = ""
    for minute, number in enumerate([*range(5, 40, 5), *range(25, 60, 5)]):
        epoch, rest = divmod(number - 1, 20)
        text += line.format(minute, epoch=epoch + 1, rest=rest + 1, number=number) + "\n"
    (tmp_path / "one.log").write_text(text)
    if not expected:
        with pytest.raises(SourceError, match="no line with a time"):
            read_moments(tmp_path / "one.log")
        return
    log = read_moments(tmp_path / "one.log")
    assert [moment.iteration for moment in log.moments] == [*range(5, 40, 5), *range(25, 60, 5)]
    assert log.last_ns - log.first_ns == 13 * 60 * 10**9
    lives = find_logged_lives(log)
    answer = account(lives)
    assert len(lives) == 2
    assert sum(answer.spent_ns.values()) == answer.wall_ns == 13 * 60 * 10**9


def test_a_log_whose_clock_goes_back_has_no_negative_part(tmp_path: Path) -> None:
    text = MEGATRON.replace("10:00:55", "09:00:55")
    (tmp_path / "one.log").write_text(text)
    answer = account(find_logged_lives(read_moments(tmp_path / "one.log")))
    assert min(answer.spent_ns.values()) >= 0
    assert sum(answer.spent_ns.values()) == answer.wall_ns


LINE = "[2026-11-20 10:00:{second}] iteration {number}/ 100 | elapsed time per iteration (ms): {elapsed} |\n"


def from_lines(folder: Path, *lines: tuple[int, str, str]) -> tuple[Goodput, tuple[str, ...]]:
    text = "".join(LINE.format(second=second, number=number, elapsed=elapsed) for second, number, elapsed in lines)
    (folder / "odd.log").write_text(text)
    log = read_moments(folder / "odd.log")
    answer = account(find_logged_lives(log))
    assert min(answer.spent_ns.values()) >= 0
    assert sum(answer.spent_ns.values()) == answer.wall_ns
    return answer, log.damage


@pytest.mark.parametrize(
    ("numbers", "useful_s"),
    [(("10", "9999999999", "30"), 20), (("9999999999", "10", "20"), 20), (("10", "20", "9999999999"), 10)],
)
def test_a_number_that_cannot_be_is_left_out_and_named(
    numbers: tuple[str, str, str], useful_s: int, tmp_path: Path
) -> None:
    answer, damage = from_lines(tmp_path, *zip((30, 40, 50), numbers, ("1000.0",) * 3, strict=True))
    assert damage == ("odd.log: iteration 9999999999 cannot be, and its line is left out",)
    assert answer.spent_ns[Spent.USEFUL] == useful_s * S


def of_ranks(iterations: Sequence[int], behind: int) -> str:
    """A log of two labelled ranks, the second some lines later than the first."""
    lines = []
    for turn in range(len(iterations) + behind):
        for rank, at in ((0, turn), (1, turn - behind)):
            if 0 <= at < len(iterations):
                clock = f"{10 + turn // 12}:{turn % 12 * 5:02}"
                line = f"iteration {iterations[at]:8}/ 100 | elapsed time per iteration (ms): 5000.0 |"
                lines.append(f"[default{rank}]:[2026-11-20 10:{clock}] {line}\n")
    return "".join(lines)


@pytest.mark.parametrize("behind", [0, 1, 3])
def test_ranks_that_print_the_same_are_one_training(behind: int, tmp_path: Path) -> None:
    """Each line of the rank that is a step later was a restart: no step was useful, and all were redone."""
    (tmp_path / "one.log").write_text(of_ranks(range(1, 30), behind))
    answer = account(find_logged_lives(read_moments(tmp_path / "one.log")))
    assert (len(answer.starts), answer.starts[0].steps) == (1, 29)
    assert answer.spent_ns[Spent.USEFUL] == 28 * 5 * S  # the first line has no time before it
    assert answer.spent_ns[Spent.REDONE] == 0


def test_ranks_that_start_again_redo_steps(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text(of_ranks([*range(1, 21), *range(11, 31)], 1))
    answer = account(find_logged_lives(read_moments(tmp_path / "one.log")))
    assert ([start.steps for start in answer.starts], answer.starts[0].redone_steps) == ([20, 20], 10)


def test_a_log_of_two_jobs_is_refused(tmp_path: Path) -> None:
    numbers = [number for at in range(1, 40) for number in (at, 500 + at)]
    (tmp_path / "one.log").write_text(of_ranks(numbers, 0))
    with pytest.raises(SourceError, match="two jobs"):
        read_moments(tmp_path / "one.log")


def test_the_command_says_what_contradicts_itself(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text(MEGATRON.replace("10:00:55", "09:00:55"))
    ended = perfscope("analyze", "one.log", "--only", "goodput", "--format", "json", cwd=tmp_path)
    assert ended.code == 4
    assert json.loads(ended.stdout)["warnings"] == [
        "one.log: its clock goes back once, by up to 3585 s: the parts are doubtful"
    ]


def test_a_log_without_times_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text("iteration 10/ 100 | elapsed time per iteration (ms): 1000.0 |\n")
    with pytest.raises(SourceError, match="no line with a time"):
        read_moments(tmp_path / "one.log")


STEP_S = 0.6


@pytest.mark.slow
def test_kill_and_resume_give_the_times_of_the_script(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPTS / "resumed.py"), "RUN", "model.pt", "truth.jsonl", "--step-s", str(STEP_S)]
    for extra in (["--steps", "7", "--kill-after", "5"], ["--steps", "7"]):
        ended = subprocess.run([*words, *extra], cwd=tmp_path, env=environment(), capture_output=True, check=False)
        assert ended.returncode == (-9 if "--kill-after" in extra else 0), ended.stderr
    first, second = (json.loads(line) for line in (tmp_path / "truth.jsonl").read_text().splitlines())
    command = [sys.executable, "-m", "perfscope", "analyze", "RUN", "--only", "goodput", "-f", "json"]
    answered = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    answer = json.loads(answered.stdout)["results"]["goodput"]
    spent_s = {place: place_ns / NS_PER_S for place, place_ns in answer["spent_ns"].items()}
    step_s = (STEP_S + 0.2) * 1.1
    assert second["first"] == 4
    useful_s = (sum(first["steps_ns"][:3]) + sum(second["steps_ns"])) / NS_PER_S
    redone_s = sum(first["steps_ns"][3:]) / NS_PER_S
    saves_s = sum(first["saves_ns"] + second["saves_ns"]) / NS_PER_S
    assert spent_s["redone_steps"] == pytest.approx(redone_s, abs=step_s)
    assert spent_s["useful_steps"] == pytest.approx(useful_s, abs=step_s)
    assert spent_s["saves"] == pytest.approx(saves_s, abs=0.2)
    down_s = (second["ends_ns"][0] - first["ends_ns"][-1] - second["steps_ns"][0]) / NS_PER_S
    assert spent_s["down"] + spent_s["restarts"] == pytest.approx(down_s, abs=step_s)
    assert sum(answer["spent_ns"].values()) == answer["wall_ns"]
    assert [start["resumed_after_step"] for start in answer["starts"]] == [None, 3]
    assert answer["starts"][0]["redone_steps"] == 2
    assert answer["lost_gpu_hours"] > 0


ODD = (0, -1, -(10**9), 10**18, None, "x", 1.5)


def damage(path: Path, source: random.Random) -> None:
    lines = path.read_text().splitlines()
    row = source.randrange(len(lines))
    record = json.loads(lines[row])
    numbers = [key for key, value in record.items() if isinstance(value, int)]
    kind = source.choice(["cut", "gone", "twice", "odd", "odd", "odd"])
    if kind == "cut":
        lines[row] = lines[row][: len(lines[row]) // 2]
    elif kind == "gone":
        del lines[row]
    elif kind == "twice":
        lines.insert(row, lines[row])
    elif numbers:
        record[source.choice(numbers)] = source.choice(ODD)
        lines[row] = json.dumps(record)
    path.write_text("".join(line + "\n" for line in lines))


@pytest.mark.parametrize("seed", range(12))
def test_the_parts_of_a_damaged_run_add_up_or_it_says_why(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    run = tmp_path / "RUN"
    shutil.copytree(ROOT / "fixtures" / "goodput" / "killed", run)
    files = [path for path in sorted(run.glob("ranks/*/*.json*")) if path.stat().st_size]
    for path in source.sample(files, 2):
        damage(path, source)
    try:
        answer = account(find_lives(read_run(run)))
    except PerfscopeError:
        return  # no step can be read
    assert sum(answer.spent_ns.values()) == answer.wall_ns
    assert min(answer.spent_ns.values()) >= 0
