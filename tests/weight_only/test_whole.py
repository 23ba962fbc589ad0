from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxq.measuring.metrics import sqnr
from onnxq.weight_only import quantize_weights
from tests.models import build, embedded_attention
from tests.weight_only.layers import LOSS, run, save


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize(("symmetric", "format"), [(True, "qdq"), (False, "qdq"), (True, "matmulnbits")])
def test_weights_of_onnxruntimes_own_operators(symmetric: bool, format: str, external: bool, tmp_path: Path) -> None:
    """They take floats alone: integers in the file, unpacked once, at load, where they are not parted."""
    proto = build(
        """(int32[N, 6] ids) => (float[N, 6, 32] y) {
            [embed] e, m = com.microsoft.EmbedLayerNormalization (ids, "", words, places, "", gamma, beta)
            [attend] y = com.microsoft.Attention <num_heads = 4> (e, qkv, qkv_bias)
        }""",
        domains={"com.microsoft": 1},
        **embedded_attention(),
    )
    source, output = save(proto, tmp_path / "m.onnx", external=external), tmp_path / "q.onnx"
    result = quantize_weights(source, output, symmetric=symmetric, format=format)
    assert dict(result.quantized) == {"embed": "EmbedLayerNormalization", "attend": "Attention"}
    made = onnx.load(output)
    large = {t.name: t.data_type for t in made.graph.initializer if np.prod(t.dims) >= 1024}
    assert len(large) == 3 and onnx.TensorProto.FLOAT not in large.values()
    feeds = {"ids": np.arange(6, dtype=np.int32)[None]}
    want = run(source, feeds)["y"]
    for optimize in (False, True):
        got = run(output, feeds, optimize=optimize)["y"]
        assert sqnr(want, got) > LOSS[4]
