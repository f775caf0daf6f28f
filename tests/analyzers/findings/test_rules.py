"""What every rule owes its reader: a page, real names of options, evidence that stands in the document."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import tomllib
from typing import Any

import pytest

from benchmarks import kept_run
from perfscope.analyzers.findings import RULES
from perfscope.engine.analysis_report import to_report
from perfscope.engine.run import analyze
from tests.conftest import ROOT

PAGES = ROOT / "docs" / "findings"
MOST_LINES = 10
RUNS = [
    "findings/h200/optimizer_loop",
    "findings/h200/batch_too_small",
    "findings/cpu/pipeline_uneven",
    "whatif/slow_gpu",
    "runs/h200_zero3",
]
#: Words in the advice for the Trainer that are options of other things,
#: or of other versions.
NOT_ARGUMENTS = {"attn_implementation", "from_pretrained", "group_by_length"}


def test_every_rule_has_a_page_and_every_page_a_rule() -> None:
    identifiers = [rule.id for rule in RULES]
    assert len(set(identifiers)) == len(identifiers) >= 20
    assert {page.stem for page in PAGES.glob("*.md")} == set(identifiers)
    index = (ROOT / "docs" / "findings.md").read_text()
    for rule in RULES:
        text = (PAGES / f"{rule.id}.md").read_text()
        assert text.startswith(f"# {rule.title}\n")
        for heading in ("What it means", "How it is seen", "What the cost is", "What to try", "When it is no fault"):
            assert f"**{heading}.**" in text
        assert f"[`{rule.id}`](findings/{rule.id}.md) | {rule.title} |" in index


def resolve(document: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


@pytest.mark.parametrize("run", RUNS)
def test_evidence_points_at_figures_of_the_same_document(run: str) -> None:
    report = to_report(analyze([kept_run(ROOT / "fixtures" / run)]))
    document = json.loads(json.dumps(report.data))
    results: Any = document["results"]
    assert results["findings"]
    for finding in results["findings"]:
        assert finding["evidence"]
        assert any(evidence["pointers"] for evidence in finding["evidence"])
        for pointer in (pointer for evidence in finding["evidence"] for pointer in evidence["pointers"]):
            assert resolve(document, pointer) is not None, (finding["id"], pointer)
        assert finding["share_of_step"] == finding["cost_us"] / finding["step_us"]
    first = report.sections[0]
    assert first.title == "Findings"
    assert len(first.notes) <= MOST_LINES


def advice_for(framework: str) -> set[str]:
    """The words in backticks of all advice for a framework."""
    entries = tomllib.loads((ROOT / "analyzers" / "findings" / "advice.toml").read_text("utf-8")).values()
    spans = re.findall(r"`([^`]+)`", str([entry.get(framework) for entry in entries]))
    return {word for span in spans for word in re.findall(r"^(\w+)(?:=|$)", span)}


def test_options_of_the_trainer_exist() -> None:
    arguments = pytest.importorskip("transformers").TrainingArguments
    names = {field.name for field in dataclasses.fields(arguments)}
    words = advice_for("trainer") - NOT_ARGUMENTS
    assert len(words) >= 10
    assert words <= names, words - names


def test_options_of_torch_exist() -> None:
    torch = pytest.importorskip("torch")
    from torch.nn.parallel import DistributedDataParallel  # torch is loaded for this test alone
    from torch.utils.data import DataLoader

    loader = inspect.signature(DataLoader).parameters
    assert {"num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "batch_size"} <= set(loader)
    ddp = inspect.signature(DistributedDataParallel).parameters
    assert {"bucket_cap_mb", "gradient_as_bucket_view"} <= set(ddp)
    assert "fused" in inspect.signature(torch.optim.AdamW).parameters
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    assert hasattr(fsdp.FSDPModule, "set_modules_to_forward_prefetch")
    assert hasattr(fsdp.FSDPModule, "set_modules_to_backward_prefetch")
    assert "reshard_after_forward" in inspect.signature(fsdp.fully_shard).parameters
    assert fsdp.BackwardPrefetch.BACKWARD_PRE
