"""`perfscope checkpoint`: what files hold, bytes per parameter against theory, and nothing is ever unpickled."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analyzers.checkpoints.check import CheckpointSizes, check_checkpoint
from perfscope.analyzers.checkpoints.plan import Optimizer, Precision, bytes_per_parameter
from perfscope.sources.checkpoints.checkpoint import read_checkpoint
from perfscope.sources.checkpoints.file_names import parse_name
from perfscope.sources.checkpoints.torch_files import TorchDamage, read_torch_file
from perfscope.tables.checkpoint import Kind, Layout, Role
from tests.commands.report_cli import run
from tests.conftest import ROOT

FIXTURES = ROOT / "fixtures" / "checkpoints"
PARAMETERS = 64 * 16 + (16 * 32 + 32) + (32 * 16 + 16)  # the model of the DeepSpeed fixtures
H200_PARAMETERS = 812_445_696


def sizes_of(path: Path) -> CheckpointSizes:
    return check_checkpoint(read_checkpoint(path))


def parts(sizes: CheckpointSizes) -> dict[str, int]:
    return {share.part: share.size_bytes for share in sizes.shares}


def kinds(sizes: CheckpointSizes) -> set[str]:
    return {finding.kind for finding in sizes.findings}


class TestPlan:
    def test_181b_on_256_gpus(self, capsys: pytest.CaptureFixture[str]) -> None:
        answer = run(capsys, "checkpoint", "--size", "181B", "--gpus", "256")
        assert answer.code == 0
        for figure in ("0.362", "0.329", "2.172", "1.975", "1.414", "1.317", "8.484", "7.902"):
            assert figure in answer.out
        assert "0.34TB and 2.00TB and 2.4TB and 1.4GB and 8.0GB, follow no single unit" in answer.out
        assert "0.34TB and 2.00TB follow neither" in answer.err

    def test_the_numbers_of_its_json_are_exact(self, capsys: pytest.CaptureFixture[str]) -> None:
        plan = run(capsys, "checkpoint", "--size", "181B", "--gpus", "256", "--format", "json").data["results"]["plan"]
        assert plan["weights"]["bytes"] == 362 * 10**9
        assert plan["optimizer"]["bytes"] == 2172 * 10**9
        assert plan["weights"]["tib"] == pytest.approx(362e9 / 2**40)
        assert plan["optimizer"]["per_file_bytes"] == pytest.approx(2172e9 / 256)
        assert plan["single_unit"] is None

    def test_published_sizes_that_follow_one_unit_are_said_to(self, capsys: pytest.CaptureFixture[str]) -> None:
        common = ("checkpoint", "--size", "181B", "--gpus", "256", "--format", "json")
        sizes = {"decimal": ("weights=0.36TB", "optimizer-file=8.5GB"), "binary": ("weights=0.33TB", "total=2.31TB")}
        for unit, (first, second) in sizes.items():
            plan = run(capsys, *common, "--published", first, "--published", second).data["results"]["plan"]
            assert plan["single_unit"] == unit

    @pytest.mark.parametrize(
        ("optimizer", "precision", "stage", "expected"),
        [
            (Optimizer.ADAM, Precision.MIXED, 1, (2, 12)),
            (Optimizer.ADAM, Precision.MIXED, 3, (0, 12)),
            (Optimizer.ADAM, Precision.FP32, 0, (4, 8)),
            (Optimizer.SGD_MOMENTUM, Precision.MIXED, 0, (2, 8)),
            (Optimizer.ADAM_8BIT, Precision.MIXED, 0, (2, 6)),
            (Optimizer.NONE, Precision.MIXED, 0, (2, 0)),
        ],
    )
    def test_bytes_of_a_parameter(
        self, optimizer: Optimizer, precision: Precision, stage: int, expected: tuple[int, int]
    ) -> None:
        each = bytes_per_parameter(optimizer, precision, stage)
        assert (each.weights, each.optimizer) == expected

    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            ("--size", "52Q"),
            ("--size", "52B", "--gpus", "0"),
            ("--size", "52B", "--zero", "4"),
            ("--size", "52B", "--published", "weights=lots"),
            ("--size", "52B", "--save-time", "0"),
            (FIXTURES / "deepspeed_zero1", "--gpus", "4"),
        ],
    )
    def test_what_cannot_be_right_ends_with_2(
        self, capsys: pytest.CaptureFixture[str], arguments: tuple[Any, ...]
    ) -> None:
        answer = run(capsys, "checkpoint", *arguments)
        assert answer.code == 2
        assert "Traceback" not in answer.err

    def test_a_save_time_gives_a_speed(self, capsys: pytest.CaptureFixture[str]) -> None:
        # 14 bytes x 181e9 in 19.49531 s
        save = run(
            capsys, "checkpoint", "--size", "181B", "--gpus", "256", "--save-time", "19495.31ms", "--format", "json"
        ).data["results"]["saves"]["saves"][0]
        assert save["gb_per_s"] == pytest.approx(14 * 181 / 19.49531)


class TestSaves:
    """Saves that hooks timed on every rank: training is held for as long as the slowest one."""

    def write_run(self, folder: Path, records: dict[int, list[dict[str, Any]]]) -> Path:
        (folder / "run.json").write_text('{"command": ["train"]}')
        for rank, lines in records.items():
            place = folder / "ranks" / f"{rank:05d}"
            place.mkdir(parents=True)
            fact = {"rank": rank, "world_size": len(records), "host": "h", "pid": 1, "wall_ns": 1, "monotonic_ns": 1}
            (place / "rank.json").write_text(json.dumps({**fact, "python": "3.12"}))
            (place / "checkpoints.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            steps = [{"step": n, "end_ns": n * 10**10, "source": "deepspeed"} for n in range(1, 12)]
            (place / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
        return folder

    def test_the_slowest_rank_counts_and_bytes_add_up(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        second = 10**9
        run_dir = self.write_run(
            tmp_path,
            {
                0: [{"start_ns": 0, "end_ns": 2 * second, "source": "deepspeed", "step": 5, "size_bytes": 3 * second}],
                1: [{"start_ns": 0, "end_ns": 4 * second, "source": "deepspeed", "step": 5, "size_bytes": 5 * second}],
            },
        )
        answer = run(capsys, "checkpoint", FIXTURES / "deepspeed_zero1", "--run", run_dir, "--format", "json")
        saves = answer.data["results"]["saves"]
        assert saves["blocked_share"] == pytest.approx(0.04)  # 4 s of the 100 s from the first step to the last
        assert saves["saves"] == [
            {
                "step": 5,
                "ranks": 2,
                "blocked_s": 4.0,
                "slowest_rank": 1,
                "drained_s": None,
                "bytes": 8 * second,
                "gb_per_s": 2.0,
                "asynchronous": None,
                "source": "deepspeed",
                "path": None,
            }
        ]

    def test_a_run_tells_its_saves_by_itself(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        second = 10**9
        record = {"start_ns": 0, "end_ns": 4 * second, "source": "deepspeed", "step": 5, "asynchronous": False}
        run_dir = self.write_run(tmp_path, {0: [{**record, "size_bytes": 8 * second}]})
        answer = run(capsys, "checkpoint", run_dir)
        assert "1 checkpoint save" in answer.out
        assert "blocking" in answer.out
        assert "Saves stalled training for 4.0% of the run." in answer.out
        analyzed = run(capsys, "analyze", run_dir, "--only", "saves", "--format", "json").data["results"]["saves"]
        assert run(capsys, "checkpoint", run_dir, "--format", "json").data["results"]["saves"] == analyzed
        assert analyzed["saves"][0]["gb_per_s"] == 2.0
        (tmp_path / "unsized").mkdir()
        unsized = self.write_run(tmp_path / "unsized", {0: [record]})
        sized = run(capsys, "checkpoint", unsized, "--size", "1B", "--format", "json").data["results"]["saves"]
        assert sized["saves"][0]["gb_per_s"] == 3.5  # 14 GB in 4 s
        assert run(capsys, "checkpoint", run_dir, "--save-time", "3").code == 2

    def test_an_asynchronous_save_of_a_log(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        log = tmp_path / "run.log"
        log.write_text(
            "[2026-11-21 00:35:41.000000] saving checkpoint at iteration      10 to /ckpt in torch_dist format\n"
            "  [2026-11-21 00:35:41.500000] scheduled an async checkpoint save at iteration      10 to /ckpt\n"
            "  [2026-11-21 00:35:55.000000] successfully saved checkpoint from iteration      10 to /ckpt\n"
        )
        answer = run(capsys, "checkpoint", "--size", "1B", "--log", log, "--format", "json")
        [save] = answer.data["results"]["saves"]["saves"]
        assert (save["blocked_s"], save["drained_s"], save["gb_per_s"]) == (0.5, 14.0, 1.0)
        assert save["asynchronous"] is True

    def test_an_asynchronous_save_is_as_fast_as_it_lies_on_disk(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        second = 10**9
        record = {"start_ns": 0, "end_ns": second, "drained_ns": 10 * second, "asynchronous": True, "source": "dcp"}
        run_dir = self.write_run(tmp_path, {0: [record, {**record, "end_ns": 2 * second}]})
        answer = run(capsys, "checkpoint", "--size", "1B", "--run", run_dir, "--format", "json")
        saves = answer.data["results"]["saves"]["saves"]
        assert [save["blocked_s"] for save in saves] == [1.0, 2.0]
        assert [save["gb_per_s"] for save in saves] == [1.4, 1.4]  # 14 GB in 10 s
        assert "asynchronous" in run(capsys, "checkpoint", "--size", "1B", "--run", run_dir).out

    def test_megatrons_own_timer_in_its_log(self, capsys: pytest.CaptureFixture[str]) -> None:
        log = FIXTURES.parent / "logs" / "megatron_core_tp2_pp2_h200.log"
        listing = FIXTURES / "megatron_legacy_h200.csv"
        saves = run(capsys, "checkpoint", listing, "--log", log, "--format", "json").data["results"]["saves"]
        [save] = saves["saves"]
        assert (save["step"], save["blocked_s"]) == (15, 4.99596)  # save-checkpoint ....: (4984.48, 4995.96)
        assert save["gb_per_s"] == pytest.approx(13.177708128 / 4.99596)
        times_ms = [float(match) for match in re.findall(r"per iteration \(ms\): ([\d.]+)", log.read_text())]
        assert saves["blocked_share"] == pytest.approx(4995.96 / (sum(times_ms) + 4995.96), rel=1e-3)

    @pytest.mark.parametrize(
        ("options", "code", "problem"),
        [
            (("--log", FIXTURES / "README.md"), 1, "states no checkpoint save"),
            (("--log", "nowhere.log"), 1, "nowhere.log"),
            (("--log", "a.log", "--save-time", "3"), 2, "both state the time of the save"),
        ],
    )
    def test_saves_that_nobody_tells_of(
        self, capsys: pytest.CaptureFixture[str], options: tuple[Any, ...], code: int, problem: str
    ) -> None:
        answer = run(capsys, "checkpoint", "--size", "1B", *options)
        assert answer.code == code
        assert problem in answer.err

    def test_a_run_without_a_timed_save_says_so(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        answer = run(capsys, "checkpoint", "--size", "1B", "--run", self.write_run(tmp_path, {0: []}))
        assert answer.code == 1
        assert "holds no timed checkpoint save" in answer.err


class TestRealDeepSpeed:
    """What DeepSpeed itself wrote, for a model whose parameters can be counted by hand."""

    @pytest.mark.parametrize(
        ("folder", "layout", "expected"),
        [
            ("deepspeed_zero1", Layout.DEEPSPEED_ZERO_1_2, {"weights": 2, "optimizer": 12}),
            ("deepspeed_zero3", Layout.DEEPSPEED_ZERO_3, {"optimizer": 12}),
            ("deepspeed_pipeline", Layout.DEEPSPEED_PIPELINE, {"weights": 2, "optimizer": 24}),
        ],
    )
    def test_bytes_per_parameter(self, folder: str, layout: Layout, expected: dict[str, int]) -> None:
        sizes = sizes_of(FIXTURES / folder)
        assert sizes.checkpoint.layout is layout
        assert sizes.checkpoint.tag == "global_step2"
        assert sizes.parameters == PARAMETERS
        state = {part: size for part, size in parts(sizes).items() if part != "other"}
        assert state == {part: each * PARAMETERS for part, each in expected.items()}
        assert sum(parts(sizes).values()) == sizes.checkpoint.size_bytes

    def test_what_each_file_holds(self) -> None:
        files = {file.path: file for file in sizes_of(FIXTURES / "deepspeed_zero1").checkpoint.files}
        shard = files["bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"]
        held = {(one.role, one.dtype): one.elements for one in shard.contents or ()}
        assert held[Role.MASTER, "float32"] == PARAMETERS // 2
        assert held[Role.MOMENTS, "float32"] == PARAMETERS
        assert shard.ranks == {"dp": 1, "mp": 0}
        weights = {
            one.dtype: one.elements
            for one in files["mp_rank_00_model_states.pt"].contents or ()
            if one.role is Role.WEIGHTS
        }
        assert weights == {"bfloat16": PARAMETERS}

    def test_state_that_is_there_twice_is_named(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "doubled_optimizer" in kinds(sizes_of(FIXTURES / "deepspeed_pipeline"))
        assert not kinds(sizes_of(FIXTURES / "deepspeed_zero1"))
        answer = run(capsys, "checkpoint", FIXTURES / "deepspeed_pipeline")
        assert answer.code == 0
        assert "The optimizer state was saved twice: 24.00 bytes/parameter, 12 expected" in answer.err

    def test_a_missing_rank_is_named_and_ends_with_4(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for rank in (0, 1, 3):
            (tmp_path / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(
                (FIXTURES / "deepspeed_zero1/global_step2/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt").read_bytes()
            )
        answer = run(capsys, "checkpoint", tmp_path)
        assert answer.code == 4
        assert "1 of 4 files of optimizer states are missing" in answer.err


class TestSizesOnly:
    """Lists of the files that a real run wrote on GPUs: names and sizes are all there is."""

    @pytest.mark.parametrize(
        ("name", "total", "found"),
        [
            ("deepspeed_zero1_h200", 14.0, set()),
            ("deepspeed_zero3_h200", 12.0, set()),
            ("deepspeed_pipeline_h200", 26.0, {"doubled_optimizer"}),
        ],
    )
    def test_measured_bytes_per_parameter(self, name: str, total: float, found: set[str]) -> None:
        sizes = sizes_of(FIXTURES / f"{name}.csv")
        assert sizes.parameters == pytest.approx(H200_PARAMETERS, rel=1e-4)  # guessed from the sizes
        given_size = check_checkpoint(read_checkpoint(FIXTURES / f"{name}.csv"), H200_PARAMETERS)
        assert given_size.checkpoint.size_bytes / H200_PARAMETERS == pytest.approx(total, abs=0.01)
        assert kinds(given_size) == kinds(sizes) == found

    def test_megatron_with_one_file_a_rank(self) -> None:
        sizes = sizes_of(FIXTURES / "megatron_legacy_h200.csv")
        assert sizes.checkpoint.layout is Layout.MEGATRON_LEGACY
        assert sizes.checkpoint.tag == "iter_0000015"
        assert [file.ranks for file in sizes.checkpoint.files][-1] == {"tp": 1, "pp": 1}

    def test_layers_ten_times_too_large_are_bloated(self, tmp_path: Path) -> None:
        count = 10**8
        rows = ["path,bytes", f"global_step1/zero_pp_rank_0_mp_rank_00_optim_states.pt,{12 * count}"]
        rows += [f"global_step1/layer_{layer:02d}-model_00-model_states.pt,{2 * count}" for layer in range(10)]
        (tmp_path / "files.csv").write_text("\n".join([*rows, "global_step1/mp_rank_00_model_states.pt,5000"]))
        sizes = sizes_of(tmp_path / "files.csv")
        assert sizes.parameters == pytest.approx(count, rel=1e-5)
        assert "bloated" in kinds(sizes)

    def test_a_file_of_zeros_is_judged_by_its_name_and_ends_with_4(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name, size in (("mp_rank_00_model_states.pt", 2), ("zero_pp_rank_0_mp_rank_00_optim_states.pt", 12)):
            with (tmp_path / name).open("wb") as file:
                file.truncate(size * 10**9)  # a hole: no disk is used
        answer = run(capsys, "checkpoint", tmp_path, "--format", "json")
        assert answer.code == 4
        assert answer.data["results"]["checkpoint"]["bytes_per_parameter"] == 14
        assert "zeros only" in answer.err


NAMES = {
    "mp_rank_00_model_states.pt": (Kind.MODEL, {"mp": 0}),
    "bf16_zero_pp_rank_3_mp_rank_01_optim_states.pt": (Kind.OPTIMIZER, {"dp": 3, "mp": 1}),
    "zero_pp_rank_0_mp_rank_00_model_states.pt": (Kind.MODEL_METADATA, {"dp": 0, "mp": 0}),
    "layer_07-model_03-model_states.pt": (Kind.LAYER, {"layer": 7, "tp": 3}),
    "layer_07-model_states.pt": (Kind.LAYER, {"layer": 7}),
    "layer_2_expert_5_mp_rank_00_model_states.pt": (Kind.EXPERT, {"layer": 2, "expert": 5, "mp": 0}),
    "expert_5_mp_rank_00_model_states.pt": (Kind.EXPERT, {"expert": 5, "mp": 0}),
    "expp_rank_1_mp_rank_00_optim_states.pt": (Kind.EXPERT_OPTIMIZER, {"ep": 1, "mp": 0}),
    "zero/transformer.wte.weight/exp_avg.pt": (Kind.UNIVERSAL, {}),
    "mp_rank_01_002/model_optim_rng.pt": (Kind.MODEL_AND_OPTIMIZER, {"tp": 1, "pp": 2}),
    "mp_rank_01_002_003/model_optim_rng.pt": (Kind.MODEL_AND_OPTIMIZER, {"tp": 1, "pp": 2, "ep": 3}),
    "mp_rank_00/distrib_optim.pt": (Kind.OPTIMIZER, {"tp": 0}),
    "__3_1.distcp": (Kind.SHARD, {"rank": 3, "part": 1}),
    "model-00001-of-00003.safetensors": (Kind.WEIGHTS, {}),
    "optimizer.pt": (Kind.OPTIMIZER, {}),
    "rng_state_2.pth": (Kind.OTHER, {}),
    "zero_to_fp32.py": (Kind.OTHER, {}),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_say_what_a_file_is(name: str) -> None:
    named = parse_name(name)
    assert (named.kind, dict(named.ranks)) == NAMES[name]


def trained(count: int = 7) -> tuple[Any, Any]:
    """A tiny model and its AdamW after a step."""
    import torch

    model = torch.nn.Linear(count, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, count)).sum().backward()
    optimizer.step()
    return model, optimizer


class TestWrittenByTorch:
    """Files of torch.save and torch.distributed.checkpoint, against what torch itself reads from them."""

    @pytest.mark.parametrize("zipped", [True, False])
    def test_a_plain_file(self, tmp_path: Path, zipped: bool) -> None:
        import torch

        model, optimizer = trained()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "bf16": torch.ones(5).bfloat16()}
        torch.save(state, tmp_path / "step.pt", _use_new_zipfile_serialization=zipped)
        sizes = sizes_of(tmp_path / "step.pt")
        assert parts(sizes)["weights"] == 4 * 24 + 2 * 5
        assert parts(sizes)["optimizer"] == 2 * 4 * 24
        tensors = {tuple(t.path): t for t in read_torch_file(tmp_path / "step.pt").tensors}
        assert tensors["model", "weight"].shape == tuple(torch.load(tmp_path / "step.pt")["model"]["weight"].shape)

    def test_a_view_that_drags_its_storage_along(self, tmp_path: Path) -> None:
        import torch

        whole = torch.zeros(10, 1000)
        for layer in range(10):
            torch.save({"weight": whole[layer]}, tmp_path / f"layer_{layer:02d}-model_00-model_states.pt")
        sizes = sizes_of(tmp_path)
        assert sizes.parameters == 10 * 1000
        assert {file.unused_bytes for file in sizes.checkpoint.files} == {4 * 9000}
        assert "unused_storage" in kinds(sizes)
        for layer in range(10):
            torch.save({"weight": whole[layer].clone()}, tmp_path / f"layer_{layer:02d}-model_00-model_states.pt")
        assert "unused_storage" not in kinds(sizes_of(tmp_path))

    def test_tied_weights_count_once(self, tmp_path: Path) -> None:
        import torch

        shared = torch.zeros(100)
        torch.save({"module": {"embedding": shared, "head": shared}}, tmp_path / "mp_rank_00_model_states.pt")
        assert sizes_of(tmp_path).parameters == 100

    @pytest.mark.filterwarnings("ignore")
    def test_a_distributed_checkpoint(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict

        weights, states = get_state_dict(*trained())
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id=tmp_path / "step-20")
        sizes = sizes_of(tmp_path)
        assert sizes.checkpoint.layout is Layout.TORCH_DCP
        assert sizes.parameters == 24
        roles = {one.role: one.elements for file in sizes.checkpoint.files for one in file.contents or ()}
        assert roles[Role.WEIGHTS] == 24
        assert roles[Role.MOMENTS] == 48
        shard = next((tmp_path / "step-20").glob("*.distcp"))
        shard.write_bytes(shard.read_bytes()[:-100])
        answer = run(capsys, "checkpoint", tmp_path)
        assert answer.code == 4
        assert "is cut off" in answer.err
        (tmp_path / "step-20" / ".metadata").unlink()
        assert ".metadata is missing" in run(capsys, "checkpoint", tmp_path).err


class TestLayouts:
    def test_the_tracker_chooses_and_the_others_are_listed(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = (FIXTURES / "deepspeed_zero1/global_step2/mp_rank_00_model_states.pt").read_bytes()
        for tag in ("global_step9", "global_step10", "global_step100"):
            (tmp_path / tag).mkdir()
            (tmp_path / tag / "mp_rank_00_model_states.pt").write_bytes(source)
        assert read_checkpoint(tmp_path).tag == "global_step100"  # by number, not by letters
        (tmp_path / "latest").write_text("global_step10\n")
        assert read_checkpoint(tmp_path).tag == "global_step10"
        assert list(read_checkpoint(tmp_path).other_tags) == ["global_step9", "global_step100"]
        (tmp_path / "latest").write_text("global_step11")
        answer = run(capsys, "checkpoint", tmp_path)
        assert answer.code == 4
        assert "names global_step11 as the latest checkpoint, which is missing" in answer.err

    def test_megatrons_tracker_is_a_number(self, tmp_path: Path) -> None:
        for number in (10, 20):
            folder = tmp_path / f"iter_{number:07d}" / "mp_rank_00"
            folder.mkdir(parents=True)
            (folder / "model_optim_rng.pt").write_bytes(b"x")
        (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")
        assert read_checkpoint(tmp_path).tag == "iter_0000010"

    def test_the_universal_format_holds_12_bytes_a_parameter(self, tmp_path: Path) -> None:
        import torch

        for name, count in (("a.weight", 50), ("b.bias", 10)):
            folder = tmp_path / "global_step5_universal" / "zero" / name
            folder.mkdir(parents=True)
            for state in ("fp32", "exp_avg", "exp_avg_sq"):
                torch.save({"param": torch.zeros(count)}, folder / f"{state}.pt")
        sizes = sizes_of(tmp_path)
        assert sizes.checkpoint.layout is Layout.DEEPSPEED_UNIVERSAL
        assert sizes.parameters == 60
        assert parts(sizes)["optimizer"] == 12 * 60

    def test_experts_are_counted(self, tmp_path: Path) -> None:
        import torch

        torch.save({"module": {"w": torch.zeros(10).bfloat16()}}, tmp_path / "mp_rank_00_model_states.pt")
        for expert in range(4):
            name = f"layer_0_expert_{expert}_mp_rank_00_model_states.pt"
            torch.save({"w": torch.zeros(100).bfloat16()}, tmp_path / name)
        sizes = sizes_of(tmp_path)
        assert sizes.checkpoint.has_experts
        assert sizes.parameters == 410

    def test_safetensors_with_an_index(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for shard in (1, 2):
            write_safetensors(tmp_path / f"model-0000{shard}-of-00002.safetensors", {f"w{shard}": ("BF16", [4, 8])})
        files = {f"w{shard}": f"model-0000{shard}-of-00002.safetensors" for shard in (1, 2)}
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {"total_size": 128}, "weight_map": files}))
        sizes = sizes_of(tmp_path)
        assert sizes.checkpoint.layout is Layout.HUGGING_FACE
        assert sizes.parameters == 64
        assert parts(sizes)["weights"] == 128
        assert kinds(sizes) == {"weights_only"}
        index.write_text(json.dumps({"metadata": {"total_size": 130}, "weight_map": files}))
        assert read_checkpoint(tmp_path).damage == (f"{index.name} states 130 bytes of tensors, the headers 128",)
        (tmp_path / "model-00002-of-00002.safetensors").unlink()
        answer = run(capsys, "checkpoint", tmp_path)
        assert answer.code == 4
        assert "model-00002-of-00002.safetensors is missing" in answer.err


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]], cut: int = 0) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = {"BF16": 2, "F32": 4}[dtype]
        for part in shape:
            size *= part
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end - cut))


class Calls:
    """An object whose pickle calls a function when it is loaded."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


class TestHostileFiles:
    def test_a_call_of_the_system_is_named_and_never_made(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        import torch

        marker = tmp_path / "was_called"
        (tmp_path / "c").mkdir()
        state = {"module": {"w": torch.zeros(3)}, "x": Calls(os.system, f"touch {marker}")}
        torch.save(state, tmp_path / "c" / "mp_rank_00_model_states.pt")
        answer = run(capsys, "checkpoint", tmp_path / "c")
        assert answer.code == 4
        assert "would call posix.system when it is loaded" in answer.err
        assert not marker.exists()

    @pytest.mark.parametrize(
        "content",
        [
            b"cos\nsystem\n(S'x'\ntR.",  # protocol 0
            b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R.",  # names from the stack
            b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x01x\x85R.",
            b"\x80\x04\x8c\x05torch\x8c\x12serialization.os.x\x93\x8c\x01x\x85R.",  # through another's imports
            b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93\x8c\x02os\x8c\x04path\x93\x8c\x06system\x86R\x8c\x01x\x85R.",
            b"\x80\x04(K\x01K\x02l\x8c\x06system\x93.",  # a name that is no text
            b"\x80\x02(S'x'\nios\nsystem\n.",
        ],
    )
    def test_every_way_to_name_a_function_is_seen(self, tmp_path: Path, content: bytes) -> None:
        with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
            archive.writestr("archive/data.pkl", content)
        checkpoint = read_checkpoint(tmp_path / "model.pt")
        assert checkpoint.files[0].dangerous_calls
        assert checkpoint.damage

    def test_an_enum_is_no_danger(self, tmp_path: Path) -> None:
        content = b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93\x8c\x08megatron\x8c\x04Kind\x93\x8c\x03GPT\x86R."
        with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
            archive.writestr("archive/data.pkl", content)
        assert not read_checkpoint(tmp_path / "model.pt").damage

    def test_a_zip_bomb_is_not_unpacked(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with zipfile.ZipFile(tmp_path / "model.pt", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", bytes(300 * 2**20))
        answer = run(capsys, "checkpoint", tmp_path)
        assert answer.code == 4
        assert "is a zip bomb" in answer.err

    def test_a_zip_with_a_directory_of_terabytes_is_refused(self, tmp_path: Path) -> None:
        end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 2**31, 0, 0)
        (tmp_path / "model.pt").write_bytes(b"PK\x03\x04" + bytes(100) + end)
        with pytest.raises(TorchDamage, match="directory of 2,147,483,648 bytes"):
            read_torch_file(tmp_path / "model.pt")

    def test_a_name_in_the_zip_that_is_no_text_is_damage(self, tmp_path: Path) -> None:
        content = bytearray((FIXTURES / "deepspeed_zero1/global_step2/mp_rank_00_model_states.pt").read_bytes())
        entry = content.index(b"PK\x01\x02")
        content[entry + 9] |= 0x08  # the name is said to be UTF-8
        content[entry + 46] = 0x80
        (tmp_path / "model.pt").write_bytes(content)
        with pytest.raises(TorchDamage, match="is no complete zip archive"):
            read_torch_file(tmp_path / "model.pt")

    def test_references_in_circles_and_deep_nesting_end(self, tmp_path: Path) -> None:
        nested = b"]" * 100_000 + b"a" * 99_999
        circle = b"]q\x00h\x00a"
        for inside in (nested, circle):
            with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
                archive.writestr("archive/data.pkl", b"\x80\x02" + inside + b".")
            assert read_torch_file(tmp_path / "model.pt").tensors == ()

    @pytest.mark.parametrize(
        ("name", "content", "problem"),
        [
            ("model.pt", b"", "is empty"),
            ("model.pt", b"PK\x03\x04" + bytes(100), "cut off"),
            ("model.pt", b"<html>404</html>", "is no file of torch.save"),
            ("model.pt", bytes(5000), "zeros only"),
            ("model.pt", b"\x80\x02}q\x00(X\x05\x00\x00\x00mode", "no complete pickle"),
            ("model.safetensors", b"", "is no complete safetensors file"),
            ("model.safetensors", b"\xff" * 8 + b"{}", "is no complete safetensors file"),
            ("model.safetensors", struct.pack("<Q", 2) + b"[]", "no JSON object"),
            ("model.safetensors", struct.pack("<Q", 9) + b'{"a":{}} ', "no complete entry for 'a'"),
        ],
    )
    def test_damage_is_one_clear_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, problem: str
    ) -> None:
        (tmp_path / name).write_bytes(content)
        answer = run(capsys, "checkpoint", tmp_path)
        assert answer.code == 4
        assert problem in answer.err
        assert "Traceback" not in answer.err

    def test_safetensors_that_are_cut_off(self, tmp_path: Path) -> None:
        write_safetensors(tmp_path / "model.safetensors", {"w": ("F32", [100])}, cut=4)
        assert "describes 400 bytes of tensors, 396 are present" in read_checkpoint(tmp_path).damage[0]

    @pytest.mark.parametrize("make", [lambda folder: folder / "nowhere", lambda folder: folder])
    def test_no_checkpoint_at_all_ends_with_1(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Any
    ) -> None:
        (tmp_path / "notes.txt").write_text("x")
        answer = run(capsys, "checkpoint", make(tmp_path))
        assert answer.code == 1
        assert len(answer.err.splitlines()) <= 2

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def test_no_damage_ever_escapes(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        """Every cut and every changed byte of a real file gives tensors or a TorchDamage, never another error."""
        whole = (FIXTURES / "deepspeed_zero3/global_step2/zero_pp_rank_0_mp_rank_00_model_states.pt").read_bytes()
        changed = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
        for _ in range(data.draw(st.integers(0, 8))):
            if changed:
                changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
        path = tmp_path_factory.getbasetemp() / "changed.pt"
        path.write_bytes(changed)
        with contextlib.suppress(TorchDamage):
            read_torch_file(path)

    @settings(max_examples=150, deadline=None)
    @given(st.binary(max_size=200), st.sampled_from([b"\x80\x02", b"\x80\x04", b"("]))
    def test_random_pickles_are_read_or_refused(
        self, tmp_path_factory: pytest.TempPathFactory, content: bytes, start: bytes
    ) -> None:
        path = tmp_path_factory.getbasetemp() / "random.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", start + content + b".")
        with contextlib.suppress(TorchDamage):
            read_torch_file(path)


def test_nothing_of_ours_loads_a_pickle() -> None:
    """No source file names a function that loads one; hooks run inside the job and may."""
    root = ROOT
    forbidden = ("pickle." + "load", "torch." + "load(", "Unpickler", "import " + "pickle\n", "import " + "dill")
    for folder in ("perfscope/sources", "perfscope/commands", "perfscope/regenerate", "analyzers"):
        for path in (root / folder).rglob("*.py"):
            assert not [name for name in forbidden if name in path.read_text()], path
    assert pickle.loads(pickle.dumps(1)) == 1
