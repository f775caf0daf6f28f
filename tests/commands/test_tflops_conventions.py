"""``perfscope tflops``: the seed's figure, the JSON that others read, and what each convention states."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.analyzers.tflops.making import answer, ask, by_name, refused
from tests.conftest import ROOT, run

SEED = ("tflops", "--size", "52B", "--gbs", 1024)
NAMES = ["bigscience", "6n", "megatron_paper", "megatron_core", "torchtitan", "palm"]
NEED_DIMENSIONS = {"megatron_paper", "megatron_core", "torchtitan", "palm"}
LLAMA = ("tflops", "--model", "llama3-8b", "--gbs", 512, "--time", "10s", "--gpus", 128)

#: Rows of the seed's tables: parameters in B, GPUs, global batch, seconds, the TFLOPs that the table prints.
SEED_ROWS = [
    (52, 64, 1024, 129, 52.8),
    (52, 64, 1536, 206, 49.6),
    (39, 32, 512, 82, 62.3),
]


def test_the_seeds_one_liner_is_53_7() -> None:
    document = answer(*SEED, "--time", 127)
    assert document["schema"] == "perfscope/tflops/1"
    assert document["tflops_per_gpu"] == pytest.approx(52 * 4 * 2 * 1024 * 1024 / (127 * 64 * 1e3))
    assert document["assumptions"] == {"gpus": 64, "seq_len": 1024, "checkpointing": "full"}
    assert "53.7" in ask(*SEED, "--time", 127).stdout


@pytest.mark.parametrize(("size", "gpus", "gbs", "seconds", "printed"), SEED_ROWS)
def test_the_seeds_tables_are_reproduced(size: int, gpus: int, gbs: int, seconds: int, printed: float) -> None:
    document = answer("tflops", "--size", f"{size}B", "--gpus", gbs and gpus, "--gbs", gbs, "--time", seconds)
    assert round(document["tflops_per_gpu"], 1) == pytest.approx(printed, abs=0.11)  # the seed rounds its seconds


def test_every_assumption_is_printed_and_none_that_was_given() -> None:
    bare = ask(*SEED, "--time", 127).stdout
    for assumed in ("64 GPUs", "sequence length 1024", "activation checkpointing full"):
        assert assumed in bare
    given = ask(*SEED, "--time", 127, "--gpus", 64, "--seq-len", 1024, "--checkpointing", "full").stdout
    assert "Assumptions" not in given


def test_a_bare_size_has_no_figure_where_dimensions_are_needed() -> None:
    found = by_name(answer(*SEED, "--time", 127, "--gpu", "v100-32"))
    assert [name for name in NAMES if found[name]["tflops_per_gpu"] is None] == [
        name for name in NAMES if name in NEED_DIMENSIONS
    ]
    for name in NEED_DIMENSIONS:
        assert found[name]["mfu"] is None
        assert found[name]["hfu"] is None
        assert "dimensions" in found[name]["reason"]


@pytest.mark.parametrize(
    ("checkpointing", "recomputing"),
    [("full", {"bigscience", "megatron_paper"}), ("selective", {"megatron_paper"}), ("none", set())],
)
def test_forms_that_count_recomputation_state_hfu_and_the_others_mfu(checkpointing: str, recomputing: set[str]) -> None:
    document = answer(*LLAMA, "--gpu", "h200-sxm", "--checkpointing", checkpointing)
    for name, each in by_name(document).items():
        stated, other = ("hfu", "mfu") if name in recomputing else ("mfu", "hfu")
        assert each[stated] == pytest.approx(each["tflops_per_gpu"] / 989.4), name
        assert each[other] is None, name


def test_an_unknown_gpu_gives_no_mfu_and_says_so() -> None:
    document = answer(*LLAMA, "--gpu", "tpu-v9")
    assert {(each["mfu"], each["hfu"]) for each in document["conventions"]} == {(None, None)}
    assert any("tpu-v9" in line and "no MFU" in line for line in document["warnings"])
    assert "tpu-v9" in ask(*LLAMA, "--gpu", "tpu-v9").stderr


def test_more_than_the_gpu_can_do_is_a_bug_and_said() -> None:
    ended = ask(*SEED, "--time", 40, "--gpu", "v100-32")
    assert ended.code == 0
    assert "above the dense" in ended.stderr
    assert "bug" in ended.stderr
    document = answer(*SEED, "--time", 40, "--gpu", "v100-32")
    assert any("bug" in line for line in document["warnings"])
    assert answer(*SEED, "--time", 40)["warnings"] == []  # the fastest GPU of the table can do that
    assert answer(*SEED, "--time", 1)["warnings"] != []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--size", "52B", "--time", 127), "--gbs is missing"),
        (("--size", "52B", "--gbs", 1), "--time is missing"),
        (("--size", "52B", "--gbs", 1, "--time", 0), "time of 0"),
        (("--size", "52B", "--gbs", -1, "--time", 1), "--gbs must be at least 1"),
        (("--size", "52B", "--gbs", 1, "--time", 1, "--gpus", 0), "--gpus must be at least 1"),
        (("--size", "52B", "--gbs", 1, "--time", 1, "--seq-len", 0), "--seq-len must be at least 1"),
        (("--size", "52B", "--gbs", 1, "--time", 1, "--gpu", "v100-32", "--dtype", "bf16"), "no peak in bf16"),
        (("--size", "52B", "--gbs", 1, "--time", 1, "--gpu", "a100-40", "--dtype", "fp8"), "no peak in fp8"),
        (("--size", "52B", "--gbs", 1, "--time", 1, "--gpu", "h100-sxm", "--peak", 1979), "sparsity"),
        (("--size", "52B", "--gbs", 1, "--time", 1, "--peak", 1979), "sparsity"),
        (("--size", "52B", "--gbs", 1, "--time", 1, "--peak", -1), "not possible"),
    ],
)
def test_bad_input_is_one_clear_line(words: tuple[object, ...], said: str) -> None:
    line = refused("tflops", *(str(word) for word in words))
    assert said in line
    assert line.count("\n") <= 2


def test_the_first_line_says_what_is_assumed_and_doubts_a_tiny_share_of_the_peak() -> None:
    plain = ask("tflops", "--size", "52B", "--gbs", 1024, "--time", 127).stdout.splitlines()[0]
    assert plain.endswith("127 s per step on 64 GPUs (assumed), sequences of 1024 (assumed)")
    words = ("tflops", "--model", "llama3-8b", "--gbs", 64, "--time", 60, "--gpus", 256, "--gpu", "h200-sxm")
    assert ask(*words).stdout.startswith("# Doubtful: 2.2 TFLOPs per GPU: llama3-8b")
    document = answer(*words)
    assert document["assumptions"]["seq_len"] == 8192
    assert "is 0.22 % of the peak: an input is probably wrong" in document["doubts"][0]


QUESTION = ["tflops", "--size", "52B", "--gbs", "1024", "--time", "127"]


@pytest.mark.parametrize("words", [QUESTION, ["plan", "--pp", "2", "-m", "2"]], ids=["tflops", "plan"])
def test_nothing_heavy_is_imported(tmp_path: Path, words: list[str]) -> None:
    code = (
        "import sys\n"
        "from perfscope.cli import main\n"
        f"sys.argv = ['perfscope', *{words!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(sorted({'torch', 'numpy', 'pandas', 'scipy', 'deepspeed'} & set(sys.modules)))\n"
    )
    ended = run([sys.executable, "-c", code], tmp_path)
    assert ended.stdout.splitlines()[-1] == "[]", ended.stderr


def test_a_foreign_module_of_the_same_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "perfscope").mkdir()
    (tmp_path / "perfscope" / "__init__.py").write_text("")
    code = (
        "import sys\n"
        f"sys.path[:0] = [{str(tmp_path)!r}]\n"
        f"sys.path.append({str(ROOT / 'perfscope')!r})\n"
        "import entry\n"
        "entry.main()\n"
    )
    ended = run([sys.executable, "-c", code], tmp_path, PYTHONPATH="")
    assert ended.code == 1
    assert "another project's" in ended.stderr
    assert str(tmp_path) in ended.stderr
