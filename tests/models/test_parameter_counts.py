"""Parameters of GPTs by their formula, against the count of each part."""

from __future__ import annotations

from perfscope.models.parameter_counts import bigscience_parameters, total_parameters
from perfscope.sources.models.presets import find_preset


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
