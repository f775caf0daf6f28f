"""The options that tell a command which model: by size, by name, by file or by dimensions."""

from __future__ import annotations

from typing import Annotated

import typer

_PANEL = "Model"
_DIMENSIONS = "Dimensions of the model"

SizeOption = Annotated[
    str | None,
    typer.Option(help="Parameters of the model: 52B, 7.5B, 125M. B is 10**9.", rich_help_panel=_PANEL),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "--config",
        help="A name (llama3-8b), a size (13B), a Hugging Face config.json or its folder, or a Megatron log.",
        rich_help_panel=_PANEL,
    ),
]


def _dimension(text: str, *names: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(*names, help=text, rich_help_panel=_DIMENSIONS, show_default=False)
    return option


LayersOption = Annotated[int | None, _dimension("Transformer layers.", "--layers", "--num-layers")]
HiddenOption = Annotated[int | None, _dimension("Hidden size.", "--hidden", "--hidden-size")]
HeadsOption = Annotated[int | None, _dimension("Attention heads.", "--heads", "--num-attention-heads")]
KvHeadsOption = Annotated[
    int | None, _dimension("Key-value heads, if grouped.", "--kv-heads", "--num-query-groups", "--num-key-value-heads")
]
HeadDimOption = Annotated[int | None, _dimension("Dimensions of a head.", "--head-dim", "--kv-channels")]
FfnOption = Annotated[
    int | None,
    _dimension("Hidden size of the MLP; 4h if not given.", "--ffn", "--ffn-hidden-size", "--intermediate-size"),
]
VocabOption = Annotated[int | None, _dimension("Tokens in the vocabulary.", "--vocab", "--vocab-size")]
PaddedVocabOption = Annotated[
    int | None, _dimension("Rows the framework pads the table to.", "--padded-vocab", "--padded-vocab-size")
]
GatedOption = Annotated[
    bool | None,
    _dimension("The MLP has a gate (SwiGLU), no biases, RMSNorm.", "--gated/--plain", "--swiglu/--no-swiglu"),
]
TiedOption = Annotated[bool | None, _dimension("The output layer is the embedding table.", "--tied/--untied")]
ExpertsOption = Annotated[int | None, _dimension("Routed experts of a layer.", "--experts", "--num-experts")]
TopKOption = Annotated[int | None, _dimension("Experts that a token visits.", "--top-k", "--moe-router-topk")]
ExpertFfnOption = Annotated[
    int | None, _dimension("Hidden size of an expert.", "--expert-ffn", "--moe-ffn-hidden-size")
]
SharedFfnOption = Annotated[
    int | None,
    _dimension("Hidden size of all shared experts.", "--shared-ffn", "--moe-shared-expert-intermediate-size"),
]
DenseLayersOption = Annotated[int | None, _dimension("Layers without experts.", "--dense-layers")]
MtpLayersOption = Annotated[
    int | None, _dimension("Multi-token-prediction modules.", "--mtp-layers", "--mtp-num-layers")
]
