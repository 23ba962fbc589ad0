"""A decoder as onnxruntime-genai's builder writes it: caches, GroupQueryAttention, a head that is the embedding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxq.measuring.metrics import sqnr
from onnxq.weight_only import quantize_weights
from tests.tool import load_tool
from tests.weight_only.layers import run, save


@pytest.fixture(scope="module")
def tool() -> Any:
    return load_tool("language_model")


def _weights(tool: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    width, inner, narrow = tool.WIDTH, tool.INNER, tool.CACHES * tool.EACH
    sizes = {"q": (width, width), "k": (width, narrow), "v": (width, narrow), "o": (width, width)}
    sizes |= {"gate": (width, inner), "up": (width, inner), "down": (inner, width)}
    made = {"embed": rng.standard_normal((tool.VOCABULARY, width)), "norm": np.ones(width)}
    for k in range(tool.LAYERS):
        made |= {f"{k}.{part}": rng.standard_normal(size) / np.sqrt(size[0]) for part, size in sizes.items()}
        made |= {f"{k}.norm1": np.ones(width), f"{k}.norm2": np.ones(width)}
    return {name: array.astype(np.float32) for name, array in made.items()}


def _next(tool: Any, tokens: np.ndarray, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What is fed for the last of some tokens, with the caches that a run on the others gave."""
    caches = {name.replace("present", "past"): array for name, array in given.items() if name.startswith("present")}
    return {**tool.feeds(tokens[:, -1:]), "attention_mask": np.ones_like(tokens), **caches}


def test_it_is_quantized_with_its_caches_and_the_embedding_once(tool: Any, tmp_path: Path) -> None:
    source, output = save(tool.decoder(_weights(tool)), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    prompts = [np.random.default_rng(seed).integers(0, tool.VOCABULARY, (1, 24)) for seed in range(6)]
    data = [tool.feeds(prompt[:, :-1]) for prompt in prompts]
    data += [_next(tool, prompt, run(source, feed)) for prompt, feed in zip(prompts, list(data), strict=True)]
    made = {"format": "matmulnbits", "symmetric": False, "accuracy_level": 0, "avg_bits": 5}
    result = quantize_weights(source, output, data=data, **made)  # type: ignore[arg-type]
    assert any("stored once with the table" in note for note in result.notes)
    assert "28 weights" in result.notes[0]
    written, given = onnx.load(output), onnx.load(source)
    for ours, theirs in ((written.graph.input, given.graph.input), (written.graph.output, given.graph.output)):
        assert [value.SerializeToString() for value in ours] == [value.SerializeToString() for value in theirs]
    products = [node for node in written.graph.node if node.op_type in ("MatMul", "MatMulNBits")]
    assert {node.op_type for node in products} == {"MatMulNBits"} and len(products) == 29
    prompt = np.random.default_rng(9).integers(0, tool.VOCABULARY, (1, 24))
    whole = run(output, tool.feeds(prompt))["logits"]
    step = run(output, _next(tool, prompt, run(output, tool.feeds(prompt[:, :-1]))))["logits"]
    np.testing.assert_allclose(step[:, -1], whole[:, -1], atol=1e-3 * np.abs(whole).max())
    plain = tmp_path / "plain.onnx"
    quantize_weights(source, plain, format="matmulnbits", symmetric=False, accuracy_level=0)
    want, equal = (run(path, tool.feeds(prompt))["logits"] for path in (source, plain))
    assert sqnr(want, whole) > sqnr(want, equal) + 2
