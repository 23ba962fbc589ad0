from __future__ import annotations

import onnx_ir as ir
import pytest

from onnxq.graph.files.load import load
from onnxq.graph.traverse import all_nodes
from onnxq.graph.windows import share_inside
from tests.models import build, normal


def _conv(size: str, attributes: str) -> ir.Node:
    text = f"(float[1, 4, {size}, {size}] x) => (float[1, 4, h, v] y) {{ y = Conv <{attributes}> (x, w) }}"
    (node,) = all_nodes(load(build(text, w=normal(4, 4, 3, 3))))
    return node


@pytest.mark.parametrize(
    ("size", "attributes", "share"),
    [
        ("8", "pads = [0, 0, 0, 0]", 1.0),
        ("8", "pads = [1, 1, 1, 1]", (22 / 24) ** 2),
        ("8", "pads = [1, 1, 1, 1], strides = [2, 2]", (11 / 12) ** 2),
        ("8", "pads = [12, 12, 12, 12], dilations = [12, 12]", 1 / 9),
        ("8", 'auto_pad = "SAME_UPPER"', 1.0),
        ("n", "pads = [12, 12, 12, 12], dilations = [12, 12]", 1.0),
    ],
)
def test_the_share_of_what_windows_read_that_is_not_padding(size: str, attributes: str, share: float) -> None:
    assert share_inside(_conv(size, attributes)) == pytest.approx(share)
