"""Equalization through ReLU6: channels below its bound are scaled, up to it, and those that reach it are not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from onnxq import Options
from onnxq.algorithms.channels.pairs import find_pairs
from onnxq.algorithms.equalize import apply
from tests.algorithms.test_equalize import assert_same, constants, drafted
from tests.contract import quantize_checked
from tests.models import build, images, normal

EQUALIZED = Options(placement="all", per_channel=False, algorithms=("equalize:clip=true", "bias_correction"))
PLAIN = Options(placement="all", per_channel=False, algorithms=("equalize", "bias_correction"))
CLIPPED = 2
"""Channels that reach 6."""


def net(low: float = 0.0, high: float = 6.0, behind: str = "r") -> onnx.ModelProto:
    """Two convolutions around a Clip; the first channels reach 6, the others stay below it by factors up to 2**8."""
    factors = np.append(np.full(CLIPPED, 40.0), 2.0 ** np.linspace(-8, 0, 8 - CLIPPED))[:, None, None, None]
    u = np.abs(normal(8, 8, 1, 1)) * factors / 16
    w = normal(8, 8, 1, 1, seed=1) / np.minimum(factors[:, 0], 1.0)
    pool = "p = AveragePool <kernel_shape = [2, 2]> (r)" if behind == "p" else ""
    return build(
        f"""(float[1, 8, 6, 6] x) => (float[1, 8, M, M] y) {{
            a = Conv (x, u)  r = Clip (a, low, high)  {pool}  y = Conv ({behind}, w)
        }}""",
        u=u.astype(np.float32),
        w=w.astype(np.float32),
        low=np.float32(low),
        high=np.float32(high),
    )


def feeds(samples: int = 12, seed: int = 0) -> list[dict[str, NDArray[np.float32]]]:
    return [{"x": np.abs(feed["x"])} for feed in images(1, 8, 6, 6, samples=samples, seed=seed)]


def test_badly_scaled_channels_gain_5_db_with_a_scale_a_tensor() -> None:
    before = quantize_checked(net(), feeds(), PLAIN, least=None)
    after = quantize_checked(net(), feeds(), EQUALIZED, least=None)
    assert after.worst >= before.worst + 5.0


@pytest.mark.parametrize("behind", ["r", "p"])
def test_the_model_stays_the_same_on_the_samples(behind: str) -> None:
    """Behind a mean channels are lower than at the Clip, which is where the bound counts."""
    model = net(behind=behind)
    draft = drafted(model, feeds(), EQUALIZED)
    apply(draft, clip=True)
    assert "1 pairs scaled" in draft.notes[0]
    assert_same(model, draft, feeds())


def test_channels_that_reach_the_bound_keep_their_scale() -> None:
    model = net()
    draft = drafted(model, feeds(), EQUALIZED)
    apply(draft, clip=True)
    conv = next(node for node in draft.model.graph if node.op_type == "Conv")
    scaled = constants(draft)[conv.inputs[1].name or ""] / onnx.numpy_helper.to_array(model.graph.initializer[0])  # type: ignore[union-attr]
    np.testing.assert_array_equal(scaled[:CLIPPED], 1.0)
    assert scaled[CLIPPED:].max() > 10.0


@pytest.mark.parametrize(("low", "high"), [(-1.0, 6.0), (0.5, 6.0), (0.0, 0.0)])
def test_only_a_clip_from_zero_lets_a_scale_through(low: float, high: float) -> None:
    draft = drafted(net(low, high), feeds(4), EQUALIZED)
    pairs, reasons = find_pairs(draft.model, clip=True)
    assert not pairs
    assert reasons == {"after Clip": 1}
