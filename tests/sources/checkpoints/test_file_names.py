"""The kind of a checkpoint's file, and its ranks, by its name."""

from __future__ import annotations

import pytest

from perfscope.sources.checkpoints.file_names import parse_name
from perfscope.tables.checkpoint import Kind

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
