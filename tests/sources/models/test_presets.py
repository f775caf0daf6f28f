"""Models by name: their published parameters."""

from __future__ import annotations

import pytest

from perfscope.analyzers.tflops.per_token import megatron_core
from perfscope.errors import UsageError
from perfscope.models.parameter_counts import active_parameters, bigscience_parameters, total_parameters
from perfscope.models.transformer import Transformer
from perfscope.sources.models.megatron_arguments import model_from_arguments
from perfscope.sources.models.presets import find_preset, preset_names

#: Parameters that are published, or that the published checkpoint stores.
PUBLISHED = {
    "gpt2-small": (124_439_808, 124_439_808),
    "gpt-neox-20b": (20_554_567_680, 20_554_567_680),
    "bloom-176b": (176_247_271_424, 176_247_271_424),
    "llama3-8b": (8_030_261_248, 8_030_261_248),
    "llama3-405b": (405_853_388_800, 405_853_388_800),
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248),
    "deepseek-v3": (671_026_404_352, 37_552_282_624),
    "gpt-oss-20b": (20_914_757_184, 4_187_440_704),
    "gpt-oss-120b": (116_829_156_672, 5_711_982_912),
    "mpt-7b": (6_658_859_008, 6_658_859_008),
    "mpt-70b": (64_862_437_376, 64_862_437_376),
    "qwen3-32b": (32_762_123_264, 32_762_123_264),
    "kimi-k2": (1_026_408_209_408, 32_861_477_888),
}

#: Parameters of the models that transformers 5.23 builds from these configurations.
BUILT = {
    "deepseek-v4-flash": 284_332_230_231,
    "deepseek-v4-pro": 1_572_997_179_491,
    "gemma3-27b": 27_009_346_304,
    "glm-4.5": 352_797_814_784,
    "llama4-maverick": 400_711_848_960,
    "llama4-scout": 107_769_861_120,
    "nemotron-3-nano": 31_577_937_344,
    "nemotron-3-super": 120_668_687_360,
    "nemotron-3-ultra": 549_308_968_960,
    "nemotron-h-56b": 56_324_350_464,
    "qwen3-next-80b-a3b": 79_674_391_296,
}

#: Names as tables of NVIDIA and others write them.
WRITTEN = {
    "DeepSeekV3": "deepseek-v3",
    "GPT OSS 120B": "gpt-oss-120b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "LLAMA3_70B": "llama3-70b",
    "LLAMA3.1_405B": "llama3-405b",
    "Kimi_K2": "kimi-k2",
    "Llama-3.1-8B": "llama3-8b",
    "meta-llama/Meta-Llama-3-70B-Instruct": "llama3-70b",
    "Qwen/Qwen3-235B-A22B-Instruct-2507": "qwen3-235b-a22b",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "nemotron-3-nano",
    "google/gemma-3-27b-it": "gemma3-27b",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_named_models_have_their_published_parameters(name: str) -> None:
    preset = find_preset(name)
    assert preset is not None
    assert (total_parameters(preset.transformer), active_parameters(preset.transformer)) == PUBLISHED[name]


@pytest.mark.parametrize("name", BUILT)
def test_named_models_have_the_parameters_that_transformers_builds(name: str) -> None:
    preset = find_preset(name)
    assert preset is not None
    assert total_parameters(preset.transformer) == BUILT[name]


def test_a_prediction_module_has_the_parameters_that_torchtitan_counts() -> None:
    """DeepSeek-V4-Flash with one module: pytorch/torchtitan, pull request 4441."""
    preset = find_preset("deepseek-v4-flash")
    assert preset is not None
    assert total_parameters(preset.transformer._replace(mtp_layers=1)) == 290_942_278_866


@pytest.mark.parametrize("written", WRITTEN)
def test_a_name_is_found_however_it_is_written(written: str) -> None:
    preset = find_preset(written)
    assert preset is not None
    assert preset.transformer.name == WRITTEN[written]


def test_every_name_is_a_model_that_can_be_counted() -> None:
    for name in preset_names():
        preset = find_preset(name)
        assert preset is not None
        assert total_parameters(preset.transformer) >= active_parameters(preset.transformer) > 10**8, name


def test_the_seeds_formula_is_exact_for_gpt2_and_gpt3() -> None:
    for name in ("gpt2-small", "gpt3-1.3b", "gpt3-175b"):
        preset = find_preset(name)
        assert preset is not None
        model = preset.transformer
        assert bigscience_parameters(model.layers, model.hidden, model.vocabulary, model.positions) == total_parameters(
            model
        )


def test_the_seeds_181b_model_is_its_exact_number() -> None:
    """15360 wide and 64 deep, vocabulary 50257, sequence 1024: 181,994,419,200 parameters."""
    assert bigscience_parameters(64, 15360, 50257, 1024) == 181_994_419_200


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
