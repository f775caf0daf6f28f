"""No finding advises what a run uses already: each option is advised where it is off, and no more where it is on."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import kept_run
from perfscope.analyzers.findings import RULES, communication, compute, host
from perfscope.analyzers.findings.finding import Fault
from perfscope.analyzers.findings.training import TracedRun
from perfscope.engine.analysis_report import to_report
from perfscope.engine.run import analyze
from perfscope.models.conventions import Checkpointing
from tests.analyzers.findings.made import Made, breakdown, idle, kernels, parts, setup, steps, training
from tests.conftest import ROOT

Find = Callable[[TracedRun], Fault | None]
FP32, BF16 = "ampere_sgemm_128x128_nn", "nvjet_sm90_tst_256x128_64x4"
SOFTMAX = "void softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 10, false, false>(...)"
FLASH = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7"
TRITON = "triton_poi_fused__to_copy_view_2"
CALLS = Made(blocked_us=500.0, regained_us=500.0, calls=4, bytes=10**6)
WAIT = Made(kind="synchronisation", regained=500, regained_us=500.0, blocked_us=500.0, calls=4)
EXPOSED = Made(exposed_us=3000.0, exposed=3000, overlap_fraction=0.5)
TRACED = {
    "breakdown": breakdown(parts(2000.0, 3000.0, 900.0)),
    "idle": idle({"host_launch": 900.0, "not_shown": 900.0}),
    "calls": Made(ranks=[Made(rank=0, synchronisation=CALLS, allocation=CALLS, pageable=CALLS, pageable_bytes=1,
                              callers=[WAIT])]),
    "overlap": Made(axes=[Made(axis="DP", row=EXPOSED, marked=EXPOSED)]),
}  # fmt: skip


def advice(find: Find, **results: Any) -> str:
    """What a rule advises; empty where it finds nothing."""
    cause = find(training(**{**TRACED, **results}))
    return "" if cause is None else cause.advice


def run(source: str = "", **rank: Any) -> dict[str, Any]:
    """How a run is set up, and which framework ends its steps."""
    return {"setup": setup(**rank), "steps": steps(source=source)}


def options(*names: str) -> dict[str, Any]:
    return run("megatron", options=dict.fromkeys(names, ""))


def zero(**values: Any) -> dict[str, Any]:
    return run("deepspeed", engine=values)


def loader(**changes: Any) -> dict[str, Any]:
    return run(loaders=[Made(**{"workers": 2, "pin_memory": False, "persistent": False, **changes})])


def saved(asynchronous: bool) -> dict[str, Any]:
    return {"saves": Made(blocked_s=2.0, saves=[Made(asynchronous=asynchronous)] * 2)}


def optimizer(has_fused: bool, fused: bool | None = None) -> dict[str, Any]:
    step = Made(rank=0, name="AdamW", way="foreach", device_us=900.0, idle_us=0.0, kernels=99)
    stated = run(optimizer=Made(name="AdamW", has_fused=has_fused, fused=fused))
    return {**stated, "optimizer": Made(ranks=[step])}


def recomputes(kind: Checkpointing, source: str = "") -> dict[str, Any]:
    gpus = [Made(memory_total_bytes=100)]
    return {
        **run(source),
        "gpus": Made(gpus=gpus),
        "operations": Made(ranks=[Made(recomputed_share=0.4, recomputed=kind)]),
    }


def allocator(setting: str | None) -> dict[str, Any]:
    return {"setup": Made(allocator=setting, ranks=setup().ranks)}


SEGMENTS = allocator("max_split_size_mb:512,expandable_segments:True")
PAGEABLE = {"kernels": kernels("Memcpy HtoD (Pageable -> Device)", work="copy")}
NORMS = {"modules": Made(ranks=[Made(rank=0, modules=[Made(path="layers.0.norm", calls=2, self_kernels=40,
                                                          self_us=900.0)])])}  # fmt: skip
FRAGMENTED = {"memory": Made(devices=[Made(rank=0, reserved_bytes=95, unused_bytes=30, device_bytes=100)])}
#: A rule, the option, results in which it is off, and those in which it is on.
CASES: list[tuple[Find, str, dict[str, Any], dict[str, Any]]] = [
    (host.find_slow_loading, "persistent_workers", loader(), loader(persistent=True)),
    (host.find_unpinned_copies, "pin_memory=True", {**loader(), **PAGEABLE}, {**loader(pin_memory=True), **PAGEABLE}),
    (host.find_garbage_collection, "gc.disable()", run(), run(collects_garbage=False)),
    (host.find_garbage_collection, "--manual-gc ", options(), run("megatron", collects_garbage=False)),
    (host.find_blocking_saves, "async_save", saved(False), saved(True)),
    (host.find_blocking_saves, "--async-save", {**options(), **saved(False)},
     {**options("--async-save"), **saved(False)}),
    (host.find_synchronisations, "wall_clock_breakdown", zero(wall_clock_breakdown=True),
     zero(wall_clock_breakdown=False)),
    (host.find_synchronisations, "--no-barrier-with-level-1-timing", options("--timing-log-level"),
     options("--timing-log-level", "--no-barrier-with-level-1-timing")),
    (host.find_allocations, "expandable_segments", allocator(None), SEGMENTS),
    (host.find_slow_launches, "torch.compile(model", {"kernels": kernels(BF16)}, {"kernels": kernels(BF16, TRITON)}),
    (host.find_slow_launches, "torch_compile=True", run(frameworks=["transformers"]),
     {**run(frameworks=["transformers"]), "kernels": kernels(TRITON)}),
    (host.find_slow_launches, "--cuda-graph-impl", options(), options("--cuda-graph-impl")),
    (communication.find_exposed_communication, "--overlap-grad-reduce", options(), options("--overlap-grad-reduce")),
    (communication.find_exposed_communication, "--overlap-param-gather", options(), options("--overlap-param-gather")),
    (communication.find_exposed_communication, '"overlap_comm": true',
     zero(**{"zero_optimization.overlap_comm": False}), zero(**{"zero_optimization.overlap_comm": True})),
    (compute.find_fp32_products, "autocast", {"kernels": kernels(FP32)}, {"kernels": kernels(FP32, BF16)}),
    (compute.find_fp32_products, "--bf16", {**options(), "kernels": kernels(FP32)},
     {**options(), "kernels": kernels(FP32, BF16)}),
    (compute.find_eager_attention, "scaled_dot_product_attention", {"kernels": kernels(SOFTMAX)},
     {"kernels": kernels(SOFTMAX, FLASH)}),
    (compute.find_recomputation, "around some of the blocks", recomputes(Checkpointing.FULL),
     recomputes(Checkpointing.SELECTIVE)),
    (compute.find_recomputation, "--recompute-granularity selective", recomputes(Checkpointing.FULL, "megatron"),
     recomputes(Checkpointing.SELECTIVE, "megatron")),
    (compute.find_unfused_optimizer, "fused=True", optimizer(has_fused=True), optimizer(has_fused=True, fused=True)),
    (compute.find_unfused_optimizer, "fused=True", optimizer(has_fused=True), optimizer(has_fused=False)),
    (compute.find_unfused_norms, "torch.compile", NORMS, {**NORMS, "kernels": kernels(TRITON)}),
    (compute.find_full_memory, "expandable_segments", FRAGMENTED, {**SEGMENTS, **FRAGMENTED}),
]  # fmt: skip


@pytest.mark.parametrize(("find", "words", "off", "on"), CASES, ids=[f"{case[0].__name__}-{case[1]}" for case in CASES])
def test_an_option_is_advised_where_it_is_off_alone(
    find: Find, words: str, off: dict[str, Any], on: dict[str, Any]
) -> None:
    assert words in advice(find, **off)
    said = advice(find, **on)
    assert words not in said
    assert not said or (said.endswith(".") and " ." not in said and "Try ." not in said and len(said) > 20)


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
    pipeline = Made(
        section=9_000_000, stages=[Made(ranks=(0,), useful=1)] * 4, schedule_fraction_of_total=theory,
        theory_fraction_of_total=theory, schedule=schedule, microbatches=8,
    )  # fmt: skip
    said = advice(communication.find_large_bubble, pipeline_steps=pipeline)
    assert said.startswith(f"{doubled} micro-batches halve it: ")
    assert advised in said
    assert not_advised not in said
    of_megatron = advice(communication.find_large_bubble, **options(), pipeline_steps=pipeline)
    assert ("(interleaving)" in of_megatron) == (schedule in ("1f1b", "gpipe"))
    assert ("fewer `--num-layers-per-virtual-pipeline-stage`" in of_megatron) == (schedule == "interleaved")


PAGES = ROOT / "docs" / "findings"
MOST_LINES = 10
RUNS = [
    "findings/h200/optimizer_loop",
    "findings/h200/batch_too_small",
    "findings/cpu/pipeline_uneven",
    "whatif/slow_gpu",
    "runs/h200_zero3",
]
#: Words in the advice for the Trainer that are options of other things,
#: or of other versions.
NOT_ARGUMENTS = {"attn_implementation", "from_pretrained", "group_by_length"}


def test_every_rule_has_a_page_and_every_page_a_rule() -> None:
    identifiers = [rule.id for rule in RULES]
    assert len(set(identifiers)) == len(identifiers) >= 20
    assert {page.stem for page in PAGES.glob("*.md")} == set(identifiers)
    index = (ROOT / "docs" / "findings.md").read_text()
    for rule in RULES:
        text = (PAGES / f"{rule.id}.md").read_text()
        assert text.startswith(f"# {rule.title}\n")
        for heading in ("What it means", "How it is seen", "What the cost is", "What to try", "When it is no fault"):
            assert f"**{heading}.**" in text
        assert f"[`{rule.id}`](findings/{rule.id}.md) | {rule.title} |" in index


def resolve(document: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


@pytest.mark.parametrize("run", RUNS)
def test_evidence_points_at_figures_of_the_same_document(run: str) -> None:
    report = to_report(analyze([kept_run(ROOT / "fixtures" / run)]))
    document = json.loads(json.dumps(report.data))
    results: Any = document["results"]
    assert results["findings"]
    for finding in results["findings"]:
        assert finding["evidence"]
        assert any(evidence["pointers"] for evidence in finding["evidence"])
        for pointer in (pointer for evidence in finding["evidence"] for pointer in evidence["pointers"]):
            assert resolve(document, pointer) is not None, (finding["id"], pointer)
        assert finding["share_of_step"] == finding["cost_us"] / finding["step_us"]
    first = report.sections[0]
    assert first.title == "Findings"
    assert len(first.notes) <= MOST_LINES


def advice_for(framework: str) -> set[str]:
    """The words in backticks of all advice for a framework."""
    entries = tomllib.loads((ROOT / "analyzers" / "findings" / "advice.toml").read_text("utf-8")).values()
    spans = re.findall(r"`([^`]+)`", str([entry.get(framework) for entry in entries]))
    return {word for span in spans for word in re.findall(r"^(\w+)(?:=|$)", span)}


def test_options_of_the_trainer_exist() -> None:
    arguments = pytest.importorskip("transformers").TrainingArguments
    names = {field.name for field in dataclasses.fields(arguments)}
    words = advice_for("trainer") - NOT_ARGUMENTS
    assert len(words) >= 10
    assert words <= names, words - names


def test_options_of_torch_exist() -> None:
    torch = pytest.importorskip("torch")
    from torch.nn.parallel import DistributedDataParallel  # torch is loaded for this test alone
    from torch.utils.data import DataLoader

    loader = inspect.signature(DataLoader).parameters
    assert {"num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "batch_size"} <= set(loader)
    ddp = inspect.signature(DistributedDataParallel).parameters
    assert {"bucket_cap_mb", "gradient_as_bucket_view"} <= set(ddp)
    assert "fused" in inspect.signature(torch.optim.AdamW).parameters
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    assert hasattr(fsdp.FSDPModule, "set_modules_to_forward_prefetch")
    assert hasattr(fsdp.FSDPModule, "set_modules_to_backward_prefetch")
    assert "reshard_after_forward" in inspect.signature(fsdp.fully_shard).parameters
    assert fsdp.BackwardPrefetch.BACKWARD_PRE
