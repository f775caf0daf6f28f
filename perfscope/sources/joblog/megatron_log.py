"""What a Megatron log says about its model and its own TFLOPs: the arguments it prints, and its iteration lines.

Rank 0 prints its arguments between two banners, one ``name ....... value`` a line; the last rank prints an iteration
line a logging interval. A log may lack either: a part of a log still tells its throughput, a crashed run its arguments.
torchtitan's step lines are read as well, because they state TFLOPs and tokens a second together.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from perfscope.errors import SourceError, UsageError
from perfscope.models.transformer import (
    GATED_MATRICES,
    PLAIN_MATRICES,
    Experts,
    Latent,
    ModelDescription,
    Transformer,
    require_consistent,
)

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_ARGUMENT = re.compile(r"^(?:\S*[\]:]\s*)?\s*(\w+) \.{2,} (.*)$")
_PADDED = re.compile(r"padded vocab \(size: (\d+)\) with \d+ dummy tokens \(new size: (\d+)\)")
_CLAIMED_SIZE = re.compile(r"Model size: ([\d.]+)B\b")
_ITERATION = re.compile(r"iteration\s+(\d+)/\s*\d+ \|")
_ELAPSED = re.compile(r"elapsed time per iteration \((ms|s)\): ([\d.]+)")
_LOGGED = re.compile(r"(throughput per GPU \(TFLOP/s/GPU\)|TFLOPs): ([\d.]+)")
_BATCH = re.compile(r"global batch size:\s+(\d+)")
_TORCHTITAN = re.compile(r"step:\s*(\d+) .*?tps: ([\d,]+)\s+tflops: ([\d.,]+)")
_NANOSECONDS = {"ms": 10**6, "s": 10**9}


class LoggedStep(NamedTuple):
    """One line of a log that states a speed.

    Attributes:
        step: Its number.
        step_ns: Time of one iteration; absent where the log states tokens a second.
        step_resolution_ns: What the last printed digit of the time stands for.
        samples: Global batch size; absent where the line does not state it.
        tokens_per_s_per_gpu: Tokens a second of one GPU; absent where the log states a time.
        tflops: The log's own TFLOPs per GPU; absent where it prints none.
        resolution: What the last printed digit of ``tflops`` stands for.
    """

    step: int
    step_ns: int | None
    step_resolution_ns: int
    samples: int | None
    tokens_per_s_per_gpu: int | None
    tflops: float | None
    resolution: float


class TrainingLog(NamedTuple):
    """What a log tells.

    Attributes:
        path: The file.
        framework: ``megatron`` or ``torchtitan``.
        label: What its own TFLOPs are called in it; empty where it prints none.
        arguments: The arguments it prints; empty where it prints none.
        model: The dimensions; absent where it prints no arguments.
        claimed_sizes: Sizes that it states as ``Model size: 61B``, in billions.
        steps: Its lines with a speed.
    """

    path: str
    framework: str
    label: str
    arguments: dict[str, str]
    model: ModelDescription | None
    claimed_sizes: tuple[float, ...]
    steps: tuple[LoggedStep, ...]

    def number(self, argument: str) -> int | None:
        """An argument that is a whole number; absent where it is not printed or is no number."""
        text = self.arguments.get(argument, "")
        return int(text) if text.isdigit() else None


def read_megatron_log(path: Path) -> TrainingLog:
    """Read a log of Megatron-LM, Megatron-DeepSpeed or torchtitan.

    Raises:
        SourceError: The file cannot be read.
        UsageError: It is no such log, or the arguments contradict each other.
    """
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror}") from None
    lines = _ESCAPES.sub("", text).replace("\r", "\n").split("\n")
    arguments = _arguments(lines)
    steps, label = _steps(lines)
    if not arguments and not steps:
        raise UsageError(
            f"{path} is no log of Megatron or torchtitan: it has neither their arguments nor their iteration lines"
        )
    padded = _PADDED.search(text)
    model = model_of(arguments, (int(padded[1]), int(padded[2])) if padded else None, str(path)) if arguments else None
    return TrainingLog(
        path=str(path),
        framework="torchtitan" if label == "tflops" else "megatron",
        label=label,
        arguments=arguments,
        model=ModelDescription(model, f"the arguments in {path}") if model else None,
        claimed_sizes=tuple(sorted({float(match[1]) for match in _CLAIMED_SIZE.finditer(text)})),
        steps=steps,
    )


def _arguments(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    inside = False
    for line in lines:
        if "-- arguments --" in line:
            inside = True
        elif "end of arguments --" in line:
            break
        elif inside and (match := _ARGUMENT.match(line)):
            found.setdefault(match[1], match[2].strip())
    return found


def _steps(lines: list[str]) -> tuple[tuple[LoggedStep, ...], str]:
    steps: list[LoggedStep] = []
    label = ""
    for line in lines:
        if match := _TORCHTITAN.search(line):
            label = "tflops"
            steps.append(_torchtitan_step(match))
        elif (iteration := _ITERATION.search(line)) and (elapsed := _ELAPSED.search(line)):
            logged = _LOGGED.search(line)
            label = logged[1] if logged else label
            steps.append(_megatron_step(iteration, elapsed, logged, _BATCH.search(line)))
    return tuple(steps), label


def _torchtitan_step(match: re.Match[str]) -> LoggedStep:
    tflops = match[3].replace(",", "")
    return LoggedStep(
        step=int(match[1]),
        step_ns=None,
        step_resolution_ns=0,
        samples=None,
        tokens_per_s_per_gpu=int(match[2].replace(",", "")),
        tflops=float(tflops),
        resolution=_resolution(tflops),
    )


def _megatron_step(
    iteration: re.Match[str], elapsed: re.Match[str], logged: re.Match[str] | None, batch: re.Match[str] | None
) -> LoggedStep:
    unit_ns = _NANOSECONDS[elapsed[1]]
    return LoggedStep(
        step=int(iteration[1]),
        step_ns=round(float(elapsed[2]) * unit_ns),
        step_resolution_ns=round(_resolution(elapsed[2]) * unit_ns),
        samples=int(batch[1]) if batch else None,
        tokens_per_s_per_gpu=None,
        tflops=float(logged[2]) if logged else None,
        resolution=_resolution(logged[2]) if logged else 0.0,
    )


def _resolution(number: str) -> float:
    """What the last printed digit stands for: 0.1 for ``55.4``."""
    return float(10 ** -len(number.partition(".")[2]))


def model_of(arguments: dict[str, str], vocabulary: tuple[int, int] | None, path: str) -> Transformer | None:
    """The model that the arguments describe; absent where they lack one of its dimensions."""
    numbers = {name: int(value) for name, value in arguments.items() if value.isdigit()}
    on = {name for name, value in arguments.items() if value == "True"}
    layers, hidden, heads = (numbers.get(name) for name in ("num_layers", "hidden_size", "num_attention_heads"))
    padded = vocabulary[1] if vocabulary else numbers.get("padded_vocab_size") or numbers.get("vocab_size")
    if not (layers and hidden and heads and padded):
        return None
    tokens = vocabulary[0] if vocabulary else numbers.get("vocab_size") or padded
    gated = "swiglu" in on or arguments.get("glu_activation", "None") != "None"
    rms = arguments.get("normalization") == "RMSNorm"
    kv_heads = (numbers.get("num_query_groups") or heads) if "group_query_attention" in on else heads
    head_dim = numbers.get("kv_channels") or hidden // heads
    ffn = numbers.get("ffn_hidden_size") or 4 * hidden
    experts = _experts(arguments, numbers, layers, ffn, path)
    norm = hidden if rms else 2 * hidden
    mlp_inner = ffn * (2 if gated else 1)
    biases = (heads + 2 * kv_heads) * head_dim + 2 * hidden + mlp_inner
    return require_consistent(
        Transformer(
            name=f"the model of {Path(path).name}",
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            ffn=ffn,
            mlp_matrices=GATED_MATRICES if gated else PLAIN_MATRICES,
            vocabulary=tokens,
            padded_vocabulary=padded,
            tied="untie_embeddings_and_output_weights" not in on,
            positions=_positions(arguments, numbers),
            layer_vectors=2 * norm + (0 if arguments.get("add_bias_linear") == "False" else biases),
            other_vectors=norm,
            latent=_latent(numbers, path) if "multi_latent_attention" in on else None,
            experts=experts,
            mtp_layers=numbers.get("mtp_num_layers", 0),
        )
    )


def _positions(arguments: dict[str, str], numbers: dict[str, int]) -> int:
    learned = arguments.get("position_embedding_type", "learned_absolute") in (
        "learned_absolute",
        "PositionEmbeddingType.absolute",
    )
    return numbers.get("max_position_embeddings", 0) if learned else 0


def _latent(numbers: dict[str, int], path: str) -> Latent:
    for name in ("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"):
        if name not in numbers:
            raise UsageError(f"{path}: multi_latent_attention is printed but not {name}")
    return Latent(
        q_rank=numbers.get("q_lora_rank"),
        kv_rank=numbers["kv_lora_rank"],
        nope_dim=numbers["qk_head_dim"],
        rope_dim=numbers["qk_pos_emb_head_dim"],
        value_dim=numbers["v_head_dim"],
    )


def _experts(arguments: dict[str, str], numbers: dict[str, int], layers: int, ffn: int, path: str) -> Experts | None:
    count = numbers.get("num_experts")
    if not count:
        return None
    top_k = numbers.get("moe_router_topk")
    if top_k is None:
        raise UsageError(f"{path}: {count} experts are printed but not moe_router_topk, how many a token visits")
    return Experts(
        routed=count,
        active=top_k,
        ffn=numbers.get("moe_ffn_hidden_size") or ffn,
        shared_ffn=numbers.get("moe_shared_expert_intermediate_size") or 0,
        layers=_expert_layers(arguments.get("moe_layer_freq", "1"), layers, path),
    )


def _expert_layers(frequency: str, layers: int, path: str) -> int:
    """Layers with experts: every n-th from the first, or the ones of a list."""
    if frequency.isdigit() and int(frequency):
        return len(range(0, layers, int(frequency)))
    pattern = [int(bit) for bit in re.findall(r"[01]", frequency)]
    if len(pattern) != layers:
        raise UsageError(f"{path}: moe_layer_freq {frequency} does not describe {layers} layers")
    return sum(pattern)
