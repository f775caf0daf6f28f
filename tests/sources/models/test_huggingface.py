"""Models by name, by file and by dimensions: their parameters, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.errors import UsageError
from perfscope.models.parameter_counts import active_parameters, bigscience_parameters, total_parameters
from perfscope.sources.models.families import FAMILIES
from perfscope.sources.models.huggingface import to_transformer
from perfscope.sources.models.presets import find_preset, preset_names
from tests.analyzers.flops.making import answer, refused

STEP = ("--gbs", 1, "--time", 1)

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

_SMALL = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 100}
_GROUPED = {**_SMALL, "intermediate_size": 160, "num_key_value_heads": 2}
_WIDE = {**_GROUPED, "head_dim": 16}
_GPT = {"n_layer": 3, "n_embd": 64, "n_head": 8, "vocab_size": 100, "n_positions": 32}
_MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_LATENT = {
    **_SMALL,
    "intermediate_size": 160,
    "moe_intermediate_size": 48,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
}

#: A small config.json of each architecture, and the parameters of the model that transformers 5.23 builds from it.
BUILT_BY_TRANSFORMERS: list[tuple[str, dict[str, Any], int]] = [
    ("gpt2", _GPT, 158528),
    ("gpt2", {**_GPT, "n_inner": 96, "tie_word_embeddings": False}, 103008),
    ("gpt_bigcode", _GPT, 136688),
    (
        "gpt_neo",
        {"num_layers": 2, "hidden_size": 64, "num_heads": 8, "vocab_size": 100, "max_position_embeddings": 32},
        108160,
    ),
    ("gpt_neox", {**_SMALL, "intermediate_size": 256}, 162880),
    ("gptj", {"n_layer": 3, "n_embd": 64, "n_head": 8, "vocab_size": 100}, 161828),
    ("opt", {**_SMALL, "ffn_dim": 256, "max_position_embeddings": 32, "word_embed_proj_dim": 64}, 158656),
    ("bloom", {"n_layer": 3, "hidden_size": 64, "n_head": 8, "vocab_size": 100}, 156608),
    ("falcon", _SMALL, 132864),
    ("falcon", {**_SMALL, "new_decoder_architecture": True, "num_kv_heads": 2}, 136320),
    ("falcon", {**_SMALL, "multi_query": False, "parallel_attn": False, "bias": True}, 156480),
    ("mpt", {"d_model": 64, "n_heads": 8, "n_layers": 3, "vocab_size": 100, "expansion_ratio": 4}, 154304),
    ("llama", _GROUPED, 136128),
    ("llama", {**_WIDE, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}, 162368),
    ("mistral", _GROUPED, 136128),
    ("smollm3", _GROUPED, 129728),
    ("granite", _GROUPED, 136128),
    ("phi", {**_SMALL, "intermediate_size": 256}, 162596),
    ("phi3", _GROUPED, 136128),
    ("starcoder2", _GROUPED, 100608),
    ("stablelm", _GROUPED, 136576),
    ("stablelm", {**_GROUPED, "use_qkv_bias": True, "use_parallel_residual": True}, 136480),
    ("nemotron", _GROUPED, 105856),
    ("olmo", _GROUPED, 135680),
    ("olmo2", _GROUPED, 136368),
    ("cohere", _GROUPED, 129536),
    ("gemma", _WIDE, 160448),
    ("gemma2", _WIDE, 160832),
    ("gemma3_text", _WIDE, 160928),
    ("qwen2", _GROUPED, 136416),
    ("qwen3", _WIDE, 166944),
    (
        "qwen2_moe",
        {**_GROUPED, **_MIXTURE, "shared_expert_intermediate_size": 96, "decoder_sparse_step": 2},
        161312,
    ),
    ("qwen3_moe", {**_WIDE, **_MIXTURE, "mlp_only_layers": [1]}, 179744),
    ("mixtral", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}, 413376),
    ("olmoe", {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2}, 413616),
    ("gpt_oss", {**_WIDE, "num_local_experts": 4, "num_experts_per_tok": 2}, 449508),
    ("arcee", _GROUPED, 105408),
    ("arcee", {**_WIDE, "attention_bias": True, "mlp_bias": True}, 137568),
    ("cohere2", _WIDE, 160256),
    ("cohere2", {**_GROUPED, "attention_bias": True}, 130016),
    ("ernie4_5", _GROUPED, 590528),
    ("ernie4_5", {**_WIDE, "use_bias": True}, 162368),
    ("exaone4", _WIDE, 166944),
    ("glm", _GROUPED, 601536),
    ("glm", {**_WIDE, "attention_bias": True}, 167424),
    ("glm4", {**_GROUPED, "attention_bias": True}, 601920),
    (
        "glm4_moe",
        {
            **_WIDE,
            **_MIXTURE,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "attention_bias": True,
        },
        198656,
    ),
    ("granitemoe", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}, 413376),
    ("hunyuan_v1_dense", _WIDE, 166944),
    ("hunyuan_v1_dense", {**_WIDE, "attention_bias": True, "tie_word_embeddings": True}, 161312),
    ("internlm3", _GROUPED, 596928),
    ("internlm3", {**_WIDE, "qkv_bias": True, "bias": True}, 168768),
    ("minimax_m2", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}, 878016),
    ("ministral", _WIDE, 166848),
    ("ministral3", _GROUPED, 596928),
    ("dots1", {**_WIDE, **_MIXTURE, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1}, 198176),
    ("olmo3", {**_GROUPED, "attention_bias": True}, 136848),
    ("phimoe", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}, 413824),
    ("seed_oss", _GROUPED, 601536),
    ("seed_oss", {**_WIDE, "attention_out_bias": True, "mlp_bias": True}, 168768),
    ("qwen3", _GROUPED, 597696),
    ("gemma", _GROUPED, 1082048),
    ("gemma2", _GROUPED, 1082432),
    ("gemma3_text", _GROUPED, 1083968),
    ("gpt_oss", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}, 635556),
    ("deepseek_v2", {**_LATENT, "q_lora_rank": None}, 177392),
    ("deepseek_v3", {**_LATENT, "q_lora_rank": 24}, 170552),
    ("kimi_k2", {**_LATENT, "q_lora_rank": 24}, 170552),
]


@pytest.mark.parametrize("name", PUBLISHED)
def test_named_models_have_their_published_parameters(name: str) -> None:
    known = find_preset(name)
    assert known is not None
    assert (total_parameters(known.transformer), active_parameters(known.transformer)) == PUBLISHED[name]


def test_every_name_is_a_model_that_can_be_counted() -> None:
    for name in preset_names():
        known = find_preset(name)
        assert known is not None
        assert total_parameters(known.transformer) >= active_parameters(known.transformer) > 10**8, name


@pytest.mark.parametrize(("kind", "keys", "parameters"), BUILT_BY_TRANSFORMERS)
def test_a_config_json_gives_the_parameters_that_transformers_builds(
    kind: str, keys: dict[str, Any], parameters: int
) -> None:
    model, _ = to_transformer({"model_type": kind, **keys}, kind)
    assert total_parameters(model) == parameters


def test_every_architecture_is_held_to_transformers_by_a_case() -> None:
    assert {kind for kind, _, _ in BUILT_BY_TRANSFORMERS} == set(FAMILIES)


def test_the_seeds_formula_is_exact_for_gpt2_and_gpt3() -> None:
    for name in ("gpt2-small", "gpt3-1.3b", "gpt3-175b"):
        known = find_preset(name)
        assert known is not None
        model = known.transformer
        assert bigscience_parameters(model.layers, model.hidden, model.vocabulary, model.positions) == total_parameters(
            model
        )


def test_the_seeds_181b_model_is_its_exact_number() -> None:
    """15360 wide and 64 deep, vocabulary 50257, sequence 1024: 181,994,419,200 parameters."""
    assert bigscience_parameters(64, 15360, 50257, 1024) == 181_994_419_200


def test_dimensions_make_the_model_that_the_seed_counts() -> None:
    words = ("--layers", 36, "--hidden", 4096, "--heads", 32, "--vocab", 50257, "--seq-len", 512)
    document = answer("tflops", *words, *STEP)
    assert document["model"]["parameters"] == document["model"]["seed_formula_parameters"]
    assert document["model"]["parameters"] == bigscience_parameters(36, 4096, 50257, 512)


def test_llama_by_its_dimensions_is_llama_by_name() -> None:
    words = ("--layers", 32, "--hidden", 4096, "--heads", 32, "--kv-heads", 8, "--ffn", 14336, "--vocab", 128256)
    typed = answer("tflops", *words, "--gated", *STEP)
    named = answer("tflops", "--model", "llama3-8b", *STEP)
    assert typed["conventions"] == named["conventions"]
    assert typed["model"]["parameters"] == named["model"]["parameters"]


def test_mixtral_by_its_dimensions_is_mixtral_by_name() -> None:
    words = ("--layers", 32, "--hidden", 4096, "--heads", 32, "--kv-heads", 8, "--ffn", 14336, "--vocab", 32000)
    typed = answer("tflops", *words, "--swiglu", "--experts", 8, "--top-k", 2, *STEP)
    named = answer("tflops", "--model", "mixtral-8x7b", *STEP)
    assert typed["model"]["active_parameters"] == named["model"]["active_parameters"] == 12_879_925_248
    assert typed["conventions"] == named["conventions"]


@pytest.mark.parametrize("form", ["file", "folder", "option"])
def test_a_config_json_is_read_by_file_by_folder_and_by_either_option(tmp_path: Path, form: str) -> None:
    config = {"model_type": "llama", **_GROUPED}
    (tmp_path / "config.json").write_text(json.dumps(config))
    option = "--config" if form == "option" else "--model"
    path = tmp_path if form == "folder" else tmp_path / "config.json"
    assert answer("tflops", option, path, *STEP)["model"]["parameters"] == 136128


def test_multi_token_prediction_is_left_out_until_asked_for() -> None:
    plain = answer("tflops", "--model", "deepseek-v3", *STEP)
    with_module = answer("tflops", "--model", "deepseek-v3", "--mtp-layers", 1, *STEP)
    assert plain["model"]["parameters"] == 671_026_404_352
    assert any("--mtp-layers 1" in line for line in plain["assumed"])
    added = with_module["model"]["parameters"] - plain["model"]["parameters"]
    assert added == pytest.approx(11.6e9, rel=0.01)  # the published 14B hold the shared embedding and output layer too


def _config(tmp_path: Path, **keys: object) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({key: value for key, value in keys.items() if value is not None}))
    return path


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model_type": "mamba", **_SMALL}, "'mamba'"),
        ({**_SMALL}, "model_type"),
        ({"model_type": "llava", "text_config": {}, "vision_config": {}}, "vision_config"),
        ({"model_type": "llama", **_GROUPED, "hidden_size": None}, "hidden size"),
        ({"model_type": "llama", **_SMALL}, "intermediate_size"),
        ({"model_type": "llama", **_GROUPED, "num_attention_heads": 7}, "does not divide into 7 heads"),
        ({"model_type": "llama", **_GROUPED, "num_key_value_heads": 3}, "8 heads do not divide into 3"),
        ({"model_type": "llama", **_GROUPED, "num_local_experts": 8}, "experts"),
        ({"model_type": "mixtral", **_GROUPED, "num_local_experts": 8}, "num_experts_per_tok"),
        ({"model_type": "mixtral", **_GROUPED, "num_local_experts": 8, "num_experts_per_tok": 9}, "9 of 8 experts"),
        ({"model_type": "qwen3", **_WIDE, "layer_types": ["linear_attention"]}, "linear_attention"),
        ({"model_type": "phi", **_SMALL, "qk_layernorm": True}, "qk_layernorm"),
        (
            {"model_type": "opt", **_SMALL, "max_position_embeddings": 9, "word_embed_proj_dim": 32},
            "word_embed_proj_dim",
        ),
        ({"train_batch_size": 4, "zero_optimization": {"stage": 2}}, "DeepSpeed config"),
    ],
)
def test_a_config_json_that_is_not_understood_is_refused_by_its_part(
    tmp_path: Path, keys: dict[str, object], said: str
) -> None:
    line = refused("tflops", "--model", _config(tmp_path, **keys), *STEP)
    assert said in line
    assert line.count("\n") <= 2


@given(
    kind=st.sampled_from(sorted(FAMILIES)),
    key=st.sampled_from(sorted({key for _, keys, _ in BUILT_BY_TRANSFORMERS for key in keys} | {"layer_types"})),
    value=st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 3),
        st.floats(),
        st.text(max_size=2),
        st.lists(st.integers(), max_size=2),
    ),
)
def test_a_value_of_another_type_is_refused_or_read_and_never_breaks(kind: str, key: str, value: object) -> None:
    keys = next(keys for other, keys, _ in BUILT_BY_TRANSFORMERS if other == kind)
    refusal = ""
    parameters: tuple[int, int] = (0, 0)
    try:
        model, _ = to_transformer({"model_type": kind, **keys, key: value}, "config.json")
        parameters = total_parameters(model), active_parameters(model)
    except UsageError as error:
        refusal = error.problem
    assert refusal.startswith("config.json") or parameters[0] >= parameters[1] > 0


def test_files_that_are_no_config_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    assert "is not JSON" in refused("tflops", "--model", tmp_path / "broken.json", *STEP)
    assert "no JSON object" in refused("tflops", "--model", tmp_path / "list.json", *STEP)
    assert "does not exist" in refused("tflops", "--model", tmp_path / "none.json", *STEP)
    assert "no config.json" in refused("tflops", "--model", tmp_path, *STEP)


_GPT_WORDS = ("--layers", 12, "--hidden", 768, "--vocab", 50257)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "which model?"),
        (("--model", "gpt5-turbo"), "no known name"),
        (("--size", "52Q"), "52Q"),
        (("--size", "52B", "--model", "llama3-8b"), "contradicts llama3-8b"),
        (("--size", "52B", "--model", "13B"), "contradicts --model 13B"),
        (("--size", "52B", *_GPT_WORDS), "contradicts the model"),
        (("--model", "llama3-8b", "--layers", 16), "--layers 16 contradicts llama3-8b, which has 32"),
        (("--model", "llama3-8b", "--kv-heads", 32), "--kv-heads 32"),
        (("--model", "llama3-8b", "--tied"), "--tied True"),
        (("--layers", 12, "--hidden", 768), "--vocab"),
        ((*_GPT_WORDS, "--heads", 7), "does not divide into 7 heads"),
        ((*_GPT_WORDS, "--heads", 12, "--kv-heads", 5), "do not divide into 5"),
        ((*_GPT_WORDS, "--kv-heads", 4), "--heads is missing"),
        ((*_GPT_WORDS, "--heads", 0), "--heads must be at least 1"),
        ((*_GPT_WORDS, "--layers", -1), "--layers must be at least 1"),
        ((*_GPT_WORDS, "--experts", 8), "--top-k is missing"),
        ((*_GPT_WORDS, "--experts", 8, "--top-k", 9), "9 of 8 experts"),
        ((*_GPT_WORDS, "--top-k", 2), "without --experts"),
        ((*_GPT_WORDS, "--experts", 8, "--top-k", 2, "--dense-layers", 12), "0 of 12 layers"),
        ((*_GPT_WORDS, "--padded-vocab", 50000), "padded vocabulary of 50000"),
    ],
)
def test_contradictions_and_gaps_are_refused_in_one_line(words: tuple[object, ...], said: str) -> None:
    line = refused("tflops", *(str(word) for word in words), *STEP)
    assert said in line
    assert line.count("\n") <= 2


@pytest.mark.parametrize("size", ["8B", "8.03B", "8e9"])
def test_a_size_that_is_rounded_does_not_contradict_its_model(size: str) -> None:
    assert answer("tflops", "--size", size, "--model", "llama3-8b", *STEP)["model"]["parameters"] == 8_030_261_248


def test_a_size_in_the_wrong_unit_is_explained() -> None:
    """The seed's own mistake: 61 times 2**30 parameters are 65 times 10**9."""
    line = refused("tflops", "--size", "61B", "--layers", 80, "--hidden", 8192, "--vocab", 50257, *STEP)
    assert "contradicts" in line
    assert "2**30" in line
