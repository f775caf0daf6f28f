"""Megatron-core's own GPTModel, schedules, groups, optimizer and timers, on the CPU.

``train`` and ``train_step`` below have the form of megatron.training's; with ``own_loop`` the loop is the script's.
"""

import os
import sys
from functools import partial
from types import SimpleNamespace

import cpu_as_cuda
import torch

cpu_as_cuda.install()
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.distributed.finalize_model_grads import finalize_model_grads  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.timers import Timers  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from megatron.training import training  # noqa: E402

LOOP, TP, PP, VP = sys.argv[1], *(int(word) for word in sys.argv[2:])
STEPS, MICRO_BATCHES, SAMPLES, TOKENS, VOCABULARY = int(os.environ.get("STEPS", "8")), 4, 2, 16, 128
torch.distributed.init_process_group("gloo")
parallel_state.initialize_model_parallel(TP, PP, VP if VP > 1 else None)
torch.manual_seed(0)
model_parallel_cuda_manual_seed(0)
timers = Timers(log_level=2, log_option="minmax")
config = TransformerConfig(
    num_layers=4,
    hidden_size=32,
    num_attention_heads=4,
    use_cpu_initialization=True,
    pipeline_dtype=torch.float32,
    attention_dropout=0.0,
    hidden_dropout=0.0,
    tensor_model_parallel_size=TP,
    pipeline_model_parallel_size=PP,
    virtual_pipeline_model_parallel_size=VP if VP > 1 else None,
    gradient_accumulation_fusion=False,
    masked_softmax_fusion=False,
    persist_layer_norm=False,
    bias_dropout_fusion=False,
    timers=timers,
    finalize_model_grads_func=finalize_model_grads,
)


def build(chunk: int) -> torch.nn.Module:
    """The part of the model that this rank holds as one chunk."""
    stage = {"vp_stage": chunk} if VP > 1 else {}
    first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, **stage)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, **stage)
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        VOCABULARY,
        TOKENS,
        pre_process=first,
        post_process=last,
        share_embeddings_and_output_weights=True,
        **stage,
    )
    return DistributedDataParallel(config, DistributedDataParallelConfig(overlap_grad_reduce=False), model)


def forward_step(_data, model):
    """One micro-batch, as a script gives it to Megatron."""
    tokens = torch.randint(VOCABULARY, (SAMPLES, TOKENS))
    position = torch.arange(TOKENS).expand(SAMPLES, -1)
    mask = torch.ones(1, 1, TOKENS, TOKENS).tril() < 0.5
    loss = model(tokens, position, mask, labels=tokens)
    return loss, lambda output: (output.float().mean(), {"lm loss": output.detach().float().mean()})


model = [build(chunk) for chunk in range(VP)]
optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-3), model)
pretend_args = SimpleNamespace(
    micro_batch_size=SAMPLES,
    data_parallel_size=parallel_state.get_data_parallel_world_size(),
    seq_length=TOKENS,
    padded_vocab_size=VOCABULARY,
    global_batch_size=SAMPLES * MICRO_BATCHES * parallel_state.get_data_parallel_world_size(),
    num_layers=config.num_layers,
    hidden_size=config.hidden_size,
    num_attention_heads=config.num_attention_heads,
    max_position_embeddings=TOKENS,
)
training.prepare(pretend_args, MICRO_BATCHES)
run_passes = partial(training.get_forward_backward_func(), forward_only=False)
if LOOP == "own_loop":
    for _ in range(STEPS):
        training.forward_backward_and_step(forward_step, None, model, optimizer, config, run_passes)
else:
    training.train(forward_step, model, optimizer, config, run_passes, start=100, end=100 + STEPS)
torch.distributed.destroy_process_group()
