"""Trains a few steps in ways of which each once harmed a training, and prints what it sees: ``hostile.py NAME...``."""

import collections
import contextlib
import copy
import gc
import io
import os
import random
import signal
import socket
import sys
import threading
import time
import weakref
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

N = 8  # steps of a case
SAID: list[str] = []


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, batch, *_):
        return self.layer(batch)


class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


class Loop:
    """A model, its optimizer, and steps whose losses count to the last bit."""

    def __init__(self, model=None, optimizer=torch.optim.SGD):
        torch.manual_seed(0)
        self.model = Model() if model is None else model
        self.optimizer = optimizer(nn.Module.parameters(self.model), lr=0.1)
        self.batch = torch.ones(4, 8)
        self.losses = []

    def step(self, count=1):
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = self.model(self.batch).square().mean()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item().hex())
        return self.losses[-1]


def tell(*_):
    """Stands for each method and property of the script's own that training does not call."""
    SAID.append(sys._getframe(1).f_code.co_name)
    raise SystemExit(3)


class HostileModel(Model):
    config = model_config = args = mixed_precision = _handle = fp8 = property(tell)
    parameters = named_parameters = modules = named_modules = children = state_dict = buffers = tell
    __eq__ = __hash__ = __len__ = __bool__ = tell


class HostileLoader(DataLoader):
    num_workers = property(lambda _: SAID.append("num_workers") or 0, lambda *_: None)


class HostileObject:
    def __getattr__(self, name):
        tell()


METHODS = "items", "keys", "values", "get", "__iter__", "__getitem__", "__contains__", "__len__", "__bool__", "__eq__"
HOSTILE = [type("Hostile", (kind,), dict.fromkeys(METHODS, tell)) for kind in (dict, list, collections.abc.Mapping)]


def descriptors_closed_and_used_again():
    loop, rows, raw = Loop(), Path("rows.csv"), Path("checkpoint.bin")
    loop.step(2)
    os.closerange(3, 256)
    first, second = socket.socketpair()
    with rows.open("w") as table, raw.open("wb", buffering=0) as checkpoint:
        for _ in range(N):
            loop.step()
            checkpoint.write(b"C" * 10)
            print("row", file=table, flush=True)
            first.send(b"s")
            time.sleep(0.1)
        time.sleep(2.2)  # records are written two seconds later
    print(raw.read_bytes(), rows.read_text().split(), second.recv(1000), loop.losses)


def traced_between_steps():
    from torch.fx.experimental.proxy_tensor import make_fx

    loop = Loop()
    for _ in range(N):
        loop.step()
        traced, made = torch.jit.trace(loop.model, loop.batch), make_fx(loop.model)(loop.batch)
        exported = torch.export.export(loop.model, (loop.batch,))
        print([str(node.kind()) for node in traced.inlined_graph.nodes()])
        print([str(node.target) for graph in (made.graph, exported.graph) for node in graph.nodes])
        print(torch.func.vmap(loop.model)(loop.batch).sum(), torch.func.grad(lambda x: loop.model(x).sum())(loop.batch))


def seen_by_modes_and_classes_of_tensors():
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    seen = collections.Counter()

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen[str(function)] += 1
            return function(*args, **(kwargs or {}))

    class Noisy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen[getattr(function, "__name__", "")] += 1
            return super().__torch_function__(function, types, args, kwargs or {})

    loop = Loop()
    with Mode(), FlopCounterMode(display=False) as flops:
        loop.step(N)
    loop.batch = loop.batch.as_subclass(Noisy)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.update(["pack"]) or t, lambda t: t):
        loop.step(N)
    print(sorted(seen.items()), flops.get_total_flops(), loop.losses)


def threads_joined_and_children_awaited():
    loop, own = Loop(), 0
    for _ in range(N):
        loop.step()
        pid = os.fork()
        if not pid:
            os._exit(0)
        own += os.waitpid(-1, 0)[0] == pid
    with contextlib.suppress(ChildProcessError):
        print("another child", os.wait())
    print(own, threading.active_count(), [thread.name for thread in threading.enumerate()])
    for thread in threading.enumerate()[1:]:
        thread.join()


def pickled_by_value():
    import cloudpickle

    loop = Loop(optimizer=Optimizer)
    for _ in range(N):
        loop.step()
        for value in (Model, Optimizer, loop.model, loop.optimizer, loop, lambda: Optimizer):
            cloudpickle.loads(cloudpickle.dumps(value))
        copy.deepcopy(loop.optimizer).step()
        torch.save(loop.optimizer.state_dict(), io.BytesIO())
    *_, other = cloudpickle.loads(cloudpickle.dumps((Model, Optimizer, loop)))
    print(loop.step(), other.step(), random.getstate()[1][0] >= 0, torch.rand(1))
    ended = []
    for what in (loop.model, loop.optimizer):
        weakref.finalize(what, ended.append, type(what).__name__)
    del what, value, loop, other
    gc.collect()
    print(ended)


def methods_and_properties_that_raise():
    untrained = [type("Untrained", (HostileModel,), {})() for _ in range(3)]
    loop = Loop(HostileModel())
    loop.step(N)
    print(loop.losses, len(untrained))
    for kind in (*HOSTILE, HostileObject):

        def collate(_, kind=kind):
            return object.__new__(kind)

        for batch in HostileLoader(torch.ones(40, 8), batch_size=4, collate_fn=collate):
            loop.step()
            with contextlib.suppress(TypeError):
                nn.DataParallel(Model())(loop.batch, batch).sum().backward()
    print(SAID)


def own_profilers():
    loop = Loop()
    for _ in range(3):
        with torch.profiler.profile() as profiler:
            loop.step(2)
        loop.step(6)
        print(collections.Counter(event.name for event in profiler.events() if "aten" in event.name))


def alarms_that_raise():
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    loop, rung = Loop(), 0
    loop.step(2)
    signal.signal(signal.SIGALRM, ring)
    for number in range(150):
        signal.setitimer(signal.ITIMER_REAL, 0.0002 + number * 14e-6)
        try:
            loop.step()
            while True:
                time.sleep(0.01)
        except Alarm:
            rung += 1
            torch.set_grad_enabled(True)  # it may have come inside of torch's own no_grad
    print(rung)


def interrupts_around_a_window():
    loop, caught = Loop(), 0
    for number in range(10):
        thread = threading.Timer(0.003 * number, os.kill, (os.getpid(), signal.SIGINT))
        try:
            thread.start()
            loop.step()
            time.sleep(2)
        except KeyboardInterrupt:
            caught += 1
        thread.join()
    print(caught)


def thread_for_each_step():
    loop = Loop()
    for _ in range(N):
        thread = threading.Thread(target=loop.step)
        thread.start()
        thread.join()
    print(loop.losses)


def no_rights_in_a_window():
    loop = Loop()
    loop.step(3)
    os.setuid(65534)
    print(loop.step(N))


def two_interrupts_at_the_end():
    Loop().step(4)
    for after in (0.02, 0.06):
        threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()
    time.sleep(5)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(name, flush=True)
        globals()[name]()
