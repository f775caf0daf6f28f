"""CUDA_VISIBLE_DEVICES is read by CUDA's rules, and a rank is found on the GPU that it used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope import wire
from perfscope.analyzers import gpus as gpu_table
from perfscope.errors import MissingInput
from perfscope.sources.runs.nvml import read_gpus
from perfscope.sources.runs.run import read_run
from perfscope.sources.runs.stored import read_versions_at
from perfscope.sources.runs.visible_devices import find_device, list_visible_devices
from perfscope.tables.gpus import GpuSamples
from perfscope.wire.records import RankRecord, to_line
from tests.analyzers.test_steps import write_run

A, B, C = ("GPU-aaaa1111-0000-0000-0000-00000000000" + end for end in "123")


def machine(folder: Path, *, other: str = "Some GPU") -> tuple[GpuSamples, ...]:
    """Three GPUs."""
    known = [
        {"uuid": A, "index": 0, "name": "Some GPU"},
        {"uuid": B, "index": 1, "name": other},
        {"uuid": C, "index": 2, "name": "Some GPU"},
    ]
    (folder / wire.NVML_FOLDER).mkdir(exist_ok=True)
    lines = [{"host": "host", "t_ns": 0, "gpus": known}, {"t_ns": 2_000_000, "gpus": [{"power_mw": 1000}] * 3}]
    (folder / wire.NVML_FOLDER / "host.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_gpus(folder, [])[0]


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, (A, B, C)),
        ("", ()),
        ("-1", ()),
        ("2,0", (C, A)),
        ("0,-1,1", (A,)),
        ("0,7,1", (A,)),
        ("1,1", ()),
        (B, (B,)),
        (f"{C},{A}", (C, A)),
        (B[:-1], ()),  # the beginning of all three
        ("MIG-dddd", ()),
    ],
)
def test_the_variable_means_what_it_means_to_cuda(
    variable: str | None, expected: tuple[str, ...], tmp_path: Path
) -> None:
    assert list_visible_devices(variable, None, machine(tmp_path)) == expected


def test_numbers_mean_nothing_where_cuda_sorts_by_speed_and_the_gpus_differ(tmp_path: Path) -> None:
    unlike = machine(tmp_path, other="Faster GPU")
    assert list_visible_devices("0", None, unlike) is None
    assert list_visible_devices("0", "PCI_BUS_ID", unlike) == (A,)
    assert list_visible_devices(B, None, unlike) == (B,)


def record(**fields: object) -> RankRecord:
    return RankRecord(0, 1, "host", 1, 0, 0, "3.11", device_type="cuda", **fields)  # type: ignore[arg-type]


def test_a_rank_is_found_by_its_uuid_else_by_its_number_among_what_it_sees(tmp_path: Path) -> None:
    gpus = machine(tmp_path)
    assert find_device(record(device_uuid=B), gpus) == B
    assert find_device(record(device_index=1, visible_devices="1,0"), gpus) == A
    assert find_device(record(device_index=1, visible_devices="1"), gpus) is None
    assert find_device(record(device_index=0), gpus) == A
    assert find_device(record(device_uuid="GPU-of-a-host-without-nvml"), ()) == "GPU-of-a-host-without-nvml"


@pytest.mark.parametrize(("variable", "shown"), [("1", [B]), ("2,0", [A, C]), (None, [A, B, C])])
def test_the_report_leaves_out_what_no_rank_could_see(variable: str | None, shown: list[str], tmp_path: Path) -> None:
    run = write_run(tmp_path, {0: [1, 1, 1]})
    machine(run)
    (run / wire.RANKS_FOLDER / "00000" / wire.RANK_FILE).write_bytes(to_line(record(visible_devices=variable)))
    result = gpu_table.analyze(read_run(run))
    assert [gpu.uuid for gpu in result.gpus] == shown
    assert any("could see" in note for note in result.notes) == (len(shown) < 3)


@pytest.mark.parametrize("variable", ["", "-1"])
def test_without_a_visible_device_there_is_nothing_to_report(variable: str, tmp_path: Path) -> None:
    run = write_run(tmp_path, {0: [1, 1, 1]})
    machine(run)
    (run / wire.RANKS_FOLDER / "00000" / wire.RANK_FILE).write_bytes(to_line(record(visible_devices=variable)))
    with pytest.raises(MissingInput, match="CUDA_VISIBLE_DEVICES leaves the ranks none"):
        gpu_table.analyze(read_run(run))


def test_versions_have_their_usual_names(tmp_path: Path) -> None:
    stated = {
        "schema": "perfscope/run/1",
        "driver": "580.159.04\n580.159.04",
        "python": "3.12.3",
        "git_commit": "1f0c",
        "environment": {"NCCL_VERSION": "2.27.1-1"},
        "versions": {"torch": "2.11.0", "nvidia-nccl-cu13": "2.28.3", "nvidia-cuda-runtime": "13.0", "numpy": "2.4"},
    }
    (tmp_path / "run.json").write_text(json.dumps(stated))
    (tmp_path / "ranks" / "00000").mkdir(parents=True)
    (tmp_path / "ranks" / "00000" / "rank.json").write_text('{"torch": "2.11.0+cu130"}')
    assert read_versions_at(str(tmp_path)) == {
        "Driver": "580.159.04",
        "Python": "3.12.3",
        "Commit of the training code": "1f0c",
        "CUDA": "13.0",
        "NCCL": "2.28.3",
        "NCCL of the image": "2.27.1-1",
        "PyTorch": "2.11.0+cu130",
        "numpy": "2.4",
    }


@pytest.mark.parametrize("content", ["", "[]", "{}", "[" * 99999])
def test_a_file_that_states_no_versions(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    assert read_versions_at(str(tmp_path)) == {}
