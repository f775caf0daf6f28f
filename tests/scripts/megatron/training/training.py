"""``train``, ``train_step`` and what they read, with the names, arguments and results of Megatron-LM's."""

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: F401 - used by the script

_STATE = {}


def prepare(args, microbatches):
    _STATE.update(args=args, microbatches=microbatches)


def get_args():
    return _STATE["args"]


def get_num_microbatches():
    return _STATE["microbatches"]


def forward_backward_and_step(forward_step_func, data_iterator, model, optimizer, config, forward_backward_func):
    args = get_args()
    for chunk in model:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    losses = forward_backward_func(
        forward_step_func=forward_step_func,
        data_iterator=[data_iterator] * len(model),
        model=model if len(model) > 1 else model[0],
        num_microbatches=get_num_microbatches(),
        seq_length=args.seq_length,
        micro_batch_size=args.micro_batch_size,
        decoder_seq_length=args.seq_length,
    )
    config.timers("optimizer", log_level=1).start()
    updated, grad_norm, zeros = optimizer.step()
    config.timers("optimizer").stop()
    return losses, updated, grad_norm, zeros


def train_step(forward_step_func, data_iterator, model, optimizer, _scheduler, config, schedule, iteration=None):
    losses, updated, grad_norm, zeros = forward_backward_and_step(
        forward_step_func, data_iterator, model, optimizer, config, schedule
    )
    return losses, 0 if updated else 1, False, False, 0, grad_norm, zeros, 0.0


def train(forward_step_func, model, optimizer, config, forward_backward_func, start, end):
    for iteration in range(start, end):
        get_args().curr_iteration = iteration
        losses, *_ = train_step(
            forward_step_func, None, model, optimizer, None, config, forward_backward_func, iteration=iteration
        )
        if iteration == start:
            with torch.no_grad():
                forward_backward_func.func(
                    forward_step_func=forward_step_func,
                    data_iterator=[None] * len(model),
                    model=model if len(model) > 1 else model[0],
                    num_microbatches=2,
                    seq_length=get_args().seq_length,
                    micro_batch_size=get_args().micro_batch_size,
                    decoder_seq_length=get_args().seq_length,
                    forward_only=True,
                )
    if losses:
        print(f"loss {losses[-1]['lm loss'].item():.17g}")
