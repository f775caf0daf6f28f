"""The dimensions of a model as options: declared here once, for every command that takes a model."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from perfscope.commands.options.groups import spell_option

#: Dimensions that make a model by themselves: the others have defaults.
REQUIRED = ("layers", "hidden", "vocab")
_PANEL = "Dimensions of the model"


def _option(text: str, *spellings: str, default: str | None = None) -> typer.models.OptionInfo:
    """An option whose default, where it has one, is worked out from the other dimensions."""
    option: typer.models.OptionInfo = typer.Option(
        *spellings, help=text, rich_help_panel=_PANEL, show_default=default or False
    )
    return option


class Dimensions(NamedTuple):
    """The dimensions that were typed; None for those that were not."""

    layers: Annotated[int | None, _option("Transformer layers.", "--layers", "--num-layers", default="of --model")] = (
        None
    )
    hidden: Annotated[int | None, _option("Hidden size.", "--hidden", "--hidden-size", default="of --model")] = None
    heads: Annotated[
        int | None, _option("Attention heads.", "--heads", "--num-attention-heads", default="of --model")
    ] = None
    kv_heads: Annotated[
        int | None,
        _option(
            "Key-value heads of grouped-query attention.",
            "--kv-heads",
            "--num-query-groups",
            "--num-key-value-heads",
            default="--heads",
        ),
    ] = None
    head_dim: Annotated[
        int | None, _option("Head dimension.", "--head-dim", "--kv-channels", default="--hidden / --heads")
    ] = None
    ffn: Annotated[
        int | None,
        _option("Hidden size of the MLP.", "--ffn", "--ffn-hidden-size", "--intermediate-size", default="4 x --hidden"),
    ] = None
    vocab: Annotated[
        int | None, _option("Tokens in the vocabulary.", "--vocab", "--vocab-size", default="of --model")
    ] = None
    padded_vocab: Annotated[
        int | None,
        _option(
            "Rows of the embedding table after the framework's padding.",
            "--padded-vocab",
            "--padded-vocab-size",
            default="--vocab",
        ),
    ] = None
    gated: Annotated[
        bool | None,
        _option("Gated MLP (SwiGLU), without biases, with RMSNorm.", "--gated/--plain", "--swiglu/--no-swiglu"),
    ] = None
    tied: Annotated[
        bool | None,
        _option("The output layer shares the weights of the embedding table.", "--tied/--untied"),
    ] = None
    experts: Annotated[int | None, _option("Routed experts per layer.", "--experts", "--num-experts", default="0")] = (
        None
    )
    top_k: Annotated[
        int | None,
        _option("Experts per token (top-k).", "--top-k", "--moe-router-topk", default="required with --experts"),
    ] = None
    expert_ffn: Annotated[
        int | None, _option("Hidden size of an expert.", "--expert-ffn", "--moe-ffn-hidden-size", default="--ffn")
    ] = None
    shared_ffn: Annotated[
        int | None,
        _option(
            "Hidden size of all shared experts together.",
            "--shared-ffn",
            "--moe-shared-expert-intermediate-size",
            default="0",
        ),
    ] = None
    dense_layers: Annotated[int | None, _option("Layers without experts.", "--dense-layers", default="0")] = None
    mtp_layers: Annotated[
        int | None, _option("Multi-token-prediction modules.", "--mtp-layers", "--mtp-num-layers", default="0")
    ] = None

    @property
    def typed(self) -> dict[str, int | bool]:
        """The dimensions that were typed, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    @property
    def missing(self) -> tuple[str, ...]:
        """The options without which the dimensions do not make a model."""
        return tuple(spell_option(name) for name in REQUIRED if getattr(self, name) is None)
