"""Makes runs of as many ranks and steps as wanted, with traces and NVML samples, without training anything.

Ranks compute, then reduce their gradients; the last rank is late in each step, and each clock is off by its own offset.
Times are made up; the layout of the files is that of ``perfscope profile`` on GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isal import igzip

_STEP_US = 20_000
_LAYERS, _LAYERS_OF_A_BLOCK = 12, 4
_KERNELS = (
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT",
    "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16> >(int)",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128",
)
_NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_BASE_NS = 1_790_857_026_000_000_000
_START_NS = 200_000_000_000
_BYTES = 33_554_432
_LATE_US = 900
_FIRST_PROFILED = 5
_RANKS_OF_A_HOST = 8


@dataclass(frozen=True, slots=True)
class SyntheticRun:
    """What is made.

    Attributes:
        ranks: How many ranks.
        steps: How many steps each trains.
        profiled: How many of them are traced; 0 for a run without traces.
        kernels: Names of the kernels.
        layers: How often each kernel runs in a step.
        samples_nvml: Whether NVML is sampled.
    """

    ranks: int = 1
    steps: int = 12
    profiled: int = 2
    kernels: Sequence[str] = field(default=_KERNELS)
    layers: int = _LAYERS
    samples_nvml: bool = True


def write_run(folder: Path, shape: SyntheticRun) -> Path:
    """Write the run's folder."""
    folder.mkdir(parents=True)
    command = ["torchrun", "--nproc_per_node", "8", "train.py"]
    description = {
        "schema": "perfscope/run/1", "perfscope": "0.1.0", "command": command, "exit_status": "ended with exit code 0",
        "host": "host0", "started_ns": _BASE_NS, "run_id": "made",
    }  # fmt: skip
    _write_json(folder / "run.json", description)
    for rank in range(shape.ranks):
        _write_rank(folder, rank, shape)
    if shape.samples_nvml:
        for host in range((shape.ranks - 1) // _RANKS_OF_A_HOST + 1):
            _write_nvml(folder, host, shape)
    return folder


def _write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value) + "\n")


def _write_lines(path: Path, lines: Iterator[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def _write_rank(folder: Path, rank: int, shape: SyntheticRun) -> None:
    own = folder / "ranks" / f"{rank:05d}"
    host = rank // _RANKS_OF_A_HOST
    _write_json(
        own / "rank.json",
        {
            "rank": rank, "world_size": shape.ranks, "host": f"host{host}", "pid": 1000 + rank, "wall_ns": _BASE_NS,
            "monotonic_ns": _START_NS, "device_type": "cuda", "device_name": "NVIDIA H200", "run_id": "made",
            "device_uuid": f"GPU-{rank}", "device_uuids": [f"GPU-{rank}"], "device_index": rank % _RANKS_OF_A_HOST,
            "python": "3.12.3", "torch": "2.11.0", "argv": ["train.py"],
        },
    )  # fmt: skip
    _write_lines(own / "steps.jsonl", _steps(rank, shape))
    if shape.profiled:
        name = f"host{host}_{1000 + rank}.{_BASE_NS}.pt.trace.json"
        last = _FIRST_PROFILED + shape.profiled - 1
        window = {
            "first_step": _FIRST_PROFILED, "last_step": last, "trace": name, "start_ns": 1_000_000,
            "stop_ns": 1_000_000, "export_ns": 1_000_000, "trace_bytes": 100_000, "partial": False, "kind": "window",
        }  # fmt: skip
        _write_lines(own / "events.jsonl", iter([window]))
        write_trace(folder / "traces" / f"{name}.gz", rank, shape)


def _steps(rank: int, shape: SyntheticRun) -> Iterator[object]:
    for step in range(1, shape.steps + 1):
        wall_ns = _STEP_US * 1000 + (rank * 7919 + step * 104_729) % 300_000 + (5_000_000 if step == 1 else 0)
        end_ns = _START_NS + step * (_STEP_US * 1000 + 400_000) + 6_000_000
        line: dict[str, object] = {
            "step": step, "end_ns": end_ns, "source": "torch",
            "wall_ns": wall_ns, "micro_batches": 1, "samples": 8, "tokens": 8192, "data_wait_ns": 200_000,
            "memory_peak_bytes": 13_000_000_000 + rank * 1000,
        }  # fmt: skip
        if shape.profiled and _FIRST_PROFILED <= step < _FIRST_PROFILED + shape.profiled:
            line["window"] = "profiled"
        if step % 50 == 0:
            line["spans"] = [["garbage", end_ns - 9_000_000, end_ns - 5_000_000, 0]]
        yield line


def write_trace(path: Path, rank: int, shape: SyntheticRun) -> Path:
    """Write the trace of a rank, as torch.profiler does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    listed = ", ".join(map(str, range(shape.ranks)))
    head = (
        '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "distributedInfo": {"backend": '
        f'"nccl", "rank": {rank}, "world_size": {shape.ranks}, "pg_count": 1, "pg_config": [{{"pg_name": "0", '
        f'"pg_desc": "default_pg", "pg_size": {shape.ranks}, "ranks": [{listed}]}}]}}, "displayTimeUnit": "ms", '
        f'"baseTimeNanoseconds": {_BASE_NS}, "traceEvents": [\n'
    )
    events = ",\n".join(json.dumps(event) for event in _events(rank, shape))
    path.write_bytes(igzip.compress(f"{head}{events}\n]}}\n".encode(), 1))
    return path


def _events(rank: int, shape: SyntheticRun) -> Iterator[dict[str, object]]:
    """Host and device of each profiled step; the clock of a rank is off by its own offset."""
    clock_us = 4_000_000_000 + (rank * 37) % 1000
    correlation = 0
    for number in range(shape.profiled):
        begin = clock_us + number * (_STEP_US + 400)
        yield _span("user_annotation", f"ProfilerStep#{_FIRST_PROFILED + number}", begin, _STEP_US, 1000 + rank, 1)
        late = _LATE_US if shape.ranks > 1 and rank == shape.ranks - 1 else 0
        at: float = begin + 300 + late + (rank * 131) % 90
        for layer in range(shape.layers):
            for index, name in enumerate(shape.kernels):
                correlation += 1
                length = (3000 + 500 * index) / shape.layers + (rank * 17 + layer * 29) % 5
                yield _span("cuda_runtime", "cudaLaunchKernel", at - 120, 6, 1000 + rank, 1, correlation=correlation)
                yield _kernel(name, at, length, correlation)
                at += length + (2 if layer % _LAYERS_OF_A_BLOCK else 8)
        if shape.ranks > 1:
            yield from _reduce(rank, shape, begin, at, correlation)
            correlation += 4


def _reduce(rank: int, shape: SyntheticRun, begin: float, at: float, correlation: int) -> Iterator[dict[str, object]]:
    """Four all-reduces, which all ranks leave at the same moment of the true time."""
    for index in range(4):
        end = begin + 14_600 + _LATE_US + 1200 * index
        start = min(at + 10, end - 700) if index == 0 else end - 1150
        args = {
            "Collective name": "allreduce", "In msg nelems": _BYTES // 2, "Out msg nelems": _BYTES // 2,
            "Group size": shape.ranks, "dtype": "BFloat16", "Process Group Name": "0",
            "Process Group Description": "default_pg",
        }  # fmt: skip
        yield _span(
            "cuda_runtime", "cudaLaunchKernel", start - 60, 6, 1000 + rank, 1, correlation=correlation + index + 1
        )
        event = _kernel(_NCCL, start, end - start, correlation + index + 1)
        assert isinstance(event["args"], dict)
        event["args"].update(args)
        yield event


def _kernel(name: str, start: float, length: float, correlation: int) -> dict[str, object]:
    args = {"device": 0, "stream": 7, "correlation": correlation}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": length, "args": args}


def _span(
    category: str, name: str, start: float, length: float, process: int, thread: int, **args: object
) -> dict[str, object]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "ts": start, "dur": length,
        "args": args,
    }  # fmt: skip


def _write_nvml(folder: Path, host: int, shape: SyntheticRun) -> None:
    ranks = range(host * _RANKS_OF_A_HOST, min((host + 1) * _RANKS_OF_A_HOST, shape.ranks))
    gpus = [
        {
            "index": rank % _RANKS_OF_A_HOST, "uuid": f"GPU-{rank}", "name": "NVIDIA H200", "power_limit_mw": 700_000,
            "memory_total_bytes": 150_000_000_000, "sm_clock_max_mhz": 1980, "mig": False,
        }
        for rank in ranks
    ]  # fmt: skip
    head = {"host": f"host{host}", "wall_ns": _BASE_NS, "t_ns": _START_NS, "hz": 5.0, "driver": "580", "gpus": gpus}

    def lines() -> Iterator[object]:
        yield head
        length_ns = shape.steps * (_STEP_US * 1000 + 400_000)
        count = min(max(shape.steps, 8), 400)
        for index in range(count):
            t_ns = _START_NS + length_ns * index // count
            yield {
                "t_ns": t_ns,
                "gpus": [
                    {
                        "power_mw": 400_000 + (rank * 31 + index * 17) % 90 * 1000, "throttle": 0, "sm_clock_mhz": 1900,
                        "gpu_util_percent": 90, "memory_used_bytes": 20_000_000_000, "temperature_c": 50 + rank % 9,
                    }
                    for rank in ranks
                ],
            }  # fmt: skip

    _write_lines(folder / "nvml" / f"host{host}.jsonl", lines())
