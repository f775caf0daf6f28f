"""A GPU whose clock is held down is told from one that another process uses, by what the sampler reads of NVML.

The kernels really took longer on two H200; why is said by a library that stands for the driver's.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import kept_run
from perfscope.analyzers.stragglers.lateness import LateCause
from perfscope.analyzers.stragglers.records import analyze
from perfscope.sources.runs.run import read_run
from tests.conftest import ROOT
from tests.hooks.nvml.conftest import Sampled

pytestmark = pytest.mark.slow
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
