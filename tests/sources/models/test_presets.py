"""Models by name: their published parameters."""

from __future__ import annotations

import pytest

from perfscope.models.parameter_counts import active_parameters, bigscience_parameters, total_parameters
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
