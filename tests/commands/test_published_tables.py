"""Tables of TFLOPs, MFU and tokens/s as their authors publish them: right rows, true flags, reasons, no false flag."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perfscope.errors import ExitCode
from perfscope.models.hardware import find_gpu
from perfscope.regenerate.published import CellVerdict, CheckedTables, check_tables
from perfscope.sources.published.subjects import DTYPE, GPU, MODEL, Names, find_subject
from perfscope.sources.published.tables import read_published
from tests.commands.report_cli import Run
from tests.conftest import ROOT

TABLES = ROOT / "fixtures" / "published" / "tables"
HELD_OUT = ROOT / "fixtures" / "published" / "held_out"


def check(path: Path) -> CheckedTables:
    return check_tables(read_published(path, {}).tables)


@pytest.mark.parametrize(
    ("file", "cells", "near"),
    [
        (TABLES / "llm_foundry.md", 3 * 216, 0),  # MFU, HFU and TFLOP of each row
        (TABLES / "megatron_bridge.md", 278 + 14, 7),  # 14 rows have two values that can be checked
        (TABLES / "dgxc_2025_pretraining.md", 44, 0),
        (TABLES / "dgxc_2025_fine_tuning.md", 20, 1),
        (TABLES / "ironwood.csv", 16, 0),
        (TABLES / "mpt_torch2.csv", 2 * 54, 0),
        (HELD_OUT / "nemo_and_mosaicgpt.md", 13 + 2 * 164, 0),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else "",
)
def test_published_figures_are_recomputed_within_one_per_cent(file: Path, cells: int, near: int) -> None:
    """``near`` of them are 1 to 3 % off, because their tokens/s are rounded to 32, or their MFU to whole digits."""
    checked = check(file)
    verdicts = Counter(cell.verdict for cell in checked.cells)
    assert verdicts[CellVerdict.FROM_UNROUNDED] == near
    assert verdicts[CellVerdict.ROUNDED] + verdicts[CellVerdict.WITHIN] + near == cells
    assert cells + verdicts[CellVerdict.CONVENTION] == len(checked.cells)  # none is flagged
    for cell in checked.cells:
        if cell.verdict is CellVerdict.WITHIN:
            assert cell.published is not None
            assert cell.recomputed is not None
            stated = float(cell.published.replace(",", ""))
            half = 0.5 / 10 ** len(cell.published.partition(".")[2])
            assert abs(float(cell.recomputed) - stated) <= 0.01 * stated + half


def test_each_contradiction_of_published_tables_is_true() -> None:
    """Each was worked out by hand: no reading of the row makes its product right."""
    found = {path.stem: [row.problem for row in check(path).contradictions] for path in sorted(TABLES.glob("*.md"))}
    assert {problem.split(" is not")[1] for problem in found.pop("dgxc_2025_fine_tuning")} == {
        " a multiple of TP 1 x PP 41 x CP 1 = 41"
    }
    assert found == {
        "dgxc_2025_pretraining": [
            "GBS 1024, but GAS 128 x MBS 1 x DP 1 = 128, x EP 2 = 256",
            "GBS 1024, but GAS 128 x MBS 1 x DP 1 = 128, x EP 4 = 512",
        ],
        "dgxc_2026_and_torchtitan": [],
        "llm_foundry": [],
        "megatron_bridge": [
            "GBS 8192, but GAS 32 x MBS 2 x DP 64 = 4096, x EP 16 = 65536",
            "GBS 512, but GAS 2 x MBS 4 x DP 16 = 128, x EP 8 = 1024",
        ],
    }


def test_nanotron_counts_a_tied_embedding_twice_in_pipelines_and_twelve_batches_are_no_product() -> None:
    path = TABLES / "nanotron_h100.csv"
    checked = check(path)
    with path.open() as file:
        rows = dict(enumerate(csv.DictReader(file), 2))
    twice = {cell.line for cell in checked.cells if cell.verdict is CellVerdict.TIED_TWICE}
    pipelines = {line for line, row in rows.items() if row["model"] in ("1B", "3B") and int(row["pp"]) > 1}
    assert twice < pipelines
    assert max(float(rows[line]["mfu_percent"]) for line in pipelines - twice) <= 1.1  # two digits cannot tell
    assert len(twice) == 659
    wrong = {line for line, row in rows.items() if int(row["mbs"]) * int(row["grad_acc"]) * int(row["dp"]) != 256}
    assert {row.line for row in checked.contradictions} == wrong
    assert len(wrong) == 12
    others = [cell for cell in checked.cells if cell.verdict is CellVerdict.WRONG]
    assert {(rows[cell.line]["model"], rows[cell.line]["zero"]) for cell in others} == {("80B", "0")}
    assert {round(float(cell.published or 0) / float(cell.recomputed or 1), 1) for cell in others} == {0.9}


def test_a_table_over_the_wrong_peak_and_shares_over_a_hundred_are_flagged() -> None:
    path = TABLES / "mpt_h100.csv"
    with path.open() as file:
        bf16 = {line for line, row in enumerate(csv.DictReader(file), 2) if row["Precision"] == "amp_bf16"}
    cells = check(path).cells
    assert {cell.line for cell in cells if cell.verdict is CellVerdict.OTHER_PEAK} == bf16
    assert {cell.line for cell in cells if cell.is_right}.isdisjoint(bf16)
    problems = [row.problem for row in check(TABLES / "mpt_torch2.csv").contradictions]
    assert problems[0] == "share of peak 195.1 is more than the peak"
    assert len(problems) == 8


def flagged(answer: Run) -> list[tuple[str, str]]:
    cells = answer.data["results"]["cells"]
    return [(cell["published"], cell["verdict"]) for cell in cells if cell["verdict"] not in ("rounded", "within 1 %")]


@pytest.mark.parametrize(
    ("file", "was", "becomes"),
    [
        ("llm_foundry.md", "| 41.25 | 55.0 | 408 | 8 | 1 | 4096 |", "| 46.25 | 55.0 | 408 | 8 | 1 | 4096 |"),
        ("megatron_bridge.md", "| 4912 | 1276 |", "| 4912 | 1376 |"),
        ("dgxc_2025_pretraining.md", "| 54.52% | 54.20% | 54.12%", "| 54.52% | 58.20% | 54.12%"),
    ],
)
def test_a_figure_that_is_changed_is_flagged_and_written_back_alone(
    refresh: Any, file: str, was: str, becomes: str
) -> None:
    text = (TABLES / file).read_text()
    assert text.count(was) == 1
    answer, _ = refresh(text.replace(was, becomes), "--check", "--format", "json")
    wrong = [cell for cell in answer.data["results"]["cells"] if cell["verdict"] == "wrong"]
    assert len(wrong) == 1
    _, written = refresh(text.replace(was, becomes))
    lines = zip(text.replace(was, becomes).splitlines(), written.decode().splitlines(), strict=True)
    [(old, new)] = [pair for pair in lines if pair[0] != pair[1]]
    assert new == old.replace(wrong[0]["published"], wrong[0]["text"], 1)


PARALLEL = "| GPUs | TP | PP | CP | DP | MBS | GA | GBS |\n|-|-|-|-|-|-|-|-|\n| 64 | 4 | 4 | {} | 2 | 1 | 64 | 128 |\n"


def test_context_and_expert_parallelism_are_factors(refresh: Any) -> None:
    assert refresh(PARALLEL.format(2), "--check")[0].code == ExitCode.OK
    answer, _ = refresh(PARALLEL.format(4), "--check")
    assert answer.code == ExitCode.DIFFERENCE
    assert "GPUs 64, but TP 4 x PP 4 x CP 4 x DP 2 = 128" in answer.out
    for data_parallel in (8, 64):  # experts apart from DP, and in it
        text = f"| GPUs | TP | PP | EP | DP |\n|-|-|-|-|-|\n| 64 | 1 | 1 | 8 | {data_parallel} |\n"
        assert refresh(text, "--check")[0].code == ExitCode.OK


BAD = """\
# Llama 3 70B on H100

| System | # GPUs | Precision | Seq len | Tokens/s/GPU | MFU |
|---|---|---|---|---|---|
| H900 | 64 | BF16 | 8192 | 1000 | 45.4 |
| V100 | 64 | NVFP4 | 8192 | 1000 | 45.4 |
| H100 | 64 | BF16 | 8192 | 1000 | 45.4 |
| H100 | 64 | BF16/FP8 | 8192 | 1000 | 45.4[^1] |
| 8xH100 | 64 | BF16 | 8192 | 1000<sup>2</sup> | [45.4](x.md) \u2020 |
| H100 | 64 | INT3 | 8192 | 1000 | 45.4 |
| H100 | 64 | BF16 | 8192 | 0 | 45.4 |
| H100 | 64 | BF16 | 0 | 1000 | 45.4 |

| Model | GPUs | Seq len | Tokens/s/GPU | MFU |
|---|---|---|---|---|
| Llama 3 8B and 70B | 8x H100 | 8192 | 9000 | 46 |
| Falcon 40B | 8 | 8192 | 9000 | 46 |
| llama3-8b | 8 | 8192 | 9000 (8000) | 46.8 (41.6) |
| llama3-8b | 8 | 8192 | 9000 | 46.8 (41.6) |
| llama3-8b | 8 | 8192 | 9000 (8000) | 46.8 (31.6) |
| llama3-8b | 8 | 8192 | 9000 | 1e999999 |
| | | | | |
| llama3-8b | 8 | 8192 |
"""


def test_bad_rows_are_answered_or_refused_with_a_reason(refresh: Any) -> None:
    answer, written = refresh(BAD, "--check", "--format", "json")
    assert (answer.code, written, flagged(answer)) == (ExitCode.OK, BAD.encode(), [])
    cells = answer.data["results"]["cells"]
    assert sorted(cell["line"] for cell in cells) == [7, 9, 18, 18, 19, 20]
    reasons = {cell["line"]: cell["reason"] for cell in answer.data["results"]["not_recomputed"]}
    assert reasons == {
        5: "the GPU 'H900' is not in hardware.toml, so its peak is unknown",
        6: "v100-32 has no peak in nvfp4: its products need NVIDIA's Blackwell",
        8: "'BF16/FP8' names several precisions",
        10: "the precision 'INT3' is not known",
        11: "no tokens/s per GPU: '0' is not a valid tokens/s per GPU",
        12: "no sequence length: '0' is not a valid sequence length",
        16: "'Llama 3 8B and 70B' names no model that is known, or several",
        17: "the model 'Falcon 40B' is not known by its name",
        19: "no tokens/s per GPU: one value stands beside two",
        20: "the row does not say what its second value is of",
        21: "'1e999999' is not a valid share of peak",
        23: "the row ends before this column",
    }


def test_a_check_that_checked_nothing_says_so_and_fails(refresh: Any, tmp_path: Path) -> None:
    answer, _ = refresh("| Model | MFU |\n|-|-|\n| foo | 41 |\n", "--check")
    assert answer.code == ExitCode.FAILED
    assert "nothing was checked" in answer.out
    path = tmp_path / "mpt.csv"
    path.write_text("Model,SeqLen,GPU,Tokens/s/GPU,MFU\n70b,2048,h100_80gb,1039,42.57\n")
    assert check(path).cells[0].is_right


@pytest.mark.parametrize(
    ("cells", "headings", "model", "gpu", "dtype"),
    [
        ({MODEL: "70b", GPU: "h100_80gb"}, ("MPT Training Benchmarks",), "mpt-70b", "h100-sxm", None),
        ({}, ("Model: DeepSeekV3", "System: DGX-GB300 (NVFP4)"), "deepseek-v3", "gb300", "nvfp4"),
        ({MODEL: "Qwen3_30B_a3B (tokendrop)", DTYPE: "FP8-CS (FP8-MX)"}, (), "qwen3-30b-a3b", None, "fp8"),
        ({}, ("Llama 3.1 70b BF16 (TP=4, PP=4)", "A100 and H100"), "llama3-70b", None, "bf16"),
        ({MODEL: "GPT3-5B"}, ("Llama 3 8B",), None, None, None),
        ({MODEL: "LLaMA"}, ("7B",), None, None, None),
    ],
)
def test_names_are_found_as_people_write_them(
    cells: dict[str, str], headings: tuple[str, ...], model: str | None, gpu: str | None, dtype: str | None
) -> None:
    subject = find_subject(Names(cells, None, headings))
    assert (subject.model.transformer.name if subject.model else None) == model
    assert (subject.gpu.name if subject.gpu else None) == gpu
    assert subject.dtype == dtype
    assert all(name in subject.unknown for name, found in ((MODEL, model), (GPU, gpu)) if found is None)
    by_option = find_subject(Names({}, find_gpu("a100"), ("8x H100",)))
    assert by_option.gpu is find_gpu("a100")


def test_tflops_above_the_peak_give_no_share_of_it(refresh: Any) -> None:
    answer, _ = refresh("| GPU | GPUs | TFLOPs | MFU |\n|-|-|-|-|\n| V100 | 8 | 168.7 | 50 |\n", "--check")
    assert answer.code == ExitCode.FAILED
    assert "the TFLOPs per GPU are more than the peak of the GPU, 125" in answer.out
