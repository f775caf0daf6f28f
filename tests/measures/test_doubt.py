"""What cannot be is withheld with its contradiction; the same input without the fault is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.collectives import bus_factor, check_busbw
from perfscope.measures.doubt import check_share
from perfscope.models.hardware import find_gpu, gpus
from tests.analyzers.test_mfu import run_folder
from tests.analyzers.tflops.making import answer, ask
from tests.sources.traces.making import Event, call, distributed, kernel, step, write

SIZE = 64 * 1024 * 1024


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, 1 + 1e-12, -1e-12])
def test_a_share_that_can_be_is_printed(share: float) -> None:
    checked = check_share(share, "it", "nothing")
    assert checked.value == pytest.approx(share)
    assert 0 <= (checked.value or 0) <= 1
    assert not checked.doubt


@pytest.mark.parametrize(("share", "printed"), [(2.93, "293.0 %"), (1.001, "100.1 %"), (-0.2, "-20.0 %")])
def test_a_share_that_cannot_be_is_withheld_in_plain_words(share: float, printed: str) -> None:
    checked = check_share(share, "the MFU", "another precision")
    assert checked.value is None
    assert printed in checked.doubt
    assert "cannot be" in checked.doubt
    assert "another precision" in checked.doubt


def mfu_of(run: Path, *words: str) -> dict[str, Any]:
    result: dict[str, Any] = answer("analyze", run, "--only", "mfu", *words)["results"]["mfu"]
    return result


def test_an_mfu_above_the_peak_is_withheld_with_its_steps(tmp_path: Path) -> None:
    run = run_folder(tmp_path, "NVIDIA H200")
    sound = mfu_of(run)
    assert 0 < sound["mfu"] < 1
    assert sound["doubt"] is None
    assert not any("Withheld" in note for note in sound["notes"])
    wrong = mfu_of(run, "--peak", str(sound["tflops_per_gpu"] / 2.93))
    assert wrong["mfu"] is None
    assert "293.0 %" in wrong["doubt"]
    assert wrong["tflops_per_gpu"] == sound["tflops_per_gpu"]
    # The step that took twice as long is no sounder by being slower: 146 %.
    assert [each["mfu"] for each in wrong["steps"]] == [None] * 6
    (note,) = (note for note in wrong["notes"] if note.startswith("Withheld"))
    assert "another precision" in note
    table = ask("analyze", run, "--only", "mfu", "--peak", str(sound["tflops_per_gpu"] / 2.93)).stdout
    assert "| megatron_core" in table
    assert "cannot be" in table


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_a_link_carries_no_more_than_it_can(operation: str) -> None:
    """By what goes over a link: with switches that add up, an all_reduce sends its size once, else nearly twice."""
    for name, reduces in (("h200-sxm", True), ("a100-80", False)):
        link = find_gpu(name).link
        assert link is not None
        for ranks in (2, 4, 8):
            factor = bus_factor(operation, ranks)
            assert factor is not None
            traffic = 1.0 if operation == "all_reduce" and reduces and factor > 1 else factor
            fastest = link.gb_s / traffic
            assert check_busbw(fastest, operation, ranks, link, "x").value == pytest.approx(fastest * factor)
            checked = check_busbw(fastest * 1.05, operation, ranks, link, "x")
            assert checked.value is None
            assert link.name in checked.doubt
            assert link.source in checked.doubt


def test_every_listed_link_has_a_source() -> None:
    linked = [gpu.link for gpu in gpus() if gpu.link]
    assert len(linked) > 30
    assert all(link.source and 10 < link.gb_s < 1000 for link in linked)
    sxm = find_gpu("h200-sxm").link
    assert sxm is not None
    assert (sxm.name, sxm.gb_s, sxm.reduces) == ("NVLink 4", 450.0, True)


def all_reduce(rank: int, path: Path, us: int) -> Path:
    """A step with an all_reduce of 64 MiB that takes so many microseconds."""
    pg_config = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}]
    args: dict[str, Any] = {
        "Collective name": "allreduce",
        "dtype": "Float",
        "In msg nelems": SIZE // 4,
        "Out msg nelems": SIZE // 4,
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Group size": 2,
    }
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    events: list[Event] = [
        step(1, 0, 9_000_000),
        call("cudaLaunchKernel", 1_000, 2_000, launch=1),
        kernel(name, 10_000, 10_000 + 1_000 * us, launch=1, **args),
    ]
    devices = [{"id": 0, "name": "NVIDIA H200"}]
    return write(path / f"rank{rank}.json", events, deviceProperties=devices, **distributed(rank, 2, pg_config))


@pytest.mark.parametrize(("us", "is_possible"), [(400, True), (20, False)])
def test_a_bandwidth_above_the_links_is_withheld(us: int, is_possible: bool, tmp_path: Path) -> None:
    for rank in (0, 1):
        all_reduce(rank, tmp_path, us)
    result = answer("analyze", tmp_path, "--only", "collectives")["results"]["collectives"]
    (operation,) = result["operations"]
    rate = SIZE / (us * 1e3)
    if is_possible:
        assert operation["busbw_gb_s"] == pytest.approx(rate)
        assert operation["doubt"] is None
    else:
        assert (operation["busbw_gb_s"], operation["algbw_gb_s"]) == (None, None)
        assert f"{rate:.1f} GB/s" in operation["doubt"]
        assert operation["doubt"] in result["notes"]
    assert operation["transfer_us"] == us
