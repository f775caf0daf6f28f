"""Makes a trace like a real one of a GPU training run with stacks, for measuring where no real one is at hand.

The mix of events, their texts and their order follow a torch.profiler export of twelve steps of a GPT on one H200: 209
MB of JSON with 639,000 events, of which the device ran 37,000. Times are made up, so only speed can be measured on it.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

STEPS = 12
OPERATORS, FRAMES, ALLOCATIONS, KERNELS = 19281, 10220, 7062, 3046  # in each step
_STEP_US = 150_000
_PROCESS = 2581
_START_US = 4_363_044_231_764
_KERNELS = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float, "
    "float const*, float const*, float const*, float*, float*, float*)",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, "
    "(at::native::(anonymous namespace)::ADAM_MODE)1, false>, float const*, double, double, double>(long)" + "x" * 400,
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
)
_HEAD = (
    '\n  {\n    "schemaVersion": 1,\n    "deviceProperties": [\n    {\n      "id": 0, "name": "NVIDIA H200"\n    }\n'
    "    ],\n"
    '      "distributedInfo": {"backend": "nccl", "rank": %d, "world_size": %d, "pg_count": 1, "pg_config": '
    '[{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": %d, "ranks": [%s]}]},\n'
    '  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": 1790857026000000000,\n  "traceEvents": [\n'
)


def make(path: Path, steps: int = STEPS, rank: int = 0, world_size: int = 1) -> Path:
    """Write a trace; twelve steps make 200 MB of JSON."""
    ranks = ", ".join(str(member) for member in range(world_size))
    with gzip.open(path, "wt", compresslevel=4) as file:
        file.write(_HEAD % (rank, world_size, world_size, ranks))
        separator = ""
        for event in _events(steps):
            file.write(separator + event)
            separator = ",\n"
        file.write('\n  ],\n  "traceName": "made.json"\n}\n')
    return path


def _events(steps: int) -> Iterator[str]:
    for step in range(steps):
        yield from _on_host(step)
    for step in range(steps):
        yield from _on_device(step)


def _span(category: str, name: str, start: float, length: float, args: str, *, device: int | None = None) -> str:
    """An event of the main thread, or of a stream of the device."""
    process, thread = (_PROCESS, _PROCESS) if device is None else (0, device)
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {process}, "tid": {thread},\n'
        f'    "ts": {_START_US + start:.3f}, "dur": {length:.3f},\n    "args": {{\n      {args}\n    }}\n  }}'
    )


def _on_host(step: int) -> Iterator[str]:
    begin = step * _STEP_US
    yield _span("user_annotation", f"ProfilerStep#{step + 4}", begin, _STEP_US - 10, '"External id": 1')
    pace = _STEP_US / OPERATORS
    for number in range(OPERATORS):
        identity = step * OPERATORS + number
        yield _span(
            "cpu_op", "aten::addmm", begin + number * pace, pace * 0.8,
            f'"External id": {identity},"Record function id": 0, "Concrete Inputs": ["", "", "", "1", "1", ""], '
            '"Input type": ["float", "float", "float", "Scalar", "Scalar", "float"], "Input Strides": [[1], [2048, 1], '
            f'[1, 2048], [], [], [8192, 1]], "Input Dims": [[8192], [8192, 2048], [2048, 8192], [], [], '
            f'[8192, 8192]], "Ev Idx": {identity}',
        )  # fmt: skip
    for number in range(FRAMES):
        yield _span(
            "python_function", "torch/nn/modules/module.py(1775): _wrapped_call_impl",
            begin + number * _STEP_US / FRAMES, 40.0,
            f'"Python parent id": {number}, "Python id": {number + 1}, "Ev Idx": {number}',
        )  # fmt: skip
    for number in range(ALLOCATIONS):
        yield (
            f'  {{\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n    "pid": {_PROCESS}, '
            f'"tid": {_PROCESS},\n    "ts": {_START_US + begin + number * 20}.125,\n    "args": {{\n      '
            f'"Total Reserved": 12572426240, "Total Allocated": {12221346304 + number}, "Bytes": -512, '
            '"Device Id": 0, "Device Type": 1, "Addr": 139802500980224, "finished": false, '
            f'"Ev Idx": {number}\n    }}\n  }}'
        )


def _on_device(step: int) -> Iterator[str]:
    pace = _STEP_US / KERNELS
    for number in range(KERNELS):
        correlation = step * KERNELS + number + 1
        launched = step * _STEP_US + number * pace
        yield _span(
            "cuda_runtime", "cudaLaunchKernel", launched, 5.125,
            f'"External id": {step * OPERATORS + number * 6}, "cbid": 211, "correlation": {correlation}',
        )  # fmt: skip
        yield _arrow("s", correlation, _PROCESS, _PROCESS, launched)
        yield _kernel(number, correlation, step * OPERATORS + number * 6, launched + 30, pace * 0.7)
        yield _arrow("f", correlation, 0, 7, launched + 30)


def _arrow(phase: str, identity: int, process: int, thread: int, start: float) -> str:
    return (
        f'  {{\n    "ph": "{phase}", "id": {identity}, "pid": {process}, "tid": {thread}, '
        f'"ts": {_START_US + start:.3f},\n'
        '    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }'
    )


def _kernel(number: int, correlation: int, external_id: int, start: float, length: float) -> str:
    stream = 20 if number % len(_KERNELS) == len(_KERNELS) - 1 else 7
    return _span(
        "kernel", _KERNELS[number % len(_KERNELS)], start, length,
        f'"External id": {external_id},      "queued": 0, "device": 0, "context": 1,      "stream": {stream}, '
        f'"correlation": {correlation},      "registers per thread": 32,      "shared memory": 0,      '
        '"blocks per SM": 7.757576,      "warps per SM": 62.060608,      "grid": [1024, 1, 1],      '
        '"block": [256, 1, 1],      "est. achieved occupancy %": 97',
        device=stream,
    )  # fmt: skip
