"""The model of a run, from what each of its ranks recorded of its part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from perfscope.analyzers.tflops.per_token import megatron_core
from perfscope.analyzers.tflops.trained_run import find_trained_model
from perfscope.errors import MissingInput
from perfscope.sources.models.config_fields import read_stated
from perfscope.tables.model import Model, Weight
from perfscope.tables.run import Rank, Run
from perfscope.wire.model import PrecisionRecord

HIDDEN, FFN, EXPERTS = 64, 128, 8
MIXTURE = {"num_moe_experts": EXPERTS, "moe_router_topk": 2}


def attention(layers: int) -> list[Weight]:
    return [
        Weight("layers.*.self_attention.linear_qkv.weight", False, (3 * HIDDEN, HIDDEN), layers),
        Weight("layers.*.self_attention.linear_proj.weight", False, (HIDDEN, HIDDEN), layers),
    ]


def dense(layers: int) -> list[Weight]:
    shapes = {"linear_fc1": (FFN, HIDDEN), "linear_fc2": (HIDDEN, FFN)}
    mlp = [Weight(f"layers.*.mlp.{name}.weight", False, shape, layers) for name, shape in shapes.items()]
    return [*attention(layers), *mlp]


def mixture(layers: int, names: Mapping[str, tuple[int, ...]], count: int = 1) -> list[Weight]:
    """A model whose experts have these names and shapes."""
    return [
        Weight("embedding.weight", True, (512, HIDDEN), 1),
        *attention(layers),
        Weight("layers.*.mlp.router.weight", False, (EXPERTS, HIDDEN), layers),
        *(Weight(f"layers.*.mlp.experts.{name}", False, shape, layers * count) for name, shape in names.items()),
        Weight("output_layer.weight", False, (512, HIDDEN), 1),
    ]


def run_of(
    coordinates: Sequence[dict[str, int]],
    parts: Sequence[Sequence[Weight]],
    config: Mapping[str, object] | None = None,
) -> Run:
    """A run of one rank for each coordinates, of which the first ones recorded their part."""
    ranks = [
        Rank(rank, 0, len(coordinates), "node", None, (), None, None, None, (), parallel)
        for rank, parallel in enumerate(coordinates)
    ]
    sizes = [sum(weight.elements for weight in part) for part in parts]
    models = [
        Model(rank, "Gpt", size, size, tuple(part), None, "", PrecisionRecord(), None, stated=read_stated(config or {}))
        for rank, (part, size) in enumerate(zip(parts, sizes, strict=True))
    ]
    return Run("RUN", (), None, tuple(ranks), (), (), (), models=tuple(models))


#: Experts of one tensor, as Megatron's GroupedMLP has them, and a tensor each, as Transformer Engine numbers them.
MERGED = {"weight1": (HIDDEN, 2 * FFN), "weight2": (2 * FFN, HIDDEN)}
NUMBERED = {
    **{f"linear_fc1.weight{number}": (FFN, HIDDEN) for number in range(2)},
    **{f"linear_fc2.weight{number}": (HIDDEN, FFN) for number in range(2)},
}


@pytest.mark.parametrize("names", [MERGED, NUMBERED], ids=["merged", "numbered"])
def test_experts_on_other_ranks_are_not_guessed_from_shapes_that_do_not_count_them(
    names: Mapping[str, tuple[int, ...]],
) -> None:
    spread = [{"dp": rank, "ep": rank} for rank in range(4)]
    with pytest.raises(MissingInput, match="the experts of Gpt are spread over ranks"):
        find_trained_model(run_of(spread, [mixture(3, names)] * 4, MIXTURE))
    # A list of two experts says how many they are.
    listed = {"*.linear_fc1.weight": (FFN, HIDDEN), "*.linear_fc2.weight": (HIDDEN, FFN)}
    of_list = find_trained_model(run_of(spread, [mixture(3, listed, 2)] * 4, MIXTURE))
    alone = find_trained_model(run_of([{}], [mixture(3, listed, EXPERTS)], MIXTURE))
    assert (of_list.model, of_list.parameters) == (alone.model, alone.parameters)


def test_a_tied_table_on_two_stages_is_one() -> None:
    tables = [
        Weight("tied_modules.embed.weight", True, (512, HIDDEN), 1),
        Weight("tied_modules.positions.weight", True, (128, HIDDEN), 1),
    ]
    stages = [{"dp": 0, "pp": stage, "tp": 0} for stage in range(2)]
    split = find_trained_model(run_of(stages, [[*tables, *dense(2)]] * 2))
    whole = find_trained_model(run_of([{}], [[*tables, *dense(4)]]))
    assert (split.model, split.parameters, split.trainable) == (whole.model, whole.parameters, whole.trainable)
    assert (whole.model.vocabulary, whole.model.positions) == (512, 128)


def test_frozen_parameters_of_a_run_have_no_gradients() -> None:
    """LoRA trains next to nothing: two thirds of the products. A frozen embedding is looked up and saves nothing."""
    table, head = Weight("embedding.weight", True, (512, HIDDEN), 1), Weight("output.weight", False, (512, HIDDEN), 1)
    run = run_of([{}], [[table, *dense(4), head]])
    (part,) = run.models
    products = part.parameters - table.elements
    for trainable, operations in ((part.parameters, 6), (products, 6), (0, 4)):
        trained = find_trained_model(structs.replace(run, models=(replace(part, trainable=trainable),)))
        assert megatron_core(trained.model, 2) == operations * products + 6 * 4 * HIDDEN * 2
        assert any("are frozen" in note for note in trained.notes) == (trainable < part.parameters)


@pytest.mark.parametrize(("axis", "said"), [("tp", "stage 0, tensor rank 1"), ("pp", "stage 1, tensor rank 0")])
def test_a_part_that_no_rank_recorded_is_missing(axis: str, said: str) -> None:
    part = [Weight("embedding.weight", True, (512, HIDDEN), 1), *dense(2)]
    config = {"num_layers": 2, "hidden_size": HIDDEN}
    with pytest.raises(MissingInput, match=f"no rank recorded the model of pipeline {said}"):
        find_trained_model(run_of([{axis: rank} for rank in range(2)], [part], config))
    assert find_trained_model(run_of([{"dp": rank} for rank in range(2)], [part], config)).parameters
