"""Models, data and places of the strategies' trainings."""

from __future__ import annotations

import argparse
import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from perfscope.workloads.strategies.train import count_flops
from perfscope.workloads.tasks.data import image_files, synthetic_images, synthetic_tokens, token_file
from perfscope.workloads.tasks.job import find_job
from perfscope.workloads.tasks.task import make_task


def test_synthetic_data_is_the_same_in_every_run_and_differs_from_step_to_step() -> None:
    for batch in (synthetic_images(8), synthetic_tokens(100, 12)):
        assert all(torch.equal(one, other) for one, other in zip(batch(3, 4), batch(3, 4), strict=True))
        assert not torch.equal(batch(3, 4)[0], batch(4, 4)[0])


def test_targets_of_tokens_are_the_tokens_behind_them_and_every_second_one_can_be_learned() -> None:
    for seq_len in (7, 8):
        inputs, targets = synthetic_tokens(100, seq_len)(0, 5)
        assert inputs.shape == targets.shape == (5, seq_len)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        assert torch.equal(targets[:, ::2], (7 * inputs[:, ::2] + 3) % 100)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnists_files_are_read(tmp_path: Path, suffix: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 5), np.uint8)
    labels = np.arange(6, dtype=np.uint8)
    parts = {
        "train-images-idx3-ubyte": struct.pack(">4i", 2051, 6, 5, 5) + pixels.tobytes(),
        "train-labels-idx1-ubyte": struct.pack(">2i", 2049, 6) + labels.tobytes(),
    }
    for name, content in parts.items():
        (tmp_path / (name + suffix)).write_bytes(gzip.compress(content) if suffix else content)
    images, targets = image_files(tmp_path)(0, 20)
    assert images.shape == (20, 1, 5, 5)
    for image, target in zip(images, targets, strict=True):
        assert np.array_equal((image[0] * 255).round().numpy(), pixels[int(target)])


def test_token_files_are_read_as_they_are_written(tmp_path: Path) -> None:
    stream = np.arange(200, dtype=np.uint16)
    (tmp_path / "x.bin").write_bytes(stream.tobytes())
    np.save(tmp_path / "x.npy", stream)
    (tmp_path / "x.txt").write_bytes(bytes(range(200)))
    for name in ("x.bin", "x.npy", "x.txt"):
        inputs, targets = token_file(tmp_path / name, 256, 16)(0, 4)
        assert torch.equal(targets, inputs + 1)


@pytest.mark.parametrize(
    ("size", "vocabulary", "problem"), [(10, 256, "fewer than a sequence"), (100, 50, "beyond the vocabulary")]
)
def test_tokens_that_do_not_fit_the_model_are_refused(tmp_path: Path, size: int, vocabulary: int, problem: str) -> None:
    (tmp_path / "x.txt").write_bytes(bytes(range(size)))
    with pytest.raises(ValueError, match=problem):
        token_file(tmp_path / "x.txt", vocabulary, 16)


def test_resnet_50_has_as_many_parameters_as_torchvisions() -> None:
    """25,557,032 with 1,000 classes and three channels; here with ten classes, and a convolution from one to three."""
    parameters = sum(
        weight.numel() for layer in make_task("resnet50", None, 28).layers() for weight in layer.parameters()
    )
    assert parameters == 25_557_032 - 2049 * 990 + 6


def test_operations_of_a_gpt_are_those_of_its_products() -> None:
    """Three passes of 2 operations a weight and token, and of the two products of attention."""
    layers, hidden, tokens, vocabulary = 3, 64, 32, 128
    weights = layers * 12 * hidden**2 + vocabulary * hidden
    attention = layers * 2 * tokens * hidden
    assert count_flops(make_task("gpt:3x64x32x128", None, 28)) == pytest.approx(
        6 * tokens * (weights + attention), rel=0.08
    )


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"},
        {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"},
        {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
    ],
)
def test_the_place_comes_from_the_launchers_variables(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    job = find_job(make_task("gpt:2x32x16x64", None, 28), argparse.Namespace(device="cpu", devices=2))
    assert (job.rank, job.world_size, job.local_rank, len(job.devices)) == (3, 4, 1, 2)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
