from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from onnxq import dynamic
from tests.models import build, normal


def test_attributes_that_onnxruntimes_own_operators_lack(tmp_path: Path) -> None:
    """Where they have the default, nothing is lost without them; else the layer stays float."""
    proto = build(
        """(float[6, 2, 32] x) => (float[6, 1, 2, 32] y, float[6, 2, 32] a, float[6, 2, 32] b) {
            [recurrent] y, h, c = LSTM <hidden_size = 32, layout = 0> (x, w, r)
            [plain] a = com.microsoft.Attention <num_heads = 4, rotary_embedding_dim = 0> (x, qkv, bias, ends)
            [sized] b = com.microsoft.Attention <num_heads = 4, qkv_hidden_sizes = [32, 32, 32]> (x, other, bias, ends)
        }""",
        w=normal(1, 128, 32),
        r=normal(1, 128, 32, seed=1),
        qkv=normal(32, 96, seed=5),
        other=normal(32, 96, seed=7),
        bias=normal(96, seed=6),
        ends=np.array([2] * 6 + [0] * 6, np.int32),  # with which an Attention stays one operator
    )
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(proto, source)
    result = dynamic.rewrite(source, [{"x": normal(6, 2, 32, scale=1.0)}], output=output)
    assert dict(result.quantized) == {"recurrent": "LSTM", "plain": "Attention"}
    assert [(k.node, "no attribute 'qkv_hidden_sizes'" in k.reason) for k in result.kept_float] == [("sized", True)]
    assert all(errors.sqnr > 25 for errors in result.verification.outputs.values())
