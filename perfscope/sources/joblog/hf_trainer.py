"""Hugging Face Trainer: a start-up block, progress bars, dictionaries of losses, one dictionary at the end.

No line holds the time of a step. The bar's rate is a moving average; the run time at the end covers warm-up and the
last partial batch, and its ``train_steps_per_second`` is rounded to three decimals (0.007 is no figure). Every node
prints the final dictionary. Dictionaries are never evaluated.
"""

from __future__ import annotations

import re

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.draft import (
    Draft,
    Hit,
    Rule,
    label_of,
    number,
)
from perfscope.sources.joblog.series import Record

BAR = "the progress bar's moving average"
RUN = "train_runtime / steps"

_START = {
    b"Num examples": "examples",
    b"Num Epochs": "epochs",
    b"Instantaneous batch size per device": "mbs",
    b"Total train batch size": "gbs",
    b"Gradient Accumulation steps": "gas",
    b"Total optimization steps": "train_iterations",
}
_GPT2 = {b"n_embd": "hidden", b"n_layer": "layers", b"n_head": "heads", b"n_positions": "seq_len"}
_SETTING = re.compile(rb"(\w+)=(\w+)")
_KEY = re.compile(rb"'(\w+)':\s*'?([^,'}]+)")
_FINAL = {b"train_runtime": "runtime", b"train_samples_per_second": "samples", b"train_steps_per_second": "steps"}
_DICTIONARY = 500
_CLOCK = re.compile(rb"(?:(?:(\d+) days?, )?(\d+):)?(\d+):(\d+(?:\.\d+)?)")


def _begin(draft: Draft, _hit: Hit) -> None:
    draft.evidence["hf-trainer"] += 1
    draft.restart()


def _fact(draft: Draft, hit: Hit) -> None:
    draft.evidence["hf-trainer"] += 1
    draft.note_number(_START[hit[1]], hit[2], "log")


def _overridden(draft: Draft, hit: Hit) -> None:
    """``Overriding config: n_embd=7168,n_layer=40,n_positions=1024``: GPT-2 in another size; its length is the most."""
    draft.evidence["hf-trainer"] += 1
    for name, value in _SETTING.findall(hit[1]):
        if name in _GPT2:
            draft.note_number(_GPT2[name], value, "log")
        elif name == b"gradient_checkpointing":
            draft.note("checkpointing", "full" if value.lower() == b"true" else "none", "log")
    vocabulary = draft.scratch.get("hf vocabulary")
    if isinstance(vocabulary, int):
        draft.note("vocab", vocabulary, "log")


def _vocabulary(draft: Draft, hit: Hit) -> None:
    draft.scratch["hf vocabulary"] = int(hit[1])


def _bar(draft: Draft, hit: Hit) -> None:
    """A bar without a name whose end is the number of steps; evaluation and data sets draw bars too."""
    step, total, rate = int(hit["step"]), int(hit["total"]), number(hit["rate"])
    bars = draft.scratch.setdefault(BAR, {})
    if rate is None or rate <= 0 or not isinstance(bars, dict):
        return
    seconds = rate if hit["unit"] == b"s/it" else 1 / rate
    wanted = draft.scratch.get("bar length")
    if wanted is None or (isinstance(wanted, int) and total > wanted):
        draft.scratch["bar length"] = total
        draft.series.pop(BAR, None)
    elif total != wanted:
        return
    draft.of(BAR).add(Record(iteration=step, wall_ns=round(seconds * NS_PER_S)), label_of(hit.text, hit.line))


def _losses(draft: Draft, hit: Hit) -> None:
    """``{'loss': 2.075, 'learning_rate': ..., 'epoch': 0.04}``: the first and the last loss are kept."""
    draft.evidence["hf-trainer"] += 1
    loss = number(dict(_KEY.findall(hit[0])).get(b"loss", b""))
    if loss is not None:
        draft.scratch.setdefault("first loss", loss)
        draft.scratch["last loss"] = loss


def _final(draft: Draft, hit: Hit) -> None:
    """The last dictionary: one a node, nearly alike; the slowest node's run time counts."""
    draft.evidence["hf-trainer"] += 1
    values = {_FINAL[key]: number(text) for key, text in _KEY.findall(hit[0]) if key in _FINAL}
    _finish(draft, values.get("runtime"), values.get("samples"), values.get("steps"))


def _final_block(draft: Draft, hit: Hit) -> None:
    """``train_runtime = 0:14:31.66`` of the ``train metrics`` block: hours, minutes, seconds."""
    draft.evidence["hf-trainer"] += 1
    clock = _CLOCK.fullmatch(hit[2].strip())
    if hit[1] == b"train_runtime" and clock:
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        _finish(draft, ((days * 24 + hours) * 60 + minutes) * 60 + seconds, None, None)
    elif hit[1] != b"train_runtime":
        _finish(draft, None, *((number(hit[2]), None) if b"samples" in hit[1] else (None, number(hit[2]))))


def _finish(draft: Draft, runtime: float | None, samples: float | None, steps: float | None) -> None:
    for name, value in (("runtime_s", runtime), ("samples_per_s", samples), ("steps_per_s", steps)):
        if value is not None and value > 0:
            known = draft.scratch.get(f"hf {name}")
            slowest = max if name == "runtime_s" else min
            draft.scratch[f"hf {name}"] = slowest(value, known) if isinstance(known, float) else value


RULES = (
    Rule(b"***** Running training *****", re.compile(rb"\*{5} Running training \*{5}"), _begin),
    *(Rule(anchor, re.compile(rb"(" + re.escape(anchor) + rb")[^=\n]*= ([\d,]+)"), _fact) for anchor in _START),
    Rule(b"Overriding config: ", re.compile(rb"Overriding config: (\S+)"), _overridden),
    Rule(b'"vocab_size": ', re.compile(rb'"vocab_size": (\d+)'), _vocabulary),
    Rule(
        b"it/s",
        re.compile(
            rb"(?:^|\n|\s|%\|[^|\n]*\| )(?P<step>\d+)/(?P<total>\d+) \[[\d:]+<[\d:?]+, +(?P<rate>[\d.]+)(?P<unit>it/s)"
        ),
        _bar,
    ),
    Rule(
        b"s/it",
        re.compile(
            rb"(?:^|\n|\s|%\|[^|\n]*\| )(?P<step>\d+)/(?P<total>\d+) \[[\d:]+<[\d:?]+, +(?P<rate>[\d.]+)(?P<unit>s/it)"
        ),
        _bar,
    ),
    Rule(b"'loss':", re.compile(rb"\{[^{}\n]*'loss':[^{}]*\}"), _losses, reach=_DICTIONARY),
    Rule(b"'train_runtime':", re.compile(rb"'train_runtime':[^{}]*\}"), _final, reach=_DICTIONARY),
    Rule(
        b"train_",
        re.compile(rb"(train_(?:runtime|samples_per_second|steps_per_second))\s+= +([\d:.]+(?: days?, [\d:.]+)?)"),
        _final_block,
    ),
)
