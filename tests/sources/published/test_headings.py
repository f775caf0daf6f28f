"""The quantity of a column by its heading, and lines that join to the text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.sources.published.cells import leading_number
from perfscope.sources.published.markdown import Cell, parse_markdown, split_lines
from perfscope.sources.published.tables import describe_columns
from perfscope.tables.published import Quantity, TextSpan


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.sampled_from("ab|\\ \r\n\x0b\x0c\u2028>-"), max_size=80))
def test_lines_join_to_the_text_whatever_they_end_with(text: str) -> None:
    assert "".join(split_lines(text)) == text
    parse_markdown(text, "any.md")


HEADINGS = {
    "GPUs": Quantity.GPUS,
    "device num": Quantity.GPUS,
    "gpu_num_per_node": Quantity.GPUS_PER_NODE,
    "Number of parameters (billion)": Quantity.PARAMETERS,
    "global batch size": Quantity.GLOBAL_BATCH,
    "batch_size_per_device": Quantity.MICRO_BATCH,
    "num_accumulation_steps": Quantity.ACCUMULATION,
    "TFlops": Quantity.TFLOPS,
    "Achieved teraFLOP/s per GPU": Quantity.TFLOPS,
    "Achieved aggregate petaFLOP/s": Quantity.AGGREGATE_PFLOPS,
    "Percentage of theoretical peak FLOP/s": Quantity.PEAK_FRACTION,
    "samples/s(PyTorch)": Quantity.RATE,
    "throuthput(sample/sec)": Quantity.RATE,
    "tokens/s": Quantity.TOKEN_RATE,
    "tokens/s/GPU": Quantity.DEVICE_TOKEN_RATE,
    "Tokens / sec / GPU": Quantity.DEVICE_TOKEN_RATE,
    "Throughput (T/s/GPU)": Quantity.DEVICE_TOKEN_RATE,
    "tok_s": Quantity.TOKEN_RATE,
    "Throughput in tokens per second": Quantity.TOKEN_RATE,
    "Output token throughput (tok/s)": Quantity.TOKEN_RATE,
    "Model flops utilization": Quantity.PEAK_FRACTION,
    "Model TFLOP / sec / GPU": Quantity.MODEL_TFLOPS,
    "latency(ms)": Quantity.STEP_TIME,
    "Time per iteration (s)": Quantity.STEP_TIME,
    "gpu_mem(mB)": None,
    "[**GPUs**](x.md)": Quantity.GPUS,
    "Notes": None,
}


@pytest.mark.parametrize("heading", HEADINGS)
def test_headings_mean_what_people_write(heading: str) -> None:
    sizes = [[Cell("52B", TextSpan(1, 0, 3))]]
    assert describe_columns([heading], sizes)[0].quantity is HEADINGS[heading]


def test_a_column_of_model_names_is_no_column_of_sizes() -> None:
    assert describe_columns(["Model"], [[Cell("bert", TextSpan(1, 0, 4))]])[0].quantity is None


@pytest.mark.parametrize("gpu", ["h100_80gb", "H100", "V100"])
def test_of_several_sizes_and_gpus_the_exact_number_is_used(gpu: str) -> None:
    texts = {"Model": "13b", "# GPUs": "64", "GPU": gpu, "NumParams": "12853954560"}
    columns = describe_columns(list(texts), [[Cell(text, TextSpan(1, 0, len(text))) for text in texts.values()]])
    assert [column.quantity for column in columns] == [None, Quantity.GPUS, None, Quantity.PARAMETERS]
    assert columns[0].is_group
    assert columns[2].is_group


@pytest.mark.parametrize("text", ["1e300", "1.2.3", "1e-300 tokens/s"])
def test_a_number_that_is_longer_than_it_may_be_is_none(text: str) -> None:
    assert leading_number(Cell(text, TextSpan(1, 0, len(text)))) is None
