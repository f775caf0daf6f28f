"""Short trainings of one GPT, each with one fault that costs time, and a clean one: ``faults.py --out DIR CASE...``.

torch is imported once; each case trains in a process of its own (two where its ranks are two) that attaches perfscope.
Its run is ``DIR/CASE``. With ``--together N`` so many cases prepare at once, and then train in turns: preparing takes
longer than training, and only training is measured.

A case of ``LOOPS`` has its fault in the loop, plain or of DistributedDataParallel, Trainer or Lightning. Its steps
sleep, or compute where ``FAULTS_COMPUTE`` is set.
It measures its first steps, and plants faults in multiples of them. It measures these, too: ``DIR/CASE/planted.json``.
``DIR/CASE.tar.gz`` is the run as it is kept in ``fixtures/findings/loop``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import gc
import importlib
import json
import os
import sys
import tarfile
import tempfile
import time
import traceback
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from gpt_pipeline import Part, loss_of
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from perfscope.hooks import attach
from perfscope.workloads.gpt import Gpt, GptConfig

CONFIG = GptConfig(layers=2, hidden=96, heads=4, vocabulary=256, seq_len=65)


@dataclasses.dataclass
class Case:
    """One training; times are seconds."""

    ranks: int = 1
    batch: int = 4
    steps: int = 16
    in_step: object = None  # called before the optimizer
    holds_objects: bool = False
    sample_s: float = 0.0
    workers: int = 0
    padding: float = 0.0
    lengths: tuple = ()  # of sequences, for each of which the model is compiled
    save_every: int = 0
    saved: int = 0  # elements beside the model
    slow_rank: dict = dataclasses.field(default_factory=dict)  # what is different on the last rank
    microbatches: int = 0  # of a pipeline


CASES = {
    "clean": Case(batch=8),
    "pause": Case(in_step=lambda: time.sleep(0.15)),
    "garbage": Case(in_step=gc.collect, holds_objects=True),
    "slow_data": Case(sample_s=0.06),
    "few_workers": Case(sample_s=0.06, workers=2),
    "recompilation": Case(lengths=tuple(range(8, 65, 4)), steps=11),
    "saves": Case(save_every=6, saved=1 << 24),
    "padding": Case(batch=8, padding=0.6),
    "straggler_host": Case(ranks=2, slow_rank={"in_step": lambda: time.sleep(0.2)}),
    "straggler_data": Case(ranks=2, slow_rank={"sample_s": 0.04}),
    "straggler_garbage": Case(ranks=2, steps=32, slow_rank={"in_step": gc.collect, "holds_objects": True}),
    "straggler_saves": Case(ranks=2, steps=32, slow_rank={"save_every": 6, "saved": 1 << 24}),
    "pipeline_bubble": Case(ranks=2, microbatches=2, steps=10),
}


@dataclasses.dataclass
class Planted:
    """A cause of time: ``share`` of the loop is its own, as far as it can be set before."""

    kind: str  # a method of ``Loop``
    share: float
    period: int = 1
    first: int = 6  # the steps before are measured
    inside: bool = False
    rank: int = -1  # the only one that has it


@dataclasses.dataclass
class LoopCase:
    """One training whose loop is measured."""

    way: str
    planted: tuple = ()
    steps: int = 60
    forward_s: float = 0.02  # a backward pass takes twice that
    saved: int = 0  # elements beside the model
    ranks: int = 1
    microbatches: int = 0


def looped(way, *planted, **fields):
    saved = (1 << 24) * any(each.kind == "save" for each in planted)
    return LoopCase(way, planted, saved=saved, ranks=2 if way == "ddp" else 1, **fields)


LONG, SHORT = {"steps": 210, "forward_s": 0.01}, {"steps": 20}
LOOPS = {
    "plain": looped("plain"),
    "long": looped("plain", **LONG),
    "short": looped("plain", **SHORT),
    "ddp": looped("ddp"),
    "trainer": looped("trainer"),
    "lightning": looped("lightning"),
    "plain_pause_2": looped("plain", Planted("pause", 0.5, 2)),
    "plain_pause_5": looped("plain", Planted("pause", 0.53, 5)),
    "plain_pause_3_inside": looped("plain", Planted("pause", 0.3, 3, inside=True)),
    "plain_pause_10": looped("plain", Planted("pause", 0.1, 10)),
    "plain_pause_late": looped("plain", Planted("pause", 0.3, 5, first=31)),
    "plain_pause_each": looped("plain", Planted("pause", 0.5, inside=True)),
    "plain_pause_between_each": looped("plain", Planted("pause", 0.4)),
    "plain_work_5": looped("plain", Planted("work", 0.4, 5)),
    "plain_evaluation": looped("plain", Planted("evaluation", 0.3, 10)),
    "plain_saves": looped("plain", Planted("save", 0.2, 10)),
    "plain_garbage_each": looped("plain", Planted("garbage", 0.5)),
    "plain_garbage_10": looped("plain", Planted("garbage", 0.2, 10)),
    "plain_data_each": looped("plain", Planted("data", 0.5)),
    "plain_data_8": looped("plain", Planted("data", 0.3, 8)),
    "plain_evaluation_and_saves": looped("plain", Planted("evaluation", 0.4, 10), Planted("save", 0.2, 10)),
    "plain_pause_and_data": looped("plain", Planted("pause", 0.4, 5), Planted("data", 0.2)),
    "long_pause_50": looped("plain", Planted("pause", 0.2, 50), **LONG),
    "long_pause_25": looped("plain", Planted("pause", 0.8, 25), **LONG),
    "long_pause_20": looped("plain", Planted("pause", 0.05, 20, inside=True), **LONG),
    "short_pause_5": looped("plain", Planted("pause", 0.4, 5), **SHORT),
    "short_evaluation": looped("plain", Planted("evaluation", 0.9, 5), **SHORT),
    "short_data": looped("plain", Planted("data", 0.4), **SHORT),
    "ddp_rank_pause_each": looped("ddp", Planted("pause", 0.6, rank=1)),
    "ddp_rank_pause_5": looped("ddp", Planted("pause", 0.4, 5, rank=1)),
    "ddp_rank_data": looped("ddp", Planted("data", 0.4, rank=1)),
    "ddp_rank_garbage": looped("ddp", Planted("garbage", 0.4, rank=1)),
    "ddp_rank_saves": looped("ddp", Planted("save", 0.2, 10, rank=0)),
    "ddp_pause_5": looped("ddp", Planted("pause", 0.4, 5)),
    "ddp_evaluation": looped("ddp", Planted("evaluation", 0.3, 10)),
    "trainer_pause_5": looped("trainer", Planted("pause", 0.4, 5)),
    "trainer_evaluation": looped("trainer", Planted("evaluation", 0.3, 10)),
    "trainer_saves": looped("trainer", Planted("save", 0.2, 10)),
    "trainer_data": looped("trainer", Planted("data", 0.4)),
    "lightning_pause_5": looped("lightning", Planted("pause", 0.4, 5)),
    "lightning_evaluation": looped("lightning", Planted("evaluation", 0.3, 10)),
    "lightning_saves": looped("lightning", Planted("save", 0.2, 10)),
    "lightning_data": looped("lightning", Planted("data", 0.4)),
}
BATCH, WIDTH = 8, 64
#: A variable: where it is set, steps of ``LOOPS`` compute in place of sleeping.
COMPUTING = "FAULTS_COMPUTE"
FRAMEWORKS = {"trainer": "transformers", "lightning": "lightning"}


class Loop:
    """A training that measures its steps and what is planted in it."""

    def __init__(self, case, folder, rank):
        self.case, self.folder, self.rank = case, folder, rank
        self.planted = [each for each in case.planted if each.rank in (-1, rank)]
        self.spent_s = [0.0] * len(self.planted)
        self.begun_s, self.delayed_s = 0.0, 0.0
        self.times_s, self.step, self.batch, self.last_s = [], 1, 0, None
        self.model = Layers(case.forward_s, case.saved, self.forwarded)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        gc.freeze()  # a collection looks at what follows only
        self.held = [{"list": []} for _ in range(50_000 * any(each.kind == "garbage" for each in self.planted))]

    def samples(self, batches):
        """Each is a whole batch: to put one together costs next to nothing."""
        return torch.ones(1, BATCH, WIDTH).expand(batches, -1, -1)

    def loader(self, batches):
        return DataLoader(self.samples(batches), collate_fn=self.collate)

    def period(self, kind):
        """Each so many steps this happens; more than there are where it does not."""
        return next((each.period for each in self.planted if each.kind == kind), self.case.steps + 1)

    def evaluated(self):
        """Batches of an evaluation: a forward pass is a third of a step."""
        each = next((each for each in self.planted if each.kind == "evaluation"), Planted("", 0.1))
        return max(round(3 * each.period * each.share / (1 - each.share)), 1)

    # What is planted, by its kind.

    def pause(self, seconds):
        time.sleep(seconds)

    data = pause

    def work(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sum(range(1000))

    def garbage(self, seconds):
        end = time.monotonic() + seconds
        gc.collect()
        while time.monotonic() < end:
            gc.collect()

    def evaluation(self, _seconds):
        self.model.eval()
        with torch.no_grad():
            for batch in self.loader(self.evaluated()):
                self.model(**batch)
        self.model.train()

    def save(self, _seconds):
        torch.save(self.model.state_dict(), self.folder / f"{self.rank}.pt")

    # Where it happens.

    def do(self, number, *kinds, inside=False):
        for index, each in enumerate(self.planted):
            if each.kind in kinds and each.inside is inside and number >= each.first and number % each.period == 0:
                unit_s = median(self.times_s[1:5])
                with self.timed(index):
                    getattr(self, each.kind)(each.period * each.share / (1 - each.share) * unit_s)

    @contextlib.contextmanager
    def timed(self, *indices):
        began_s = time.monotonic()
        yield
        for index in indices:
            self.spent_s[index] += time.monotonic() - began_s

    def timing(self, kind, function):
        """A framework's function of this kind, timed."""

        def timed(*args, **kwargs):
            with self.timed(*[index for index, each in enumerate(self.planted) if each.kind == kind]):
                return function(*args, **kwargs)

        return timed

    def collate(self, samples):
        (batch,) = samples
        if self.model.training:
            self.batch += 1
            if self.batch <= self.case.steps:
                self.do(self.batch, "data")
        return {"inputs": batch, "labels": batch}

    def forwarded(self):
        self.do(self.step, "pause", "work", inside=True)

    def stepped(self, *kinds):
        now_s = time.monotonic()
        if self.step == 1:
            self.begun_s, self.delayed_s = now_s, delay_s()
        if self.last_s is not None:
            self.times_s.append(now_s - self.last_s)
        if self.step == self.case.steps:  # what follows the last step is not of the loop, but for these
            self.do(self.step, *kinds)
        else:
            self.do(self.step, "pause", "work", "garbage", *kinds)
        self.step += 1
        self.last_s = time.monotonic()

    def finish(self, folder):
        delayed = (delay_s() - self.delayed_s) / (time.monotonic() - self.begun_s)
        if self.rank == max(0, 0, *(each.rank for each in self.case.planted)):
            planted = {"planted_s": [round(each_s, 6) for each_s in self.spent_s], "delayed": round(delayed, 4)}
            (folder / "planted.json").write_text(json.dumps(planted))
            print(planted)


def delay_s():
    """For how long this thread has waited for a processor."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


class Products:
    """Multiplies matrices for some time, by the work that this took at first: others of this machine disturb it."""

    def __init__(self):
        self.matrix = torch.ones(256, 256)
        self.product_s = min(self.multiply(10) for _ in range(20)) / 10

    def multiply(self, times):
        began_s = time.monotonic()
        for _ in range(times):
            torch.mm(self.matrix, self.matrix)
        return time.monotonic() - began_s

    def __call__(self, seconds):
        self.multiply(round(seconds / self.product_s))


class Device(torch.autograd.Function):
    """An operator that takes its time, and no processor: other programs of this machine hardly disturb it."""

    wait = time.sleep

    @staticmethod
    def forward(ctx, inputs, forward_s):
        ctx.backward_s = 2 * forward_s
        Device.wait(forward_s)
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradients):
        Device.wait(ctx.backward_s)
        return gradients, None


class Layers(torch.nn.Module):
    """Layers that end with a loss."""

    def __init__(self, forward_s, saved, on_forward):
        super().__init__()
        self.forward_s = forward_s
        self.layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
        if saved:
            self.register_buffer("saved", torch.zeros(saved))
        self.on_forward = on_forward

    def forward(self, inputs, labels):
        outputs = Device.apply(self.layers(inputs), self.forward_s)
        loss = torch.nn.functional.mse_loss(outputs, labels)
        if self.training:
            self.on_forward()
        return {"loss": loss}


def train_plain(loop):
    model = loop.model
    if loop.case.way == "ddp":
        model = DistributedDataParallel(model, broadcast_buffers=False)
    for batch in loop.loader(loop.case.steps):
        model(**batch)["loss"].backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        loop.stepped("evaluation", "save")


def train_trainer(loop):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Stepped(TrainerCallback):
        def on_step_end(self, *_args, **_kwargs):
            loop.stepped()

    evaluates, saves = (loop.period(kind) <= loop.case.steps for kind in ("evaluation", "save"))
    arguments = TrainingArguments(
        output_dir=str(loop.folder / "checkpoints"),
        max_steps=loop.case.steps,
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        eval_strategy="steps" if evaluates else "no",
        eval_steps=loop.period("evaluation"),
        save_strategy="steps" if saves else "no",
        save_steps=loop.period("save"),
        save_total_limit=1,
        logging_strategy="no",
        prediction_loss_only=True,
        remove_unused_columns=False,
        label_names=["labels"],
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=loop.model,
        args=arguments,
        train_dataset=loop.samples(loop.case.steps + 2),
        eval_dataset=loop.samples(loop.evaluated()),
        data_collator=loop.collate,
        optimizers=(loop.optimizer, None),
        callbacks=[Stepped()],
    )
    trainer.evaluate = loop.timing("evaluation", trainer.evaluate)
    trainer._save_checkpoint = loop.timing("save", trainer._save_checkpoint)
    trainer.train()


def train_lightning(loop):
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = loop.model

        def training_step(self, batch, _index):
            return self.layers(**batch)["loss"]

        def validation_step(self, batch, _index):
            self.layers(**batch)

        def on_validation_start(self):
            self.began_s = time.monotonic()

        def on_validation_end(self):
            loop.spent_s[0] += time.monotonic() - self.began_s

        def on_train_batch_end(self, *_args):
            loop.stepped()

        def configure_optimizers(self):
            return loop.optimizer

    evaluates, saves = (loop.period(kind) <= loop.case.steps for kind in ("evaluation", "save"))
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=loop.case.steps,
        val_check_interval=loop.period("evaluation") if evaluates else None,
        limit_val_batches=loop.evaluated() if evaluates else 0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=saves,
        callbacks=[ModelCheckpoint(loop.folder / "saved", every_n_train_steps=loop.period("save"))] if saves else [],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.save_checkpoint = loop.timing("save", trainer.save_checkpoint)
    trainer.fit(Module(), loop.loader(loop.case.steps + 2), loop.loader(loop.evaluated()) if evaluates else None)


CASES |= LOOPS


class Tokens(Dataset):
    """Random sequences; each sample takes its time."""

    def __init__(self, case):
        self.case = case
        self.tokens = torch.randint(CONFIG.vocabulary, (64, CONFIG.seq_len))

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        if self.case.sample_s:
            time.sleep(self.case.sample_s)
        sample = {"input_ids": self.tokens[index % len(self.tokens)]}
        if self.case.padding:
            kept = round(CONFIG.seq_len * (1 - self.case.padding))
            sample["attention_mask"] = (torch.arange(CONFIG.seq_len) < kept).long()
        return sample


def train(case, folder, turn):
    model = Gpt(CONFIG)
    if case.lengths:
        torch._dynamo.config.recompile_limit = 64
        model = torch.compile(model, backend="eager", dynamic=False)
    if case.ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    loader = DataLoader(Tokens(case), case.batch, num_workers=case.workers)
    turn.take()
    batches = iter(loader)
    for step in range(1, case.steps + 1):
        tokens = next(batches)["input_ids"]
        if case.lengths:
            tokens = tokens[:, : case.lengths[step % len(case.lengths)]]
        model(tokens).backward()
        if case.in_step is not None:
            case.in_step()
        optimizer.step()
        optimizer.zero_grad()
        if case.save_every and step % case.save_every == 0:
            torch.save([model.state_dict(), optimizer.state_dict(), torch.zeros(case.saved)], folder / "model.pt")


def train_pipeline(case, turn):
    rank = dist.get_rank()
    part = Part(CONFIG, rank, 2)
    schedule = Schedule1F1B(PipelineStage(part, rank, 2, torch.device("cpu")), case.microbatches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, foreach=False)
    turn.take()
    for _ in range(case.steps):
        tokens = torch.randint(CONFIG.vocabulary, (case.microbatches * case.batch, CONFIG.seq_len))
        if rank == 0:
            schedule.step(tokens[:, :-1].contiguous())
        else:
            schedule.step(target=tokens[:, 1:].contiguous())
        optimizer.step()
        optimizer.zero_grad()


class Turn:
    """The turn of a training that shares its machine: it begins when all of its group are prepared.

    The first rank locks a file in the folder of all trainings. ``prepared`` is a pipe that all of the group close.
    """

    def __init__(self, folder, rank, prepared):
        self.rank, self.prepared = rank, prepared
        self.file = (folder / "turn").open("w")
        self.store = None  # where the first rank tells the others

    def take(self):
        os.close(self.prepared)
        if self.rank == 0:
            fcntl.flock(self.file, fcntl.LOCK_EX)
            if self.store is not None:
                self.store.set("turn", "taken")
        else:
            self.store.wait(["turn"])


def run(name, folder, rank, turn):
    """Train one rank of a case in this process."""
    case = CASES[name]
    if name in LOOPS:
        run_loop(case, name, folder, rank, turn)
        return
    if rank == case.ranks - 1:
        case = dataclasses.replace(case, **case.slow_rank)
    sys.argv = ["faults.py", name]
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(case.ranks), LOCAL_RANK="0")
    attach(str(folder / name), steps="1000" if case.microbatches else "6-7", nvml_hz=0.0)
    torch.set_num_threads(1)
    held = [{"number": number, "list": [number]} for number in range(60_000 * case.holds_objects)]
    if case.ranks > 1:
        turn.store = dist.FileStore(str(folder / f"{name}.store"), case.ranks)
        dist.init_process_group("gloo", store=turn.store, rank=rank, world_size=case.ranks)
    torch.manual_seed(0)
    if case.microbatches:
        train_pipeline(case, turn)
    else:
        train(case, folder, turn)
    held.clear()
    if case.ranks > 1:
        dist.destroy_process_group()


def run_loop(case, name, folder, rank, turn):
    """Train one rank of a case of ``LOOPS``."""
    sys.argv = ["faults.py", name]
    if case.ranks > 1:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(case.ranks), LOCAL_RANK="0")
    attach(str(folder / name), steps="9-10", nvml_hz=0.0)
    torch.set_num_threads(1)
    if COMPUTING in os.environ:
        Device.wait = Products()
    if case.ranks > 1:
        turn.store = dist.FileStore(str(folder / f"{name}.store"), case.ranks)
        dist.init_process_group("gloo", store=turn.store, rank=rank, world_size=case.ranks)
    with tempfile.TemporaryDirectory() as saved:
        loop = Loop(case, Path(saved), rank)
        turn.take()
        {"trainer": train_trainer, "lightning": train_lightning}.get(case.way, train_plain)(loop)
        loop.finish(folder / name)
    if case.ranks > 1:
        dist.destroy_process_group()


def start(name, folder, rank, prepared):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with (folder / f"{name}.{rank}.log").open("w", buffering=1) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            run(name, folder, rank, Turn(folder, rank, prepared))
            code = 0
    except Exception:  # noqa: BLE001 - the parent process reports it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.exit(code)


def train_group(names, folder):
    """Train some cases, in turns."""
    all_prepared, prepared = os.pipe()
    with (folder / "turn").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        ranks = [(name, rank) for name in names for rank in range(CASES[name].ranks)]
        children = {start(name, folder, rank, prepared): name for name, rank in ranks}
        os.close(prepared)
        os.read(all_prepared, 1)
        os.close(all_prepared)
        fcntl.flock(turn, fcntl.LOCK_UN)  # the children have inherited the file: closing it would not unlock it
    for _ in children:
        pid, status = os.wait()
        print(children[pid], "FAILED" if status else "trained", flush=True)


def keep(run):
    """Write the run as an archive, without arrows between events in its traces and without names of machines."""
    names = {sys.executable: "python", str(Path.cwd()): "/training"}
    for path in [run / "run.json", *run.glob("ranks/*/*.json")]:
        text = path.read_text()
        for name, other in names.items():
            text = text.replace(name, other)
        path.write_text(text)
    for path in run.glob("traces/*.json"):
        trace = json.loads(path.read_text())
        trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("ph") not in ("s", "f")]
        path.write_text(json.dumps(trace, separators=(",", ":")))
    with tarfile.open(run.with_name(f"{run.name}.tar.gz"), "w:gz") as archive:
        for path in sorted(run.rglob("*")):
            if path.is_file() and path.stat().st_size and path.parent.name != "deaths":
                entry = archive.gettarinfo(path, path.relative_to(run.parent))
                entry.uid = entry.gid = entry.mtime = 0
                entry.uname = entry.gname = ""
                with path.open("rb") as file:
                    archive.addfile(entry, file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--together", type=int, default=1, help="cases that prepare at once")
    parser.add_argument("cases", nargs="*", default=list(CASES))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    others = [name for name in options.cases if name not in LOOPS]
    for first in range(0, len(others), options.together):
        train_group(others[first : first + options.together], options.out)
    for name in options.cases:
        if name in LOOPS:  # nothing else trains meanwhile
            if LOOPS[name].way in FRAMEWORKS:
                importlib.import_module(FRAMEWORKS[LOOPS[name].way])
            train_group([name], options.out)
            keep(options.out / name)


if __name__ == "__main__":
    main()
