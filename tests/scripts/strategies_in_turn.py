"""Trains a small model by one strategy after the other in the same two processes, and prints every loss as JSON.

What is compiled is traced, and left as it is; the modules that each strategy compiled are counted.
"""

import json
import os
import sys
from importlib import import_module

from torch import distributed, nn

from perfscope.workloads.strategies import STRATEGIES, Processes
from perfscope.workloads.strategies.train import IMAGE_SIZE, make_batches, parse_options, train
from perfscope.workloads.tasks.job import find_job
from perfscope.workloads.tasks.task import make_task

names, words = sys.argv[1].split(","), sys.argv[2:]
losses, compiled = {}, {}
compile_module = nn.Module.compile


def trace_module(module):
    compiled[name] = compiled.get(name, 0) + 1
    compile_module(module, backend="eager")


nn.Module.compile = trace_module
for name in names:
    strategy = STRATEGIES[name]
    options = parse_options([*words, "--strategy", name])
    options.devices = 2 if strategy.processes is Processes.ALL_DEVICES else 1
    task = make_task(options.model, options.data, IMAGE_SIZE[options.device])
    job = find_job(task, options)
    build = import_module(f"perfscope.workloads.strategies.{strategy.module}").build
    training = build(job, **strategy.options)
    own = train(job, training, make_batches(task, options))
    everywhere = [None] * job.world_size
    if job.world_size > 1:
        job.join_group()
        distributed.all_gather_object(everywhere, own)
    else:
        everywhere = [own]
    columns = zip(*everywhere, strict=True)
    losses[name] = [sum(known) / len(known) for known in ([x for x in c if x is not None] for c in columns)]
    if name == "rpc":
        training.leave()
if job.rank == 0:
    print("LOSSES", json.dumps(losses))
    print("COMPILED", json.dumps(compiled))
if distributed.is_initialized():
    distributed.destroy_process_group()
# Threads of gloo that still want the interpreter while it ends abort the process, once in some hundred runs.
sys.stdout.flush()
os._exit(0)
