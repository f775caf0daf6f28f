"""The sampler takes what the library gives, at a rate of its own for each kind of value, and nothing of it harms."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import kept_run
from perfscope.analyzers.stragglers.lateness import LateCause
from perfscope.analyzers.stragglers.records import analyze
from perfscope.hooks.nvml import sampler
from perfscope.sources.runs.nvml import read_gpus
from perfscope.sources.runs.run import read_run
from tests.conftest import ROOT, SCRIPTS, analysis, profile
from tests.hooks.nvml.conftest import Sampled

pytestmark = pytest.mark.slow


FAST = {"power_mw", "throttle", "sm_clock_mhz", "gpu_util_percent", "memory_used_bytes", "temperature_c"}


def values(lines: list[dict[str, Any]], gpu: int, name: str) -> list[tuple[int, Any]]:
    return [(line["t_ns"], line["gpus"][gpu][name]) for line in lines[1:] if name in line.get("gpus", [{}] * 9)[gpu]]


def test_each_kind_of_value_has_a_rate_of_its_own(library: Path, sampled: Sampled) -> None:
    lines = sampled(library, "gpus=2 throttle=4 capped", 90)
    head = lines[0]
    assert [gpu["uuid"][:12] for gpu in head["gpus"]] == ["GPU-00000000", "GPU-00000001"]
    assert (head["gpus"][0]["power_limit_mw"], head["gpus"][0]["power_limit_default_mw"]) == (500_000, 700_000)
    seconds = (lines[-1]["t_ns"] - lines[1]["t_ns"]) / 1e9
    for name in FAST:  # a busy machine may skip some of 20 a second, and a slow round delays the one after it
        assert len(values(lines, 1, name)) / seconds < 24, name
        assert len(values(lines, 1, name)) > 60, name
    assert 2 <= len(values(lines, 1, "nvlink_tx_kib")) <= 2 + seconds


def test_what_an_old_driver_lacks_is_absent_and_read_once(old_library: Path, sampled: Sampled) -> None:
    lines = sampled(old_library, "gpus=1 no_fields throttle=8", 20)
    assert not values(lines, 0, "nvlink_tx_kib")
    assert {bits for _, bits in values(lines, 0, "throttle")} == {8}  # by the older name of the same call
    assert len(values(lines, 0, "power_mw")) > 5


def test_a_gpu_that_is_lost_is_named_once_and_the_other_goes_on(
    library: Path, sampled: Sampled, tmp_path: Path
) -> None:
    lines = sampled(library, "gpus=2 lost=0@700", 40)
    (lost,) = [line for line in lines if "lost" in line]
    assert lost["lost"].startswith("GPU-00000000")
    assert max(t_ns for t_ns, _ in values(lines, 0, "power_mw")) < lost["t_ns"]
    assert max(t_ns for t_ns, _ in values(lines, 1, "power_mw")) > lost["t_ns"] + 2e8
    (tmp_path / "nvml").mkdir()
    (tmp_path / "nvml" / "node.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    gpus, notes = read_gpus(tmp_path, [])
    assert [gpu.lost_ns for gpu in gpus] == [lost["t_ns"], None]
    assert any("stopped answering" in note for note in notes)


def test_a_gpu_that_mig_splits_is_not_sampled(library: Path, sampled: Sampled) -> None:
    lines = sampled(library, "gpus=2 mig=1", 8)
    assert [gpu["mig"] for gpu in lines[0]["gpus"]] == [False, True]
    assert lines[1]["gpus"][1] == {}
    assert values(lines, 0, "gpu_util_percent")


@pytest.mark.parametrize(
    ("behaviour", "says"), [("no_init", "Driver Not Loaded"), ("gpus=0", "finds no GPU")], ids=["driver", "no GPU"]
)
def test_without_a_gpu_it_says_why_and_ends(behaviour: str, says: str, library: Path, sampled: Sampled) -> None:
    lines = sampled(library, behaviour, 5)
    assert says in lines[-1]["note"]


def test_two_ranks_have_one_sampler_which_ends_with_them(library: Path, tmp_path: Path) -> None:
    command: list[str | Path] = ["torchrun", "--nproc_per_node", "2", "--standalone", SCRIPTS / "ddp.py"]
    ended = profile(
        *command, cwd=tmp_path, options=["--nvml-hz", "50"], LD_LIBRARY_PATH=str(library), FAKE_NVML="gpus=2"
    )
    assert ended.code == 0
    (file,) = (tmp_path / "RUN" / "nvml").iterdir()
    size = file.stat().st_size
    assert size > 1000
    time.sleep(0.7)
    assert file.stat().st_size == size
    assert analysis(tmp_path / "RUN")["results"]["gpus"][0]["power_limit_w"] == 700.0


def test_a_killed_sampler_costs_the_rest_of_the_samples_and_nothing_else(library: Path, tmp_path: Path) -> None:
    script: list[str | Path] = [sys.executable, SCRIPTS / "killing_the_sampler.py"]
    ended = profile(
        *script, cwd=tmp_path, options=["--nvml-hz", "50"], LD_LIBRARY_PATH=str(library), FAKE_NVML="gpus=1"
    )
    assert (ended.code, ended.stdout) == (0, "killed 1\ndone\n"), ended.stderr
    (file,) = (tmp_path / "RUN" / "nvml").iterdir()
    assert all(json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n"))
    assert analysis(tmp_path / "RUN")["results"]["steps"]["count"] == 12


def test_a_metric_that_takes_long_to_read_rests_and_the_others_keep_their_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_ns = 0

    def pass_time(seconds: float) -> None:
        nonlocal clock_ns
        clock_ns += int(seconds * 1e9) + 1

    def read_slowly(_device: object) -> dict[str, object]:
        pass_time(0.02)
        return {"slow": 1}

    clock = SimpleNamespace(monotonic_ns=lambda: clock_ns, process_time_ns=lambda: 0, time_ns=lambda: 0)
    monkeypatch.setattr(sampler, "time", clock)
    lines: list[dict[str, Any]] = []
    output: Any = SimpleNamespace(write=lines.append, rotate_if_full=lambda _now: None)
    device: Any = SimpleNamespace(is_lost=False, unsupported=set(), failures={})
    metrics = [sampler.Metric("slow", read_slowly, 10**8), sampler.Metric("fast", lambda _device: {"fast": 1}, 10**8)]

    def goes_on(seconds: float) -> bool:
        pass_time(seconds)
        return clock_ns < 10 * 10**9

    sampler._sample_while(goes_on, cast("Any", None), [device], metrics, output)
    rounds = [line["gpus"][0] for line in lines if "gpus" in line]
    assert sum("slow" in values for values in rounds) == pytest.approx(25, abs=3)
    assert sum("fast" in values for values in rounds) > 80


STRAGGLERS = ROOT / "fixtures" / "stragglers"
UUID = "GPU-0000000{}-aaaa-bbbb-cccc-000000000000"


@pytest.mark.parametrize("is_hot", [True, False])
def test_a_slower_gpu_is_said_to_have_a_lower_clock_where_nvml_says_so(
    is_hot: bool, library: Path, sampled: Sampled, tmp_path: Path
) -> None:
    late, run = 1, tmp_path / "RUN"
    shutil.copytree(kept_run(STRAGGLERS / "nccl/ddp.device50"), run)
    lines = sampled(library, f"gpus=2 {f'hot={late}@1230' if is_hot else ''}", 10)
    for rank in (0, 1):
        record = run / "ranks" / f"0000{rank}" / "rank.json"
        place = {"device_uuid": UUID.format(rank), "host": lines[0]["host"]}
        record.write_text(json.dumps(json.loads(record.read_text()) | place))
    (run / "nvml").mkdir()
    (run / "nvml" / "host.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = analyze(read_run(run))
    (first,) = [answer for answer in result.late if answer.cause in (LateCause.CLOCK, LateCause.DEVICE)]
    assert first.rank == late
    assert first.detail is not None
    if is_hot:
        assert first.cause is LateCause.CLOCK
        assert first.detail.endswith("at 1230 MHz instead of 1755 MHz, because of: hardware thermal slowdown")
    else:
        assert first.cause is LateCause.DEVICE
        assert first.detail.endswith("at the same clock, as where another process uses it")
