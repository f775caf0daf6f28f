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
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_named_models_have_their_published_parameters(name: str) -> None:
    preset = find_preset(name)
    assert preset is not None
    assert (total_parameters(preset.transformer), active_parameters(preset.transformer)) == PUBLISHED[name]


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
