"""Megatron's iteration line and what stands around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sources.joblog.lines import megatron, read, seconds

BANNER = "using world size: 8, data-parallel-size: 1, tensor-model-parallel size: 4, pipeline-model-parallel size: 2 \n"


def test_a_line_of_2021(tmp_path: Path) -> None:
    log = read(tmp_path, BANNER, megatron(1, 5837.9), megatron(2, 5000.0))
    assert log.framework == "megatron-lm"
    assert log.iterations.wall_ns.tolist() == [5_837_900_000, 5_000_000_000]
    assert log.iterations.samples.tolist() == [1024, 1024]
    assert log.iterations.loss.tolist() == [7.1, 7.1]
    assert {name: log.number(name) for name in ("gpus", "dp", "tp", "pp")} == {"gpus": 8, "dp": 1, "tp": 4, "pp": 2}


def test_equals_signs_and_underscores_are_a_dialect(tmp_path: Path) -> None:
    line = (
        "> [2024-04-21 02:45:24][INFO][training:1251] -  iteration=       2/  317892 | consumed_samples=         512 | "
        "elapsed_time_per_iteration_ms=16030.6 | learning_rate=0.0 | global_batch_size=  256 | lm loss=11.208171 | "
        "loss_scale=65536.0 | number_of_skipped_iterations=  0 | number_of_nan_iterations=  0 | "
        "samples_per_second=15.969 | TFLOPs=160.07 |\n"
    )
    log = read(tmp_path, line)
    assert seconds(log) == [16.0306]
    assert log.iterations.samples.tolist() == [256]
    assert log.iterations.samples_per_s.tolist() == [15.969]


def test_the_line_before_a_record_of_megatron_bridge_states_its_tflops(tmp_path: Path) -> None:
    """NVIDIA-NeMo/Megatron-Bridge: tutorials/training/reduced_precision_training.ipynb, and train_utils.py today."""
    log = read(
        tmp_path,
        "Step Time : 11.65s GPU utilization: 1158.1TFLOP/s/GPU\n",
        megatron(1, 11653.2),
        "Step Time : 8.57s GPU utilization: 1574.0MODEL_TFLOP/s/GPU\n",
        megatron(2, 8570.0),
        "Step Time : 8.63s GPU utilization: 0.0MODEL_TFLOP/s/GPU\n",  # of hybrids: docs/releases/known-issues.md
        megatron(3, 8630.0),
        "Step Time : 8.63s GPU utilization: 1562.8MODEL_TFLOP/s/GPU\n",
        megatron(4, 7470.0),
    )
    assert log.iterations.tflops_per_gpu.tolist() == [1158.1, 1574.0, None, None]
    assert log.iterations.tflops_resolution.tolist() == [0.1, 0.1, None, None]


@pytest.mark.parametrize("width", [60, 80, 97, 132])
def test_a_record_broken_by_a_narrow_terminal_is_one(tmp_path: Path, width: int) -> None:
    line = megatron(12, 5837.9).rstrip("\n")
    broken = "\n".join(line[at : at + width] for at in range(0, len(line), width)) + "\n"
    log = read(tmp_path, broken, "time (ms) | forward-compute: 1.0\n", megatron(13, 100.0))
    assert seconds(log) == [5.8379, 0.1]
    assert log.iterations.iteration.tolist() == [12, 13]


@pytest.mark.parametrize("text", ["nan", "inf", "1.2.3", "-5.0", "0.0", ""])
def test_a_time_that_is_no_time_is_counted_and_left_out(tmp_path: Path, text: str) -> None:
    log = read(tmp_path, megatron(1, 100.0), megatron(2, text), megatron(3, 100.0))
    assert seconds(log) == [0.1, 0.1]
    assert log.unreadable == 1


def test_a_save_is_timed_by_its_timer_the_slowest_rank(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        megatron(10, 100.0),
        "[2026-11-21 00:35:41.000000] saving checkpoint at iteration      10 to /ckpt in torch format\n",
        "  [2026-11-21 00:35:46.000000] successfully saved checkpoint from iteration      10 to /ckpt [ t 1/2, p 1/2 ]\n",
        "(min, max) time across ranks (ms):\n",
        "    save-checkpoint ................................: (81611.24, 81611.82)\n",
    )
    [save] = log.saves
    assert (save.iteration, save.wall_ns, save.source, save.path) == (10, 81_611_820_000, "timer", "/ckpt")


def test_timers_of_every_option_are_read(tmp_path: Path) -> None:
    dots = "forward-backward ................................: "
    largest = f"max time across ranks (ms):\n    {dots}700.12\n"
    both = f"(min, max) time across ranks (ms):\n    {dots}(600.00, 650.50)\n"
    for index, (text, expected) in enumerate([(largest, 700.12), (both, 650.5)]):
        log = read(tmp_path, megatron(10, 812.0), text, megatron(20, 812.0), name=f"{index}.log")
        timer = log.timers[0]
        assert (timer.name, timer.lines, timer.mean_ns / 1e6) == ("forward-backward", 1, expected)


def test_the_first_iteration_may_be_printed_by_itself_and_counted_again(tmp_path: Path) -> None:
    stamp = " [2026-11-21 00:35:21.604905]"
    interval = "  log_interval ............ 10\n"
    fresh = read(tmp_path, interval, *(megatron(n, 100.0, prefix=stamp) for n in (1, 10, 20, 30)))
    assert fresh.iterations.span.tolist() == [1, 10, 10, 10]
    assert fresh.iterations.before.tolist() == [0, 0, 10, 20]
    assert fresh.iterations.new.sum() == 30
    resumed = read(tmp_path, interval, *(megatron(n, 100.0, prefix=stamp) for n in (1004, 1010, 1020, 1030)))
    assert resumed.iterations.span.tolist() == [1, 7, 10, 10]
    assert resumed.iterations.new.sum() == 27
    older = read(tmp_path, interval, *(megatron(n, 100.0) for n in (10, 20, 30)))
    assert older.iterations.before.tolist() == [0, 10, 20]


def test_a_stage_of_zero_means_nothing_without_deepspeed(tmp_path: Path) -> None:
    arguments = "  deepspeed ................ {}\n  zero_stage ............... 1\n"
    assert read(tmp_path, arguments.format("False"), megatron(1, 100.0)).number("zero_stage") is None
    assert read(tmp_path, arguments.format("True"), megatron(1, 100.0)).number("zero_stage") == 1


def test_an_asynchronous_save_holds_training_until_it_is_scheduled(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "[2026-11-21 00:35:41.000000] saving checkpoint at iteration      10 to /ckpt in torch_dist format\n",
        "  [2026-11-21 00:35:41.500000] scheduled an async checkpoint save at iteration      10 to /ckpt\n",
        megatron(11, 100.0),
        "[2026-11-21 00:35:51.000000] saving checkpoint at iteration      20 to /ckpt in torch_dist format\n",
        "  [2026-11-21 00:35:51.250000] scheduled an async checkpoint save at iteration      20 to /ckpt\n",
        "  [2026-11-21 00:35:53.000000] successfully saved checkpoint from iteration      10 to /ckpt\n",
    )
    assert [(save.iteration, save.wall_ns, save.drained_ns, save.asynchronous) for save in log.saves] == [
        (10, 500_000_000, 12_000_000_000, True),
        (20, 250_000_000, None, True),
    ]


def test_arguments_are_read_and_shell_traces_are_not(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "+ MSIZE=7\n",
        "+ CMD='pretrain_gpt.py --num-layers 99 --micro-batch-size 77'\n",
        "------------------------ arguments ------------------------\n",
        "  num_layers ...................................... 64\n",
        "  hidden_size ..................................... 8192\n",
        "  micro_batch_size ................................ 4\n",
        "  checkpoint_activations .......................... True\n",
        "  fp16 ............................................ True\n",
        megatron(1, 100.0),
    )
    assert [log.number(name) for name in ("layers", "hidden", "mbs")] == [64, 8192, 4]
    assert log.fact("checkpointing").value == "full"  # type: ignore[union-attr]


def test_arguments_behind_a_launchers_label_are_read(tmp_path: Path) -> None:
    log = read(
        tmp_path, *(f"[default{rank}]:  hidden_size ............ 8192\n" for rank in range(2)), megatron(1, 100.0)
    )
    assert log.number("hidden") == 8192
    assert log.arguments == {"hidden_size": "8192"}
    config = "[default0]:[2021-05-26 04:38:20,033] [INFO] [config.py:752:print]   world_size ................... 16\n"
    assert read(tmp_path, config, megatron(1, 100.0)).arguments == {}


def test_parameters_are_the_sum_over_all_shards_or_nothing(tmp_path: Path) -> None:
    shard = " > number of parameters on (tensor, pipeline) model parallel rank ({}, {}): {}"
    some = [shard.format(tensor, stage, 100 + stage) + "\n" for tensor in (0, 1) for stage in (0, 1)]
    assert read(tmp_path, *some, megatron(1, 1.0)).number("parameters_of_shards") == 402
    glued = some[0].rstrip("\n") + "".join(some[1:])
    assert read(tmp_path, glued, megatron(1, 1.0)).number("parameters_of_shards") == 402
    assert read(tmp_path, *some[:3], megatron(1, 1.0)).number("parameters_of_shards") is None


def test_memory_is_in_binary_megabytes_and_the_largest_rank_counts(tmp_path: Path) -> None:
    line = "[Rank {}] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: {} | reserved: 2.0 | max reserved: {}"
    log = read(tmp_path, megatron(1, 1.0), line.format(3, 10.0, 20.0) + line.format(1, 11.5, 19.0) + "\n")
    assert log.memory.allocated_bytes == int(11.5 * 2**20)
    assert log.memory.reserved_bytes == 20 * 2**20


def test_deepspeed_beside_megatron_is_megatron_deepspeed_and_counts_once(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "[2021-06-10 20:47:52,226] [INFO] [engine.py:134:__init__] RANK=7 STAGE=1 LAYERS=4 [35, 39) STAGE_PARAMS=805560320 "
        "(805.560M) TOTAL_PARAMS=52453507072 (52453.507M) UNIQUE_PARAMS=52004716544 (52004.717M)\n",
        "steps: 1 loss: 12.7902 iter time (s): 150.471 samples/sec: 6.805\n",
        megatron(1, 150500.0),
        "time (ms)\n",
        "steps: 2 loss: 12.7902 iter time (s): 150.471 samples/sec: 6.805\n",
        megatron(2, 150500.0),
    )
    assert log.framework == "megatron-deepspeed"
    assert len(log.iterations) == 2
    assert [source.name for source in log.other_sources] == ["DeepSpeed's pipeline: iter time"]
    assert log.number("parameters") == 52004716544
    assert log.number("pp") == 2


@pytest.mark.parametrize(
    ("line", "ended", "memory"),
    [
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "device", "device"),
        (
            "slurmstepd: error: *** JOB 1 ON r6i6n5 CANCELLED AT 2021-05-25T05:10:04 DUE TO TIME LIMIT ***",
            "SLURM",
            None,
        ),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0", "host", "host"),
        ("Traceback (most recent call last):", "exception", None),
    ],
)
def test_a_bad_end_is_named(tmp_path: Path, line: str, ended: str, memory: str | None) -> None:
    log = read(tmp_path, megatron(1, 1.0), line + "\n")
    assert log.ended is not None
    assert ended in log.ended
    assert log.out_of_memory == memory


def test_a_run_that_went_on_after_an_error_did_not_end_there(tmp_path: Path) -> None:
    log = read(tmp_path, "Traceback (most recent call last):\n", megatron(1, 1.0))
    assert log.ended is None


def test_damaged_digits_are_no_figures(tmp_path: Path) -> None:
    lines = [megatron(1, 100.0), megatron(2, "99999999999999999999999.0"), megatron(3, "0.0000000001")]
    beyond = megatron(4, 100.0).replace("iteration        4/", "iteration 99999999999999999999/")
    log = read(tmp_path, *lines, beyond, megatron(5, 100.0))
    assert log.iterations.iteration.tolist() == [1, 2, 3, 5]
    assert seconds(log) == [0.1, None, None, 0.1]
