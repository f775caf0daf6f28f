"""Models by name: their published parameters."""

from __future__ import annotations

import pytest

from perfscope.models.parameter_counts import active_parameters, total_parameters
from perfscope.sources.models.presets import find_preset, preset_names

#: Parameters that are published, or that the published checkpoint stores.
PUBLISHED = {
    "gpt2-small": (124_439_808, 124_439_808),
    "gpt2-xl": (1_557_611_200, 1_557_611_200),
    "gpt-neox-20b": (20_554_567_680, 20_554_567_680),
    "bloom-176b": (176_247_271_424, 176_247_271_424),
    "llama2-7b": (6_738_415_616, 6_738_415_616),
    "llama3-8b": (8_030_261_248, 8_030_261_248),
    "llama3-70b": (70_553_706_496, 70_553_706_496),
    "llama3-405b": (405_853_388_800, 405_853_388_800),
    "qwen2.5-7b": (7_615_616_512, 7_615_616_512),
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
