"""A Hugging Face config.json: the parameters that follow from it, and what is refused."""

from __future__ import annotations

import json
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.tflops.per_token import megatron_core
from perfscope.errors import UsageError
from perfscope.models.parameter_counts import active_parameters, total_parameters
from perfscope.sources.models.huggingface import families, to_transformer
from tests.analyzers.tflops.making import answer, refused

STEP = ("--gbs", 1, "--time", 1)

_SMALL = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 100}
_GROUPED = {**_SMALL, "intermediate_size": 160, "num_key_value_heads": 2}
_WIDE = {**_GROUPED, "head_dim": 16}
#: A small config.json of each architecture, and the parameters of the model that transformers 5.23 builds from it.
_FILE = Path(__file__).with_name("built_by_transformers.jsonl")
BUILT_BY_TRANSFORMERS: list[tuple[str, dict[str, Any], int]] = [
    (keys.pop("model_type"), keys, keys.pop("parameters")) for keys in map(json.loads, _FILE.read_text().splitlines())
]
_KEYS = {kind: keys for kind, keys, _ in BUILT_BY_TRANSFORMERS}
_HYBRID = {**_KEYS["nemotron_h"], "layers_block_type": None}


@pytest.mark.parametrize(("kind", "keys", "parameters"), BUILT_BY_TRANSFORMERS)
def test_a_config_json_gives_the_parameters_that_transformers_builds(
    kind: str, keys: dict[str, Any], parameters: int
) -> None:
    model = to_transformer({"model_type": kind, **keys}, kind)
    assert total_parameters(model) == parameters


def test_every_architecture_is_held_to_transformers_by_a_case() -> None:
    assert {kind for kind, _, _ in BUILT_BY_TRANSFORMERS} == set(families())


def test_a_folder_counts_before_the_name_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meta-llama" / "Llama-3.1-8B").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    words = ("tflops", "--model", "meta-llama/Llama-3.1-8B", *STEP)
    assert "contains no config.json" in refused(*words, code=1)
    (tmp_path / "meta-llama" / "Llama-3.1-8B").rmdir()
    assert answer(*words)["model"]["name"] == "llama3-8b"


@pytest.mark.parametrize("form", ["file", "folder"])
def test_a_config_json_is_read_by_file_and_by_folder(tmp_path: Path, form: str) -> None:
    config = {"model_type": "llama", **_GROUPED}
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = tmp_path if form == "folder" else tmp_path / "config.json"
    assert answer("tflops", "--model", path, *STEP)["model"]["parameters"] == 136128


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
        ({"model_type": "qwen3", **_WIDE, "layer_types": ["full_attention"]}, "the kinds of 1 layers"),
        ({"model_type": "nemotron_h", **_HYBRID, "hybrid_override_pattern": "MXE*"}, "layers of type X"),
        ({"model_type": "nemotron_h", **_HYBRID, "hybrid_override_pattern": "M" * 9}, "the kinds of 9 layers"),
        ({"model_type": "nemotron_h", **_HYBRID, "hybrid_override_pattern": "ME*M", "n_groups": 0}, "n_groups"),
        ({"model_type": "nemotron_h", **_HYBRID}, "the kinds of its layers"),
        ({"model_type": "phi", **_SMALL, "qk_layernorm": True}, "qk_layernorm"),
        ({"model_type": "deepseek_v3", **_KEYS["deepseek_v3"], "index_topk": 2048}, "index_topk"),
        ({"model_type": "glm4_moe", **_KEYS["glm4_moe"], "kv_lora_rank": 512}, "kv_lora_rank"),
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


#: Values that no file should have, for each key of each architecture.
ODD: tuple[object, ...] = (
    None, True, False, 0, -1, 1, 3, 10**9, 10**30, 1.5, nan, inf, "", "1536", "M*E-", [], [0, 0], ["mamba"] * 3,
    ["full_attention"] * 4, ["sliding_attention", "x"], [[1]], {"a": 1},
)  # fmt: skip
_OTHER_KEYS = {
    "compress_ratios", "full_attention_interval", "hybrid_override_pattern", "layer_types", "layers_block_type",
    "moe_layers", "moe_latent_size", "no_rope_layers", "num_nextn_predict_layers", "sliding_window",
    "sliding_window_pattern", "text_config", "use_sliding_window",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "keys", "parameters"), BUILT_BY_TRANSFORMERS)
def test_a_value_of_another_type_is_refused_or_read_and_never_breaks(
    kind: str, keys: dict[str, Any], parameters: int
) -> None:
    assert parameters
    for key in sorted({*keys, *_OTHER_KEYS}):
        for value in ODD:
            refusal, stored, used, operations = "", 0, 0, 0
            try:
                model = to_transformer({"model_type": kind, **keys, key: value}, "config.json")
                stored, used, operations = total_parameters(model), active_parameters(model), megatron_core(model, 99)
            except UsageError as error:
                refusal = error.problem
            assert refusal.startswith("config.json") or (stored >= used > 0 < operations), (key, value)


#: The layers with a sliding window in the classes of transformers 5.23, and all layers.
WINDOWS = [
    ("gemma2", {}, 2, 4),
    ("cohere2", {}, 3, 4),
    ("gpt_neo", {"attention_layers": ["global", "local", "local", "local"]}, 3, 4),
    ("exaone4", {"sliding_window_pattern": "LLLG"}, 3, 4),
    ("mistral", {}, 4, 4),
    ("mistral", {"sliding_window": None}, 0, 4),
    ("qwen2", {"sliding_window": 16}, 0, 4),
    ("qwen3", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1}, 3, 4),
]


@pytest.mark.parametrize(("kind", "keys", "windows", "layers"), WINDOWS)
def test_layers_have_the_windows_of_the_class_where_the_file_leaves_them_out(
    kind: str, keys: dict[str, Any], windows: int, layers: int
) -> None:
    config = {"model_type": kind, **_WIDE, "max_position_embeddings": 32, "num_hidden_layers": layers, **keys}
    assert sum(mixer.layers for mixer in to_transformer(config, kind).mixers) == windows


def test_prediction_modules_are_counted_of_a_file_where_asked(tmp_path: Path) -> None:
    config = {"model_type": "minimax_m2", **_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}
    path = _config(tmp_path, **config, num_mtp_modules=3)
    said = answer("tflops", "--model", path, *STEP)["assumed"]
    assert any("mtp_layers=3 after the name or file" in line for line in said)
    assert answer("tflops", "--model", f"{path},mtp_layers=3", *STEP)["model"]["parameters"] > 878016


@pytest.mark.parametrize("value", [-253.0, 1536.5, -1, True, "1536"])
def test_a_rank_that_is_no_count_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="q_lora_rank"):
        to_transformer({"model_type": "kimi_k2", **_KEYS["kimi_k2"], "q_lora_rank": value}, "config.json")


def test_embeddings_can_be_tied_beside_the_text_model() -> None:
    text = {"model_type": "ministral3", **_GROUPED}
    tied, untied = ({"model_type": "mistral3", "tie_word_embeddings": value, "text_config": text} for value in (1, 0))
    assert total_parameters(to_transformer(untied, "a")) - total_parameters(to_transformer(tied, "a")) == 6400


def test_the_text_model_of_a_model_of_images_is_counted_and_said(tmp_path: Path) -> None:
    text = {"model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560, "intermediate_size": 10240}
    path = _config(tmp_path, model_type="gemma3", text_config=text, vision_config={"hidden_size": 1152})
    document = answer("tflops", "--model", path, *STEP)
    assert document["model"]["parameters"] == 3_880_263_168  # what transformers builds of google/gemma-3-4b-pt
    assert "the text model of 'gemma3' alone is counted" in document["assumed"]


def test_a_tower_beside_the_dimensions_of_the_text_model_is_said_not_to_be_counted(tmp_path: Path) -> None:
    path = _config(tmp_path, model_type="llama", **_GROUPED, vision_config={"hidden_size": 1024})
    assert "the text model of 'llama' alone is counted" in answer("tflops", "--model", path, *STEP)["assumed"]


def test_files_that_are_no_config_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    assert "is not JSON" in refused("tflops", "--model", tmp_path / "broken.json", *STEP)
    assert "not a JSON object" in refused("tflops", "--model", tmp_path / "list.json", *STEP)
    assert "does not exist" in refused("tflops", "--model", tmp_path / "none.json", *STEP, code=1)
    assert "no config.json" in refused("tflops", "--model", tmp_path, *STEP, code=1)
