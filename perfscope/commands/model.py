"""Which model, GPU and training a command is about, for ``tflops`` and ``plan``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from perfscope.constants import NS_PER_S
from perfscope.errors import SourceError, UsageError
from perfscope.models.conventions import DEFAULT_GPUS, DEFAULT_SEQ_LEN, Checkpointing
from perfscope.models.hardware import Gpu, check_dense, describe_unlisted, lookup_gpu, resolve_family, suggest_gpus
from perfscope.models.parameter_counts import SAME_SIZE, active_parameters, total_parameters
from perfscope.models.transformer import (
    GATED_MATRICES,
    PLAIN_MATRICES,
    Experts,
    ModelDescription,
    Transformer,
    require_consistent,
)
from perfscope.report import Json
from perfscope.sources.models.huggingface import is_config_file, read_config
from perfscope.sources.models.layer_kinds import windowed
from perfscope.sources.models.presets import find_preset, preset_names
from perfscope.units import format_parameters, parse_parameters

if TYPE_CHECKING:  # its columns import NumPy
    from perfscope.tables.joblog import JobLog

_of_model, _of_peak = (partial(typer.Option, rich_help_panel=panel) for panel in ("Model", "Peak"))
_FILE_SUFFIXES = (".json", ".log", ".out", ".txt")
#: The name of a model that is made from its dimensions.
UNNAMED = "the model"
DEFAULT_CHECKPOINTING = Checkpointing.FULL
_REQUIRED = ("layers", "hidden", "heads", "vocab")
_NEED_EXPERTS = ("top_k", "expert_ffn", "shared_ffn", "dense_layers")
#: What depends on how a model is trained, so that it can follow a model's name.
_OF_TRAINING = ("mtp_layers", "padded_vocab", "lora")
_NUMBERS = (
    *_REQUIRED, "kv_heads", "head_dim", "ffn", "window", "window_layers", "experts", *_NEED_EXPERTS, *_OF_TRAINING,
)  # fmt: skip
_MAY_BE_ZERO = ("shared_ffn", "dense_layers", "mtp_layers")
_FLAGS = {"gated": ("gated", 1), "tied": ("tied", 1), "untied": ("tied", 0), "lora": ("lora", 1)}
_COUNT = re.compile("[0-9]{1,12}")
_EXAMPLE = "layers=32,hidden=4096,heads=32,vocab=32000"


class ModelOptions(NamedTuple):
    """A model by its size, its name, a file or its dimensions."""

    size: Annotated[str | None, _of_model(help="Number of parameters: 52B, 7.5B, 125M. B is 10**9.")] = None
    model: Annotated[
        str | None,
        _of_model(
            metavar="NAME|FILE|DIMENSIONS",
            help="A name (llama3-8b), a Hugging Face config.json or its folder, a training log, or dimensions: "
            f"{_EXAMPLE}, and kv_heads, head_dim, ffn, gated, tied, window, window_layers, experts, top_k, "
            "expert_ffn, shared_ffn, dense_layers; of a name or file, too: mtp_layers, padded_vocab, lora.",
        ),
    ] = None


class SequenceOptions(NamedTuple):
    """Sequence length and activation checkpointing, as typed."""

    seq_len: Annotated[
        int | None,
        typer.Option(
            "--seq-len",
            "--seq-length",
            help="Tokens in a sequence.",
            show_default=f"{DEFAULT_SEQ_LEN}, or that of a named model's pre-training",
        ),
    ] = None
    checkpointing: Annotated[
        Checkpointing | None,
        typer.Option(help="Activation checkpointing: what is recomputed.", show_default=DEFAULT_CHECKPOINTING.value),
    ] = None


class Dtype(StrEnum):
    """The data type of the matrix products."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    MXFP8 = "mxfp8"
    FP4 = "fp4"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"
    TF32 = "tf32"
    FP32 = "fp32"


class StepOptions(NamedTuple):
    """The work and the time of one step, as typed."""

    gbs: Annotated[
        int | None,
        typer.Option(
            help="Global batch size: sequences in one step over all GPUs.",
            show_default="of --log, else required",
        ),
    ] = None
    time: Annotated[str | None, typer.Option(help="Time of one step: 127, 127s, 2m7s, 127000ms.")] = None
    gpus: Annotated[int | None, typer.Option(help="Number of GPUs.", show_default=str(DEFAULT_GPUS))] = None


class StepInputs(NamedTuple):
    """A step as far as it is known: ``samples`` is the global batch, ``read`` a phrase for each value of a file."""

    samples: int | None = None
    step_ns: int | None = None
    gpus: int | None = None
    seq_len: int | None = None
    checkpointing: Checkpointing | None = None
    dtype: Dtype | None = None
    gpu: str | None = None
    read: tuple[str, ...] = ()

    def fill_missing(self, supplied: StepInputs, origin: str) -> StepInputs:
        """Take the missing values from a file's, and note that they were read."""
        phrases = {
            "samples": f"global batch {supplied.samples}",
            "step_ns": f"time of a step {(supplied.step_ns or 0) / NS_PER_S:.4g} s, the median of steady-state steps",
            "gpus": f"{supplied.gpus} GPUs",
            "seq_len": f"sequence length {supplied.seq_len}",
            "checkpointing": f"activation checkpointing {supplied.checkpointing}",
            "dtype": f"matrix products in {supplied.dtype}",
            "gpu": f"GPU {supplied.gpu}",
        }
        values = {
            name: value
            for name in phrases
            if getattr(self, name) is None and (value := getattr(supplied, name)) is not None
        }
        return self._replace(**values, read=(*self.read, *(f"{phrases[name]}, from {origin}" for name in values)))


class ModelChoice(NamedTuple):
    """The model that a command is about; without dimensions where only a size was typed.

    ``active_parameters`` are those that a token uses; ``seq_len`` and ``mtp_layers`` are of the model's pre-training.
    """

    active_parameters: int
    total_parameters: int
    transformer: Transformer | None
    origin: str
    notes: tuple[str, ...] = ()
    seq_len: int | None = None
    mtp_layers: int = 0
    published: tuple[str, ...] = ()


def choose_model(options: ModelOptions, seq_len: int) -> ModelChoice:
    """Find the model in what was typed; ``seq_len`` is the learned positions of a GPT of dimensions.

    Raises UsageError where there is none, it is unknown, or size and model contradict each other.
    """
    size = parse_parameters(options.size) if options.size else None
    if options.model is None:
        if size is None:
            raise UsageError(
                "which model? neither --size nor --model is given",
                hint=f"--size 52B, --model llama3-8b, --model path/to/config.json, or --model {_EXAMPLE}",
            )
        return ModelChoice(size, size, None, f"the size {options.size}")
    found = _find_model(options.model, seq_len)
    model = found.transformer
    if model and 0 < model.positions < seq_len:  # a longer sequence needs a longer table
        grown = (seq_len - model.positions) * model.hidden
        found = found._replace(
            active_parameters=found.active_parameters + grown,
            total_parameters=found.total_parameters + grown,
            transformer=model._replace(positions=seq_len),
        )
    if size is not None and found.transformer is None and size != found.total_parameters:
        raise UsageError(f"--size {options.size} contradicts --model {options.model}")
    if size is not None and abs(size / found.total_parameters - 1) > SAME_SIZE:
        assert found.transformer is not None
        raise UsageError(
            f"a size of {format_parameters(size)} contradicts {found.transformer.name}, which has "
            f"{format_parameters(found.total_parameters)} parameters",
            hint="give either the size or the model",
        )
    return found


def _choose(description: ModelDescription, stated: int | None = None) -> ModelChoice:
    """The choice of a model whose dimensions are known, with the size that a log states of one without experts."""
    model = description.transformer
    stated = stated if model.experts is None else None
    choice = ModelChoice(stated or active_parameters(model), stated or total_parameters(model), *description)
    return choice._replace(notes=(*choice.notes, *_describe_training(description)))


def _describe_training(description: ModelDescription) -> Iterator[str]:
    """What of a model's training is counted, and what is not."""
    model, modules = description.transformer, description.mtp_layers
    if model.mtp_layers:
        yield f"with multi-token prediction: mtp_layers={model.mtp_layers} modules are counted"
    elif modules:
        yield (
            f"multi-token prediction is not counted, as in the published size; "
            f"mtp_layers={modules} after the name or file counts it"
        )
    if not model.trained:
        yield "LoRA: the model's weights get no gradients; the adapters are not counted"


def choose_logged_model(log: JobLog) -> ModelChoice | None:
    """The model of a log with the size that ``perfscope logs`` reports; None where the log states neither.

    Raises UsageError where its arguments contradict each other.
    """
    # Setup imports NumPy, which a model by its name or size does not need.
    from perfscope.analyzers.logs.setup import Overrides, stated_setup
    from perfscope.sources.models.megatron_arguments import model_from_arguments

    tokens, padded = log.number("vocab_tokens"), log.number("vocab")
    vocabulary = (tokens, padded) if tokens is not None and padded is not None else None
    model = model_from_arguments(log.arguments, vocabulary, log.path)
    setup = stated_setup(log, Overrides())
    named = log.fact("model")
    preset = find_preset(str(named.value)) if named else None
    if preset is not None:
        return _choose(_complete(preset, {"lora": 1} if log.fact("trained") else {}))
    if model is not None:
        return _choose(ModelDescription(model, f"the arguments in {log.path}"), setup.parameters)
    if setup.parameters is None:
        return None
    origin = f"the size that {log.path} states ({setup.parameters_source})"
    return ModelChoice(setup.parameters, setup.parameters, None, origin)


def _find_model(text: str, seq_len: int) -> ModelChoice:
    name, *words = text.split(",")
    known = None if "/" in name and Path(name).exists() else find_preset(name)
    if known is None and words and is_config_file(Path(name)):
        known = read_config(Path(name))
    if known is not None:
        return _choose(_complete(known, _parse_dimensions(words)))
    path = Path(text)
    if path.exists() or path.suffix in _FILE_SUFFIXES or ("/" in text and "=" not in text):
        return _read_file(path)
    if "=" in text:
        return _choose(describe_dimensions(_parse_dimensions([name, *words]), seq_len))
    try:
        size = parse_parameters(text)
    except UsageError:
        raise UsageError(
            f"the model {text!r} is neither a known name nor a file nor a size nor dimensions ({_EXAMPLE})",
            hint=f"known: {', '.join(preset_names())}",
        ) from None
    return ModelChoice(size, size, None, f"the size {text}")


def _read_file(path: Path) -> ModelChoice:
    if not path.exists():
        raise SourceError(path, "does not exist")
    if is_config_file(path):
        return _choose(read_config(path))
    if path.is_dir():
        raise SourceError(path, "contains no config.json")
    # The readers of logs import NumPy, which a model by its name or config does not need.
    from perfscope.sources.joblog import read_log

    choice = choose_logged_model(read_log(path))
    if choice is None:
        raise SourceError(
            path, "prints no Megatron arguments and no size, so it does not state the dimensions of the model"
        )
    return choice


def _parse_dimensions(words: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in words:
        name, _, value = (part.strip().replace("-", "_") for part in word.partition("="))
        if name in _FLAGS and not value:
            name, number = _FLAGS[name]
        elif name not in _NUMBERS:
            numbers, flags = ", ".join(name for name in _NUMBERS if name not in _FLAGS), ", ".join(_FLAGS)
            hint = f"dimensions: {numbers}; without a number: {flags}"
            raise UsageError(f"--model: {word!r} is no dimension of a model", hint=hint)
        elif not _COUNT.fullmatch(value) or int(value) < (0 if name in _MAY_BE_ZERO else 1):
            raise UsageError(f"--model: {name} must be at least 1 and below 10**12, not {value or 'nothing'}")
        else:
            number = int(value)
        if name in found:
            raise UsageError(f"--model: {name} is given twice")
        found[name] = number
    return found


def _complete(description: ModelDescription, typed: dict[str, int]) -> ModelDescription:
    model = description.transformer
    own = [name for name in typed if name not in _OF_TRAINING]
    if own:
        raise UsageError(
            f"--model: {own[0]} of {model.name} is its own", hint="give either the model or its dimensions"
        )
    if not typed:
        return description
    return description._replace(transformer=require_consistent(_with_training(model, typed)))


def _with_training(model: Transformer, typed: dict[str, int]) -> Transformer:
    return model._replace(
        mtp_layers=typed.get("mtp_layers", model.mtp_layers),
        padded_vocabulary=typed.get("padded_vocab", model.padded_vocabulary),
        trained=0.0 if typed.get("lora") else 1.0,
    )


def describe_dimensions(typed: dict[str, int], seq_len: int) -> ModelDescription:
    """Make a model of typed dimensions; UsageError where one is missing or contradicts another.

    Without a gate it is a GPT: biases, LayerNorm, learned positions, tied embeddings. With a gate it is a Llama: no
    biases, RMSNorm, rotary positions, untied embeddings.
    """
    missing = [name for name in _REQUIRED if name not in typed]
    if missing:
        raise UsageError(f"--model: {' and '.join(missing)} missing: the operations depend on it", hint=_EXAMPLE)
    layers, hidden = typed["layers"], typed["hidden"]
    heads = typed["heads"]
    if "head_dim" not in typed and hidden % heads:
        raise UsageError(f"a hidden size of {hidden} does not divide into {heads} heads")
    head_dim = typed.get("head_dim", hidden // heads)
    gated = bool(typed.get("gated"))
    kv_heads = typed.get("kv_heads", heads)
    ffn = typed.get("ffn", 4 * hidden)
    biases = 0 if gated else heads * head_dim + 2 * kv_heads * head_dim + hidden + ffn + hidden
    norm = hidden if gated else 2 * hidden
    model = Transformer(
        name=UNNAMED,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        mlp_matrices=GATED_MATRICES if gated else PLAIN_MATRICES,
        vocabulary=typed["vocab"],
        tied=bool(typed.get("tied", not gated)),
        positions=0 if gated else seq_len,
        layer_vectors=2 * norm + biases,
        other_vectors=norm,
        experts=_make_experts(typed, layers, ffn),
    )
    model = require_consistent(_with_window(_with_training(model, typed), typed))
    return ModelDescription(model, "the dimensions given")


def _with_window(model: Transformer, typed: dict[str, int]) -> Transformer:
    if "window" not in typed:
        if "window_layers" in typed:
            raise UsageError("--model: window_layers is given without window")
        return model
    return model._replace(mixers=(windowed(model, typed.get("window_layers", model.layers), typed["window"]),))


def _make_experts(typed: dict[str, int], layers: int, ffn: int) -> Experts | None:
    if "experts" not in typed:
        without = [name for name in _NEED_EXPERTS if name in typed]
        if without:
            raise UsageError(f"--model: {without[0]} is given without experts")
        return None
    if "top_k" not in typed:
        raise UsageError("--model: top_k is missing: the operations depend on the experts per token")
    return Experts(
        routed=typed["experts"],
        active=typed["top_k"],
        ffn=typed.get("expert_ffn", ffn),
        shared_ffn=typed.get("shared_ffn", 0),
        layers=layers - typed.get("dense_layers", 0),
    )


def describe_assumed_seq_len(seq_len: int, model_seq_len: int | None) -> str:
    """The assumed length of a sequence as a phrase, beside that of a named model's pre-training."""
    if model_seq_len is None:
        return f"sequence length {seq_len} (--seq-len)"
    if model_seq_len == seq_len:
        return f"sequence length {seq_len}, that of the model's pre-training (--seq-len)"
    return f"sequence length {seq_len} (--seq-len); the model's pre-training took {model_seq_len}"


class PeakOptions(NamedTuple):
    """The GPU and the data type, as typed."""

    gpu: Annotated[str | None, _of_peak(help="The GPU, for its dense peak: h200-sxm, a100-40, or its CUDA name.")] = (
        None
    )
    dtype: Annotated[
        Dtype | None,
        _of_peak(
            "--dtype",
            "--precision",
            help="Data type of the matrix multiplications.",
            show_default="the GPU's 16-bit format",
        ),
    ] = None
    peak: Annotated[
        float | None,
        _of_peak(help="Dense peak of one GPU in TFLOP/s, if --gpu does not list it.", show_default="of --gpu"),
    ] = None


class Peak(NamedTuple):
    """The denominator of MFU and HFU: the dense peak of one GPU in TFLOP/s; None with a warning where unknown."""

    gpu: Gpu | None
    dtype: str
    tflops: float | None
    source: str
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def data(self) -> dict[str, Json] | None:
        """The peak for JSON; null without one."""
        if self.tflops is None:
            return None
        return {
            "name": self.gpu.name if self.gpu else None,
            "dtype": self.dtype,
            "peak_tflops": self.tflops,
            "source": self.source,
        }


def resolve_peak(options: PeakOptions) -> Peak:
    """Find the peak; UsageError where the GPU has none in the format, or the typed peak counts sparsity."""
    gpu = lookup_gpu(options.gpu) if options.gpu else None
    dtype = str(options.dtype) if options.dtype else (gpu.training_dtype if gpu else Dtype.BF16.value)
    assumptions = _list_assumptions(options, gpu, dtype)
    if options.peak is not None:
        check_dense(options.peak, dtype, gpu)
        return Peak(gpu, dtype, options.peak, "given as --peak", assumptions)
    if gpu is None:
        warnings = (
            (f"{describe_unlisted(options.gpu)} and there is no MFU; {suggest_gpus(options.gpu)}",)
            if options.gpu
            else ()
        )
        return Peak(None, dtype, None, "", (), warnings)
    peak, others = gpu.peak_tflops(dtype), gpu.describe_others(dtype)
    return Peak(gpu, dtype, peak, gpu.source_of(dtype), (*assumptions, *others))


def _list_assumptions(options: PeakOptions, gpu: Gpu | None, dtype: str) -> tuple[str, ...]:
    assumptions = []
    if options.gpu and gpu and resolve_family(options.gpu):
        assumptions.append(f"{options.gpu} is a {gpu.name} (--gpu)")
    if gpu and options.dtype is None:
        assumptions.append(f"matrix products in {dtype} (--dtype)")
    return tuple(assumptions)
