"""``perfscope scaling`` as a person types it."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.analyzers.scaling.benchmark import write_deepspeed, write_gluon
from tests.commands.report_cli import Run, run_in
from tests.conftest import ROOT, run
from tests.sources.joblog.lines import megatron


def scaling(folder: Path, *arguments: str | Path) -> Run:
    return run_in(folder, "scaling", *arguments)


def as_json(folder: Path, *arguments: str | Path) -> Any:
    ended = scaling(folder, *arguments, "--format", "json")
    assert ended.code == 0, ended.err
    return ended.data


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """Two runs each on one, eight and sixteen GPUs."""
    for case, gpus, latency in (("1n1g", 1, 200.0), ("1n8g", 8, 220.0), ("2n8g", 16, 250.0)):
        for number in (1, 2):
            write_gluon(tmp_path / "bz32" / case, number, gpus, [f"{latency + number:.1f}"] * 200)
    return tmp_path


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    """Two runs each on one, eight and sixteen GPUs."""
    for case, speed in (("1n1g", 20.0), ("1n8g", 150.0), ("2n8g", 260.0)):
        for number in (1, 2):
            write_deepspeed(tmp_path / "b8" / case, number, [f"{speed + number:.1f}"] * 198)
    return tmp_path


def test_a_protocols_object_is_under_results_and_nothing_else_is(bert: Path) -> None:
    document = as_json(bert, "bz32", "--protocol", "dlperf-mxnet-bert")
    assert document["schema"] == "perfscope/scaling/1"
    assert list(document["results"]) == ["bert"]
    assert document["results"]["bert"]["1n1g"] == {
        "average_speed": 158.81,
        "batch_size_per_device": 32,
        "median_speed": 158.81,
        "speedup": 1.0,
    }
    assert list(document["results"]["bert"]) == ["1n1g", "1n8g", "2n8g"]
    assert "bert 1n1g: 2 runs; the protocol has 7" in document["notes"]


def test_the_same_logs_without_a_protocol(gpt2: Path) -> None:
    document = as_json(gpt2, "b8")
    weak = document["weak"][0]
    assert document["strong"] == []
    assert weak["constant_batch"] == 8
    assert [point["case"] for point in weak["points"]] == ["1n1g", "1n8g", "2n8g"]
    # 21 and 22 samples/s on one GPU, 261 and 262 on sixteen: the mean of two runs is their median.
    assert weak["points"][2]["speedup"] == pytest.approx(261.5 / 21.5)
    assert weak["points"][2]["efficiency"] == pytest.approx(261.5 / 21.5 / 16)
    assert set(weak["fits"]) == {"doubling"}
    assert weak["fits"]["doubling"]["predictions"][0]["gpus"] == 32


def test_strong_scaling_of_megatron_logs(tmp_path: Path) -> None:
    for nodes, seconds in ((8, 200), (16, 110), (32, 65)):
        text = "".join(megatron(n, f"{seconds * 1000}.0", batch=1024) for n in range(1, 5))
        (tmp_path / f"52B-{nodes}n4g.out").write_text(text)
    document = as_json(tmp_path, ".", "--predict", "256,512")
    assert document["weak"] == []
    [strong] = document["strong"]
    assert strong["baseline"] == "8n4g"
    assert [point["speedup"] for point in strong["points"]] == pytest.approx([1, 200 / 110, 200 / 65])
    assert [one["gpus"] for one in strong["fits"]["amdahl"]["predictions"]] == [256, 512]
    assert strong["points"][-1]["efficiency"] == pytest.approx(200 / 65 / 4)


def test_the_drawing_is_svg_with_every_point(gpt2: Path) -> None:
    ended = scaling(gpt2, "b8", "--svg", "out.svg")
    assert ended.code == 0
    assert "wrote out.svg" in ended.err
    tree = ET.fromstring((gpt2 / "out.svg").read_text())
    dots = tree.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(dots) == 3 + 1
    assert len(tree.findall(".//{http://www.w3.org/2000/svg}polyline")) == 2


def test_a_drawing_that_cannot_be_written_leaves_nothing(gpt2: Path) -> None:
    ended = scaling(gpt2, "b8", "--svg", "none/out.svg")
    assert ended.code == 1
    assert "cannot be written" in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["none"],
        ["."],
        ["b8", "--protocol", "mine"],
        ["b8", "--svg", "out.png"],
        ["b8", "--predict", "0"],
        ["b8", "--predict", "many"],
        ["b8", "--predict", "\u00b2"],
        ["b8", "--warmup", "-1"],
        ["b8", "--protocol", "dlperf-deepspeed", "--warmup", "5"],
    ],
)
def test_wrong_usage(gpt2: Path, arguments: list[str]) -> None:
    (gpt2 / "empty").mkdir()
    ended = scaling(gpt2 / "empty" if arguments == ["."] else gpt2, *arguments)
    assert ended.code == (1 if arguments in (["."], ["none"]) else 2)
    assert "Traceback" not in ended.err


def test_a_log_that_tells_no_number_of_gpus_is_named(gpt2: Path) -> None:
    (gpt2 / "b8" / "stray.log").write_text("dear diary\n")
    ended = scaling(gpt2, "b8", "--format", "json")
    assert ended.code == 4
    assert "stray.log" in ended.err


#: NVIDIA/dgxc-benchmarking 25.02, nemotron/README_340b.md.
NEMOTRON = """model,precision,GPUs,GBS,tokens/s,note
Nemotron4 340b,BF16,128,32,28432,
Nemotron4 340b,BF16,256,64,56134,
Nemotron4 340b,BF16,512,128,111551,with NVLS
Nemotron4 340b,BF16,1024,256,221686,
Nemotron4 340b,FP8,128,32,41478,
Nemotron4 340b,FP8,256,64,81665,
Nemotron4 340b,FP8,512,128,160825,
Nemotron4 340b,FP8,1024,256,n/a,out of memory
"""


def test_a_table_of_points_is_split_by_its_names(tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text(NEMOTRON)
    document = as_json(tmp_path, "points.csv", "--predict", "2048")
    bf16, fp8 = document["weak"]
    assert document["strong"] == []
    assert (bf16["model"], fp8["model"]) == ("Points", "Points")
    assert (bf16["precision"], fp8["precision"]) == ("bf16", "fp8")
    assert (bf16["unit"], bf16["constant_batch"], bf16["baseline"]) == ("tokens/s", 0.25, "128 GPUs")
    assert [(point["gpus"], point["nodes"]) for point in fp8["points"]] == [(128, None), (256, None), (512, None)]
    assert "points.csv:9: no throughput, so no point" in document["notes"]
    low, high = bf16["fits"]["doubling"]["predictions"][0]["interval"]
    assert low < 433296 < high < 1.05 * 433296  # as published
    assert low > 0.95 * 433296
    (tmp_path / "bad.csv").write_text(NEMOTRON.replace("FP8,128", "FP8,many"))
    assert scaling(tmp_path, "bad.csv").code == 4
    assert "bad.csv:6: 'many' is not a valid GPUs" in scaling(tmp_path, "bad.csv").err
    headings = scaling(tmp_path, "points.csv").out
    assert "Tokens/s" in headings
    assert "Samples/s" not in headings


#: The same, llama3.1/README_405b.md: proxies with fewer layers beside the whole model, and a table for each precision.
LLAMA = """# Performance

| Llama 3.1 405b {} | Throughput on 192x H100 GPUs | Throughput on 576x H100 GPUs | Throughput on 1152x H100 GPUs |
|:--|--:|--:|--:|
| Layers | 42 | 126 | 126 |
| GBS | 252 | 252 | 504 |
| Throughput in tokens per second | {} |
"""


def test_tables_of_one_page_and_proxies_are_never_one_series(tmp_path: Path) -> None:
    tables = (("BF16", "119328 | 117964 | 234589"), ("BF16 again", "119320 | 117960 | 234580"))
    (tmp_path / "README.md").write_text("\n".join(LLAMA.format(*table) for table in tables))
    document = as_json(tmp_path, "README.md")
    assert [[point["gpus"] for point in one["points"]] for one in document["weak"]] == [[576, 1152], [576, 1152]]
    assert [one["model"] for one in document["weak"]] == [f"Performance (line {at}), Layers 126" for at in (3, 11)]
    assert document["weak"][0]["points"][1]["runs"] == 1


def test_a_step_time_is_a_throughput_where_the_batch_is_stated(tmp_path: Path) -> None:
    rows = ((1, 8, 64, 1.0), (2, 16, 128, 1.02), (4, 32, 128, 0.6))
    table = "\n".join(f"| {nodes} | {gpus} | {batch} | {time} |" for nodes, gpus, batch, time in rows)
    for heading, name in (("Batch", "stated.md"), ("Layers", "bare.md")):
        (tmp_path / name).write_text(f"# GPT\n\n| Nodes | GPUs | {heading} | Step time (s) |\n|--|--|--|--|\n{table}\n")
    document = as_json(tmp_path, "stated.md")
    assert [(len(one["points"]), one["kind"]) for one in document["series"]] == [(2, "weak"), (2, "strong")]
    assert document["weak"][0]["points"][1]["median_speed"] == pytest.approx(128 / 1.02)
    assert document["weak"][0]["baseline"] == "1n8g"
    assert "a step time gives no throughput without the global batch" in scaling(tmp_path, "bare.md").err
    (tmp_path / "prose.md").write_text("# Nothing\n")
    assert scaling(tmp_path, "prose.md").code == 1


def test_every_example_of_the_guide_runs(gpt2: Path) -> None:
    guide = (ROOT / "docs" / "scaling.md").read_text()
    examples = [line.strip() for line in guide.splitlines() if line.startswith("    perfscope ")]
    (gpt2 / "logs" / "deepspeed").mkdir(parents=True)
    (gpt2 / "b8").rename(gpt2 / "logs" / "deepspeed" / "gpt2-small")
    (gpt2 / "points.csv").write_text(NEMOTRON)
    assert len(examples) == 4
    for example in examples:
        ended = run(["bash", "-c", example.replace("perfscope", f"{sys.executable} -m perfscope", 1)], gpt2)
        assert ended.code == 0, ended.stderr
