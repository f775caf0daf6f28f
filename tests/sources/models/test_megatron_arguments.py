"""Models by Megatron's arguments: the same as by name."""

from __future__ import annotations

import pytest

from perfscope.analyzers.tflops.per_token import megatron_core
from perfscope.errors import UsageError
from perfscope.models.parameter_counts import total_parameters
from perfscope.models.transformer import Transformer
from perfscope.sources.models.megatron_arguments import model_from_arguments
from perfscope.sources.models.presets import find_preset

_COMMON = "group_query_attention=True,add_bias_linear=False,normalization=RMSNorm,position_embedding_type=none"
#: NVIDIA's own scripts: Nemotron 3 Super with two passes of its prediction module, and GPT OSS 120B.
_SUPER = (
    "num_layers=88,hidden_size=4096,num_attention_heads=32,num_query_groups=2,kv_channels=128,vocab_size=131072,"
    "ffn_hidden_size=2688,num_experts=512,moe_router_topk=22,moe_ffn_hidden_size=2688,moe_latent_size=1024,"
    "moe_shared_expert_intermediate_size=5376,mamba_num_heads=128,mamba_head_dim=64,mamba_num_groups=8,"
    "mamba_state_dim=128,mtp_num_layers=2,untie_embeddings_and_output_weights=True,hybrid_layer_pattern="
    "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME/*E/*E"
)
_OSS = (
    "num_layers=36,hidden_size=2880,num_attention_heads=64,num_query_groups=8,kv_channels=64,vocab_size=201088,"
    "ffn_hidden_size=2880,num_experts=128,moe_router_topk=4,quick_geglu=True,glu_activation=quick_geglu,"
    "window_size=(127; 0),window_attn_skip_freq=2,untie_embeddings_and_output_weights=True"
)


def _read(text: str) -> Transformer:
    pairs = (word.split("=", 1) for word in f"{text},{_COMMON}".split(","))
    model = model_from_arguments({name: value.replace(";", ",") for name, value in pairs}, None, "train.log")
    assert model is not None
    return model


def test_a_hybrid_is_read_from_its_pattern() -> None:
    model, preset = _read(_SUPER), find_preset("Nemotron_3_Super")
    assert preset is not None
    named = preset.transformer._replace(mtp_layers=2)
    assert total_parameters(model) == total_parameters(named)
    assert megatron_core(model, 8192) == megatron_core(named, 8192)


def test_windows_are_read_with_the_layers_that_skip_them() -> None:
    model, preset = _read(_OSS), find_preset("gpt-oss-120b")
    assert preset is not None
    assert megatron_core(model, 4096) == megatron_core(preset.transformer, 4096)
    assert (model.window, model.full_layers, model.is_swiglu) == (128, 18, False)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("MEMEMEM*EMEMEMEM*", "MXMEMEM*EMEMEMEM*", "layers X of the pattern"),
        ("num_layers=36", "num_layers=36,window_attn_skip_freq=[1; 0; 1]", "does not describe 36 layers"),
    ],
)
def test_a_pattern_that_is_none_is_refused(old: str, new: str, said: str) -> None:
    text = _SUPER if old in _SUPER else _OSS.replace(",window_attn_skip_freq=2", "")
    with pytest.raises(UsageError, match=said):
        _read(text.replace(old, new))


def test_a_window_of_minus_one_is_none() -> None:
    assert _read(_OSS.replace("(127; 0)", "(-1; 0)")).mixers == ()
