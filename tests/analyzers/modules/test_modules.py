"""Time by module, on a real trace and on made ones."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers import modules
from perfscope.analyzers.modules import ModulePhase, ModuleTimes, Owner, RankModules, build_tree, fold
from perfscope.engine.registry import BUILT_IN
from perfscope.errors import NotApplicable
from perfscope.sources.traces.reader import read_trace
from tests.sources.traces.making import AUTOGRAD, Event, call, copy, kernel, span, step, write

FIXTURES = Path(__file__).parents[3] / "fixtures"
NEEDS = next(analyzer.needs for analyzer in BUILT_IN if analyzer.name == "modules")
NODE = "autograd::engine::evaluate_function: "


def measured(path: Path) -> RankModules:
    rank = modules.measure(read_trace(path, NEEDS))
    assert rank is not None
    return rank


def totals(rank: RankModules) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for module in rank.modules:
        for phase in ModulePhase:
            if module.device_ns[phase]:
                found[module.path, phase.name.lower()] = module.device_ns[phase]
    for owner, (time, _) in rank.owners.items():
        found[owner.name, ""] = time
    return found


def test_megatrons_layers_fold_and_all_of_its_time_has_an_owner() -> None:
    measurement = measured(FIXTURES / "modules" / "megatron" / "rank0.json.gz")
    assert measurement.owned == 1.0
    (root,) = fold(build_tree(measurement.modules))
    folded = {node.path: node for node in root.walk()}
    layers = folded["module.module.decoder.layers.*"]
    assert len(layers.instances_ns) == 8
    # Megatron makes the softmax in every call, and recomputes the core of attention.
    softmax = folded["module.module.decoder.layers.*.self_attention.core_attention.scale_mask_softmax.Softmax"]
    assert softmax.calls == 8 * 2
    assert softmax.device_ns[ModulePhase.RECOMPUTATION] > 0
    attention = folded["module.module.decoder.layers.*.self_attention.core_attention"]
    assert layers.totals_ns()[ModulePhase.RECOMPUTATION] == attention.totals_ns()[ModulePhase.RECOMPUTATION]


def mark(path: str, start: int, end: int, **more: Any) -> Event:
    return span("user_annotation", f"nn.Module: {path}", start, end, **more)


def operator(
    name: str, start: int, end: int, number: int | None = None, of: int = 0, dims: Any = None, **more: Any
) -> Event:
    args: dict[str, Any] = {"External id": start}
    if number is not None:
        args |= {"Sequence number": number, "Fwd thread id": of}
    if dims is not None:
        args |= {"Input Dims": dims, "Input type": ["float"] * len(dims), "Input Strides": [[] for _ in dims]}
    return span("cpu_op", name, start, end, args=args, **more)


class Launches:
    """Launches with a kernel of 1000 ns each, one behind the other."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def at(self, moment: int, name: str = "work", ns: int = 1000, **more: Any) -> None:
        number = len(self.events) // 2 + 1
        start = 10**6 + 10**5 * number
        self.events += [call("cudaLaunchKernel", moment, moment + 1, launch=number, **more)]
        self.events += [kernel(name, start, start + ns, launch=number)]


def recomputing() -> list[Event]:
    """A block that is run again in the backward pass, whose numbers are those of the other thread once more."""
    launches = Launches()
    for moment, ns in ((120, 1), (160, 10), (320, 100)):
        launches.at(moment, ns=ns)
    for moment, ns in ((1030, 1000), (1130, 10**4), (1330, 10**5), (1430, 10**6)):
        launches.at(moment, ns=ns, tid=AUTOGRAD)
    launches.at(1510, "ncclDevKernel_AllReduce", 7, tid=AUTOGRAD)
    launches.at(1610, ns=50, tid=AUTOGRAD)
    backward = {"tid": AUTOGRAD}
    return [
        step(1, 0, 5000),
        mark("Net", 100, 400),
        mark("head", 110, 140),
        operator("aten::mm", 115, 135, number=1),
        mark("block", 150, 200),
        operator("aten::mm", 155, 180, number=2),
        operator("aten::mul", 310, 330, number=3),  # of Net itself
        operator(NODE + "MulBackward0", 1010, 1050, number=3, of=1, **backward),
        operator(NODE + "MmBackward0", 1100, 1200, number=2, of=1, **backward),
        mark("block", 1110, 1180, **backward),  # the checkpoint runs it again
        operator("aten::mm", 1120, 1140, number=1, **backward),
        operator(NODE + "MmBackward0", 1300, 1400, number=1, of=2, **backward),  # of what ran again
        operator(NODE + "MmBackward0", 1420, 1440, number=1, of=1, **backward),  # of the head
        operator(NODE + "torch::autograd::AccumulateGrad", 1500, 1700, **backward),
        *launches.events,
    ]


def test_a_forward_in_the_backward_pass_is_recomputation_and_its_numbers_are_its_threads_own(tmp_path: Path) -> None:
    rank = measured(write(tmp_path / "rank0.json", recomputing()))
    assert totals(rank) == {
        ("head", "forward"): 1,
        ("block", "forward"): 10,
        ("Net", "forward"): 100,
        ("Net", "backward"): 1000,
        ("block", "recomputation"): 10**4,
        ("block", "backward"): 10**5,
        ("head", "backward"): 10**6 + 50,  # with the accumulation of its gradient
        ("COMMUNICATION", ""): 7,  # DDP's bucket, which is of no single module
    }
    assert [module.calls for module in rank.modules] == [1, 1, 1]


def test_what_belongs_to_no_module_has_a_named_owner(tmp_path: Path) -> None:
    launches = Launches()
    for moment, ns in ((60, 1), (210, 10), (310, 100), (410, 1000), (510, 10**4)):
        launches.at(moment, ns=ns)
    events = [
        step(1, 0, 900),
        mark("Net", 50, 100),
        span("user_annotation", "Optimizer.step#AdamW.step", 200, 250),
        span("user_annotation", "enumerate(DataLoader)#_Iter.__next__", 300, 350),
        operator("aten::nll_loss", 400, 420, number=1),
        *launches.events,
        call("cudaMemcpyAsync", 600, 601, launch=50),
        copy("Memcpy HtoD", 7_000_000, 7_000_005, launch=50),
        call("cudaGraphLaunch", 610, 611, launch=51),
        kernel("in a graph", 8_000_000, 8_000_006, launch=51),
        kernel("before", 9_000_000, 9_000_009, launch=99),
    ]
    rank = measured(write(tmp_path / "rank0.json", events))
    assert {owner: time for owner, (time, _) in rank.owners.items()} == {
        Owner.OPTIMIZER: 10,
        Owner.DATA: 100,
        Owner.OUTSIDE: 11_000,
        Owner.COPIES: 5,
        Owner.GRAPH: 6,
    }
    assert rank.total_ns == sum(time for time, _ in rank.owners.values()) + 1


def test_without_steps_what_was_launched_before_the_trace_has_no_owner(tmp_path: Path) -> None:
    launches = Launches()
    launches.at(60, ns=300)
    events = [mark("Net", 50, 100), *launches.events, kernel("before", 9_000_000, 9_000_100, launch=99)]
    rank = measured(write(tmp_path / "rank0.json", events))
    assert rank.owners == {Owner.NOT_LAUNCHED: (100, 1)}
    assert rank.owned == 0.75


def test_marks_that_overlap_give_the_time_to_the_last_begun_one_that_is_open(tmp_path: Path) -> None:
    launches = Launches()
    for moment, ns in ((120, 1), (160, 10), (210, 100), (260, 1000)):
        launches.at(moment, ns=ns)
    events = [mark("a", 100, 200), mark("b", 150, 250), mark("c", 205, 240), *launches.events]
    rank = measured(write(tmp_path / "rank0.json", events))
    assert totals(rank) == {("a", "forward"): 1, ("b", "forward"): 10, ("c", "forward"): 100, ("OUTSIDE", ""): 1000}
    assert [root.path for root in build_tree(rank.modules)] == ["a"]  # each stands in the one around its beginning


def test_fsdp_names_the_module_of_its_communication(tmp_path: Path) -> None:
    launches = Launches()
    for moment, name, ns in (
        (110, "ncclDevKernel_AllGather", 1),
        (150, "split_with_sizes_copy", 10),
        (170, "mm", 100),
    ):
        launches.at(moment, name, ns)
    launches.at(1010, "ncclDevKernel_ReduceScatter", 1000, tid=AUTOGRAD)
    launches.at(1110, "ncclDevKernel_AllGather", 10**4, tid=AUTOGRAD)
    launches.at(1210, "ncclDevKernel_AllGather", 10**5, tid=AUTOGRAD)
    annotation = "user_annotation"
    events = [
        mark("Root", 90, 300),
        span(annotation, "FSDP::all_gather (blocks.1)", 100, 120),  # ahead of its first forward
        mark("blocks.0", 130, 200),
        span(annotation, "FSDP::all_gather_copy_out (blocks.0)", 140, 160),
        mark("blocks.1", 210, 220),
        span(annotation, "FSDP::post_backward_reduce (blocks.0)", 1000, 1020, tid=AUTOGRAD),
        span(annotation, "FSDP::backward_prefetch for blocks.0", 1100, 1120, tid=AUTOGRAD),
        span(annotation, "FSDP::all_gather", 1200, 1220, tid=AUTOGRAD),
        *launches.events,
    ]
    rank = measured(write(tmp_path / "rank0.json", events))
    assert totals(rank) == {
        ("blocks.1", "communication"): 1,
        ("blocks.0", "communication"): 11_010,
        ("blocks.0", "forward"): 100,
        ("Root", "communication"): 10**5,
    }
    (root,) = build_tree(rank.modules)
    assert (root.path, [child.path for child in root.children]) == ("Root", ["blocks.1", "blocks.0"])


def test_what_torch_compile_made_of_a_module_owns_its_time_forward_and_backward(tmp_path: Path) -> None:
    launches = Launches()
    launches.at(130, ns=1)
    launches.at(1020, ns=10, tid=AUTOGRAD)
    events = [
        mark("Net", 90, 300),
        operator("Torch-Compiled Region: 0/0", 100, 200),
        operator("CompiledFunction", 110, 150, number=5),
        operator("aten::mm", 210, 220, number=6),
        operator(NODE + "MmBackward0", 950, 960, number=6, of=1, tid=AUTOGRAD),
        operator(NODE + "CompiledFunctionBackward", 1000, 1100, tid=AUTOGRAD),
        operator("CompiledFunctionBackward", 1005, 1100, number=5, of=1, tid=AUTOGRAD),
        mark("GraphModule", 1010, 1050, tid=AUTOGRAD),
        *launches.events,
    ]
    rank = measured(write(tmp_path / "rank0.json", events))
    assert totals(rank) == {("Net::compiled 0/0", "forward"): 1, ("Net::compiled 0/0", "backward"): 10}
    (root,) = build_tree(rank.modules)
    assert (root.path, [child.path for child in root.children]) == ("Net", ["Net::compiled 0/0"])


def test_without_numbers_of_autograd_the_backward_pass_is_outside_and_a_note_says_so(tmp_path: Path) -> None:
    launches = Launches()
    launches.at(60)
    launches.at(1020, tid=AUTOGRAD)
    events = [mark("Net", 50, 100), span("cpu_op", NODE + "MmBackward0", 1000, 1100, tid=AUTOGRAD), *launches.events]
    rank = measured(write(tmp_path / "rank0.json", events))
    assert totals(rank) == {("Net", "forward"): 1000, ("OUTSIDE", ""): 1000}
    notes = " ".join(modules.analyze([rank]).sections()[0].notes)
    assert "no numbers that join backward passes" in notes


def test_operations_of_a_module_are_counted_by_shapes_and_are_absent_without_them(tmp_path: Path) -> None:
    launches = Launches()
    launches.at(60)
    launches.at(1060, tid=AUTOGRAD)
    shaped = [
        mark("Net", 50, 100),
        operator("aten::mm", 55, 70, number=1, dims=[[2, 3], [3, 5]]),
        operator(NODE + "MmBackward0", 1050, 1080, number=1, of=1, tid=AUTOGRAD),
        operator("aten::mm", 1055, 1070, dims=[[3, 2], [2, 5]], tid=AUTOGRAD),
        *launches.events,
    ]
    (module,) = measured(write(tmp_path / "rank0.json", shaped)).modules
    assert module.flops == (60, 60, 0, 0, 0)
    (module,) = measured(write(tmp_path / "rank1.json", [shaped[0], *launches.events])).modules
    assert module.flops is None


def layer(path: str, ns: int, kernels: int = 4, flops: int = 7) -> ModuleTimes:
    return ModuleTimes(path, "Net", 1, (ns, 0, 0, 0, 0), (kernels, 0, 0, 0, 0), (flops, 0, 0, 0, 0))


def test_equal_layers_fold_with_their_spread_and_others_stay_apart() -> None:
    made = [layer("Net", 1)]
    for index in range(12):
        made += [layer(f"blocks.{index}", 10 + index), layer(f"blocks.{index}.mlp", 5)]
        made += [layer(f"blocks.{index}.mlp.{part}", part, kernels=1 + 9 * part, flops=part) for part in range(3)]
    made += [layer("blocks.12", 99), layer("blocks.12.experts", 5)]
    (root,) = fold(build_tree(made))
    assert [(node.path, len(node.instances_ns)) for node in root.walk()] == [
        ("Net", 1),
        ("blocks.*", 12),
        ("blocks.*.mlp", 12),
        ("blocks.*.mlp.2", 12),
        ("blocks.*.mlp.1", 12),
        ("blocks.*.mlp.0", 12),
        ("blocks.12", 1),
        ("blocks.12.experts", 1),
    ]
    folded = root.children[0]
    assert folded.instances_ns == tuple(10 + index + 5 + 3 for index in range(12))
    assert root.total_ns == sum(sum(module.device_ns) for module in made)


def test_every_row_of_the_table_adds_up_and_depth_limits_it(tmp_path: Path) -> None:
    rank = measured(write(tmp_path / "rank0.json", recomputing()))
    result = modules.analyze([rank])
    (section,) = result.sections()
    assert [row[0] for row in section.rows][:3] == ["Net", "· head", "· block"]
    whole = sum(row[2] for row in section.rows if not str(row[0]).startswith("·") and isinstance(row[2], float))
    assert whole == pytest.approx(rank.total_ns / 1e6)
    (short,) = result.with_depth(1).sections()
    assert [row[0] for row in short.rows] == ["Net", "(communication of no module)"]
    assert any("1 of 2 levels" in note for note in short.notes)


def test_a_trace_without_marks_or_without_a_device_has_no_tree(tmp_path: Path) -> None:
    launches = Launches()
    launches.at(60)
    assert modules.measure(read_trace(write(tmp_path / "rank0.json", launches.events), NEEDS)) is None
    assert modules.measure(read_trace(write(tmp_path / "rank1.json", [mark("Net", 1, 2)]), NEEDS)) is None
    with pytest.raises(NotApplicable, match="--modules"):
        modules.analyze([])


def test_wrappers_and_modules_that_launch_nothing_take_no_row() -> None:
    nothing = (0,) * 5
    made = [
        ModuleTimes("Wrapper", "", 1, nothing, nothing, None),
        ModuleTimes("module", "Wrapper", 1, nothing, nothing, None),
        ModuleTimes("module.dropout", "module", 1, nothing, nothing, None),
        *(layer(f"module.model{part}", ns) for part, ns in (("", 5), (".head", 3), (".block", 4))),
        ModuleTimes("module.model.block.inner", "module.model.block", 1, nothing, nothing, None),
    ]
    result = modules.analyze([RankModules(0, 1, tuple(made), {})])
    (section,) = result.sections()
    assert [row[0] for row in section.rows] == ["Wrapper: module.model", "· module.model.block", "· module.model.head"]
    assert not any("levels" in note for note in section.notes)
    assert len(json.loads(json.dumps(result.data()))["ranks"][0]["modules"]) == len(made)
