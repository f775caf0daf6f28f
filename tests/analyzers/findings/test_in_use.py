"""No finding advises what a run uses already: each option is advised where it is off, and no more where it is on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perfscope.analyzers.findings import batches, beside, exchange, host, kernels, memory, operators, stages
from perfscope.analyzers.findings.facts import Facts
from perfscope.analyzers.findings.finding import Cause
from perfscope.analyzers.findings.training import Training

Find = Callable[[Training], Cause | None]
FP32, BF16 = "ampere_sgemm_128x128_nn", "nvjet_sm90_tst_256x128_64x4"
SOFTMAX = "void softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 10, false, false>(...)"
SOFTMAX_FP32 = "void softmax_warp_forward<float, float, float, 10, false, false>(...)"
FLASH = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7"
TRITON = "triton_poi_fused__to_copy_view_2"
SEGMENTS = {"allocator": "max_split_size_mb:512,expandable_segments:True"}


def named(*names: str) -> dict[str, Any]:
    rows = [{"name": name, "work": "compute", "total_us": 900.0, "calls": 100, "max_us": 9.0} for name in names]
    return {"kernels": {"names": rows}}


def setup(source: str = "", top: dict[str, Any] | None = None, **rank: Any) -> dict[str, Any]:
    """How a run is set up, and which framework ends its steps."""
    steps: dict[str, Any] = {"source": source, "count": 40, "median_s": 0.01, "step_time_s": 0.01}
    means = {"step_s": 0.01, "data_wait_s": 0.004, "garbage_s": 0.002, "garbage_steps": 3, "alloc_retries": 0.0}
    steps["ranks"] = [{"rank": 0, "undisturbed": 30, "memory_peak_bytes": 9, "means": means}]
    return {"setup": {"ranks": [{"rank": 0, **rank}], **(top or {})}, "steps": steps}


def options(*names: str) -> dict[str, Any]:
    return setup("megatron", options=dict.fromkeys(names, ""))


def traced(**causes_us: float) -> dict[str, Any]:
    times = {"compute_us": 2000.0, "exposed_communication_us": 3000.0, "exposed_copy_us": 900.0}
    rank = {"rank": 0, "device": 0, "trace": "0", "steps": [{}], "marked": times, "outside": {"steps": 0.0}}
    idle = {f"{cause}_us": us for cause, us in causes_us.items()}
    calls = {"blocked_us": 500.0, "regained_us": 500.0, "calls": 4, "bytes": 10**6}
    waits = [{"kind": "synchronisation", "operator": None, "function": None, **calls}]
    return {
        "breakdown": {"ranks": [rank]},
        "idle": {"ranks": [{"rank": 0, "trace": "0", "device": 0, "causes": idle, "marked": idle}]},
        "calls": {"ranks": [{"rank": 0, "synchronisation": calls, "allocation": calls, "pageable": calls,
                             "callers": waits}]},
        "overlap": {"axes": [{"axis": "DP", "marked": {"exposed_us": 3000.0, "overlap_fraction": 0.5}}]},
    }  # fmt: skip


def advice(find: Find, *results: dict[str, Any]) -> str | None:
    """What a rule advises; None where it finds nothing."""
    whole: dict[str, Any] = {}
    for part in (traced(host_launch=900.0, not_shown=900.0), *results):
        for name, value in part.items():
            whole[name] = {**whole[name], **value} if isinstance(value, dict) and name in whole else value
    cause = find(Training(Facts(whole)))
    return None if cause is None else cause.advice


def loader(**changes: Any) -> dict[str, Any]:
    return setup(loaders=[{"workers": 2, "pin_memory": False, "prefetch": 2, "persistent": False, **changes}])


def collectives(dtype: str, size: int = 500, operation: str = "all_reduce") -> dict[str, Any]:
    row = {"operation": operation, "bytes": size, "calls": 40, "dtype": dtype, "duration_us": 900.0, "wait_us": 0.0}
    return {"collectives": {"operations": [row]}}


def saved(asynchronous: bool) -> dict[str, Any]:
    return {"saves": {"blocked_s": 2.0, "saves": [{"asynchronous": asynchronous}] * 2}}


PAGEABLE = {"kernels": {"names": [{"name": "Memcpy HtoD (Pageable -> Device)", "work": "copy", "total_us": 900.0}]}}
COMPILED = {"wall_clock": {"ranks": [{"parts_ns": {"compilation": 10**9}}]}}
NORMS = {"modules": {"ranks": [{"rank": 0, "modules": [
    {"path": "layers.0.norm", "calls": 2, "self_kernels": 40, "self_us": 900.0}]}]}}  # fmt: skip
LOSS = {"roofline": {"ranks": [{"rank": 0, "operators": [
    {"operator": "_log_softmax", "inputs": "fp32 64x32000", "device_us": 300.0},
    {"operator": "copy_", "inputs": "fp32 64x32000, bf16 64x32000", "device_us": 300.0}]}]}}  # fmt: skip
GATHER = {"roofline": {"ranks": [{"rank": 0, "operators": [
    {"operator": "index", "category": "embedding and indexing", "share": 0.1, "kernels": 4, "device_us": 900.0,
     "regain_us": 800.0, "calls": 4, "inputs": "fp32 9x9", "bound": "memory"}]}]}}  # fmt: skip
FOREACH = {"optimizer": {"ranks": [{"rank": 0, "name": "AdamW", "way": "foreach", "device_us": 900.0, "kernels": 99}]}}
FRAGMENTED = {"memory": {"devices": [{"rank": 0, "reserved_bytes": 95, "unused_bytes": 30, "device_bytes": 100}]}}
FREE = {"gpus": [{"memory_total_bytes": 100}]}


def has_fused(*, is_there: bool, fused: bool | None = None) -> dict[str, Any]:
    return setup(optimizer={"name": "AdamW", "has_fused": is_there, "fused": fused})


def recomputes(how: str, source: str = "") -> dict[str, Any]:
    share = {"full": 1.0, "selective": 0.4}[how]
    return {**setup(source), **FREE, "mfu": {"recomputed_share": share, "checkpointing": how}}


#: A rule, the option, results in which it is off, and those in which it is on.
CASES: list[tuple[Find, str, list[dict[str, Any]], list[dict[str, Any]]]] = [
    (batches.find_slow_loading, "persistent_workers", [loader()], [loader(persistent=True)]),
    (batches.find_slow_loading, "prefetch_factor", [loader()], [loader(prefetch=8)]),
    (batches.find_unpinned_copies, "pin_memory=True", [loader(), PAGEABLE], [loader(pin_memory=True), PAGEABLE]),
    (beside.find_garbage_collection, "gc.disable()", [setup()], [setup(collects_garbage=False)]),
    (beside.find_garbage_collection, "--manual-gc ", [options()], [setup("megatron", collects_garbage=False)]),
    (beside.find_blocking_saves, "async_save", [setup(), saved(False)], [setup(), saved(True)]),
    (beside.find_blocking_saves, "--async-save", [options(), saved(False)], [options("--async-save"), saved(False)]),
    (exchange.find_exposed_communication, "--overlap-grad-reduce", [options()], [options("--overlap-grad-reduce")]),
    (exchange.find_exposed_communication, "--overlap-param-gather", [options()], [options("--overlap-param-gather")]),
    (
        exchange.find_exposed_communication,
        '"overlap_comm": true',
        [setup("deepspeed", engine={"zero_optimization.overlap_comm": False})],
        [setup("deepspeed", engine={"zero_optimization.overlap_comm": True})],
    ),
    (
        exchange.find_exposed_communication,
        "bf16_compress_hook",
        [setup(ddp={}), collectives("Float")],
        [setup(ddp={}), collectives("BFloat16")],
    ),
    (
        exchange.find_exposed_communication,
        "reduce_dtype",
        [setup("torchtitan"), collectives("Float", operation="reduce_scatter")],
        [setup("torchtitan"), collectives("BFloat16", operation="reduce_scatter")],
    ),
    (
        exchange.find_small_collectives,
        "bucket_cap_mb=25",
        [setup(ddp={"bucket_bytes": 2**20}), collectives("Float")],
        [setup(ddp={"bucket_bytes": 25 * 2**20}), collectives("Float")],
    ),
    (
        exchange.find_unused_parameter_search,
        "static_graph",
        [setup(ddp={"find_unused_parameters": True, "static_graph": False})],
        [setup(ddp={"find_unused_parameters": True, "static_graph": True})],
    ),
    (kernels.find_fp32_products, "autocast", [setup(), named(FP32)], [setup(), named(FP32, BF16)]),
    (kernels.find_fp32_products, "--bf16", [options(), named(FP32)], [options(), named(FP32, BF16)]),
    (
        kernels.find_eager_attention,
        "scaled_dot_product_attention",
        [setup(), named(SOFTMAX)],
        [setup(), named(SOFTMAX, FLASH)],
    ),
    (kernels.find_recomputation, "around some of the blocks", [recomputes("full")], [recomputes("selective")]),
    (
        kernels.find_recomputation,
        "--recompute-granularity selective",
        [recomputes("full", "megatron")],
        [recomputes("selective", "megatron")],
    ),
    (kernels.find_unfused_optimizer, "fused=True", [has_fused(is_there=True), FOREACH],
     [has_fused(is_there=True, fused=True), FOREACH]),
    (kernels.find_unfused_optimizer, "fused=True", [has_fused(is_there=True), FOREACH],
     [has_fused(is_there=False), FOREACH]),
    (
        host.find_synchronisations,
        "wall_clock_breakdown",
        [setup("deepspeed", engine={"wall_clock_breakdown": True})],
        [setup("deepspeed", engine={"wall_clock_breakdown": False})],
    ),
    (
        host.find_synchronisations,
        "--no-barrier-with-level-1-timing",
        [options("--timing-log-level")],
        [options("--timing-log-level", "--no-barrier-with-level-1-timing")],
    ),
    (host.find_allocations, "expandable_segments", [setup()], [setup(top=SEGMENTS)]),
    (host.find_slow_launches, "torch.compile(model", [setup(), named(BF16)], [setup(), named(BF16, TRITON)]),
    (host.find_slow_launches, "torch.compile(model", [setup()], [setup(), COMPILED]),
    (host.find_slow_launches, "torch_compile=True", [setup(frameworks=["transformers"])],
     [setup(frameworks=["transformers"]), named(TRITON)]),
    (host.find_slow_launches, "--cuda-graph-impl", [options()], [options("--cuda-graph-impl")]),
    (memory.find_fragmentation, "expandable_segments", [setup(), FRAGMENTED], [setup(top=SEGMENTS), FRAGMENTED]),
    (operators.find_unfused_norms, "torch.compile", [setup(), NORMS], [setup(), NORMS, named(TRITON)]),
    (operators.find_slow_operators, "torch.compile", [setup(), GATHER], [setup(), GATHER, named(TRITON)]),
    (operators.find_unfused_loss, "--cross-entropy-loss-fusion", [options(), LOSS],
     [options("--cross-entropy-loss-fusion"), LOSS]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("find", "words", "off", "on"), CASES, ids=[f"{find.__name__}-{words}" for find, words, *_ in CASES]
)
def test_an_option_is_advised_where_it_is_off_alone(
    find: Find, words: str, off: list[dict[str, Any]], on: list[dict[str, Any]]
) -> None:
    assert words in (advice(find, *off) or "")
    said = advice(find, *on)
    assert said is None or words not in said
    assert said is None or (said.endswith(".") and " ." not in said and "Try ." not in said and len(said) > 20)


def test_attention_that_computes_in_fp32_is_told_why_no_flash_kernel_runs() -> None:
    """It may call scaled_dot_product_attention already, which falls back to products and a softmax."""
    assert "must be bf16 or fp16" in (advice(kernels.find_eager_attention, setup(), named(SOFTMAX_FP32)) or "")
    assert "must be" not in (advice(kernels.find_eager_attention, setup(), named(SOFTMAX)) or "")


def pipeline(schedule: str | None, theory: float, microbatches: int = 8, stages: int = 4) -> dict[str, Any]:
    figures = {"section_us": 9000.0, "schedule_fraction_of_total": theory, "theory_fraction_of_total": theory}
    return {"pipeline_steps": {**figures, "schedule": schedule, "microbatches": microbatches, "p": stages}}


@pytest.mark.parametrize(
    ("schedule", "theory", "doubled", "advised", "not_advised"),
    [
        ("1f1b", 3 / 11, 19, "ScheduleInterleaved1F1B", "ZeroBubble"),
        ("gpipe", 3 / 11, 19, "ScheduleInterleaved1F1B", "ZeroBubble"),
        ("interleaved", 3 / 19, 18, "ScheduleInterleavedZeroBubble", "ScheduleInterleaved1F1B"),
        ("zbv", 1 / 17, 17, "n_microbatches", "Schedule"),
        (None, 3 / 11, 19, "n_microbatches", "Schedule"),
    ],
)
def test_a_bubble_is_told_of_no_schedule_that_runs_already(
    schedule: str | None, theory: float, doubled: int, advised: str, not_advised: str
) -> None:
    """Two virtual stages halve what micro-batches must make up for: 3 / (2 x 17.5 + 3) is half of 3 / 19."""
    said = advice(stages.find_large_bubble, setup(), pipeline(schedule, theory))
    assert said is not None
    assert said.startswith(f"{doubled} micro-batches halve it: ")
    assert advised in said
    assert not_advised not in said
    of_megatron = advice(stages.find_large_bubble, options(), pipeline(schedule, theory)) or ""
    assert ("(interleaving)" in of_megatron) == (schedule in ("1f1b", "gpipe"))
    assert ("fewer `--num-layers-per-virtual-pipeline-stage`" in of_megatron) == (schedule == "interleaved")
