"""Samples made from samples: what they hold, and what is left alone."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch

from onnxq.torch.vary import vary

Tensor = torch.Tensor


def pictures(count: int = 3, size: tuple[int, int] = (24, 32)) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [{"x": torch.rand((1, 3, *size), generator=generator)} for _ in range(count)]


def many(samples: list[dict[str, Tensor]], share: float, count: int = 40) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [vary(samples, k % len(samples), share, generator) for k in range(count)]


def test_pictures_keep_shape_and_range_and_differ() -> None:
    samples = pictures()
    made = many(samples, 1.0)
    for sample in made:
        assert sample["x"].shape == (1, 3, 24, 32) and sample["x"].dtype == torch.float32
        assert float(sample["x"].min()) >= 0.0 and float(sample["x"].max()) <= 1.0
    assert len({tuple(s["x"].flatten()[:50].tolist()) for s in made}) == len(made)
    again = many(samples, 1.0)
    assert all(torch.equal(a["x"], b["x"]) for a, b in zip(made, again, strict=True)), "the seed decides"


def test_without_a_share_samples_are_as_they_were() -> None:
    samples = pictures()
    for k, sample in enumerate(many(samples, 0.0)):
        assert torch.equal(sample["x"], samples[k % 3]["x"])


def test_channels_last_is_the_same_picture() -> None:
    samples = pictures()
    turned = [{"x": sample["x"].permute(0, 2, 3, 1)} for sample in samples]
    for first, last in zip(many(samples, 1.0), many(turned, 1.0), strict=True):
        assert torch.equal(first["x"].permute(0, 2, 3, 1), last["x"])


def test_part_of_another_picture() -> None:
    """Of pictures of one colour each, half of the mixed ones hold both colours, the others one between them."""
    samples = [{"x": torch.full((1, 3, 24, 32), float(k))} for k in range(2)]
    found = {len(torch.round(sample["x"] * 1e4).unique()) for sample in many(samples, 1.0, 60)}
    assert found == {1, 2}


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (1, 4, 24, 24), (1, 3, 24), (2, 5)])
def test_what_is_no_picture_is_only_mixed(shape: tuple[int, ...]) -> None:
    samples = [{"x": torch.full(shape, float(k))} for k in range(2)]
    for sample in many(samples, 1.0):
        assert len(sample["x"].unique()) == 1 and float(sample["x"].max()) <= 1.0


def test_integers_and_other_shapes_are_left_alone() -> None:
    samples = [{"x": torch.arange(6).reshape(1, 6) + k} for k in range(2)]
    assert all(torch.equal(s["x"], samples[k % 2]["x"]) for k, s in enumerate(many(samples, 1.0)))
    odd = [{"x": torch.full((1, 4 + k), float(k))} for k in range(2)]
    assert all(torch.equal(s["x"], odd[k % 2]["x"]) for k, s in enumerate(many(odd, 1.0)))
