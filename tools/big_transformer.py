"""A transformer of any size with random weights, written tensor by tensor: for checks of what must not fill the memory.

    python tools/big_transformer.py OUT.onnx --layers 12 --width 2048 --data OUT.npz

Its activations are like those of a trained one in what matters to quantizers: a few channels are far larger than the
rest, and channels are correlated, since tokens lie near a space of few dimensions.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

__all__ = ["build", "tokens"]

Floats = NDArray[np.float32]

_RANK = 64
_OUTLIERS = 6
_OUTLIER_GAIN = 12.0
_ALIGNMENT = 4096


class _Writer:
    """Nodes and constants of a graph; big constants go straight to the data file."""

    def __init__(self, file: BinaryIO, location: str) -> None:
        self.file, self.location = file, location
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, array: NDArray[np.generic]) -> str:
        if array.nbytes < 1024:
            self.constants.append(numpy_helper.from_array(array, name))
            return name
        self.file.write(bytes(-self.file.tell() % _ALIGNMENT))
        tensor = TensorProto(name=name, dims=array.shape, data_location=TensorProto.EXTERNAL)
        tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        place = {"location": self.location, "offset": str(self.file.tell()), "length": str(array.nbytes)}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=value)
        array.tofile(self.file)
        self.constants.append(tensor)
        return name

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"{output}.{op}", **attributes))
        return output


def build(
    path: Path, *, layers: int = 12, width: int = 2048, vocabulary: int = 4096, heads: int = 16, seed: int = 0
) -> int:
    """Write a model with inputs ``tokens`` int64 (batch, sequence) and output ``logits`` (batch, sequence, 256).

    Args:
        path: the ``.onnx`` file; tensors go to ``<name>.data`` beside it.
        layers: of attention and a feed-forward network four times as wide.
        width: of the residual stream.
        vocabulary: rows of the table of tokens.
        heads: of the attention.
        seed: of the random numbers.

    Returns:
        Bytes of the float weights.
    """
    rng = np.random.default_rng(seed)
    data = path.with_name(f"{path.name}.data")
    with open(data, "wb") as file:
        writer = _Writer(file, data.name)
        basis = rng.standard_normal((_RANK, width), np.float32) / np.float32(np.sqrt(_RANK))
        table = rng.standard_normal((vocabulary, _RANK), np.float32) @ basis
        table += np.float32(0.1) * rng.standard_normal((vocabulary, width), np.float32)
        x = writer.node("Gather", [writer.constant("embedding", table), "tokens"], "embedded")
        del table
        for layer in range(layers):
            x = _attention(writer, rng, f"layer{layer}.attention", x, width, heads)
            x = _feed_forward(writer, rng, f"layer{layer}.ffn", x, width)
        x = _norm(writer, rng, "final", x, width)
        writer.node("MatMul", [x, writer.constant("head.weight", _weight(rng, width, 256))], "logits")
        size = file.tell()
    graph = helper.make_graph(
        writer.nodes,
        "transformer",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "sequence"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", 256])],
        writer.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return size


def tokens(samples: int, sequence: int, *, vocabulary: int = 4096, seed: int = 1) -> NDArray[np.int64]:
    """Random tokens, (samples, 1, sequence)."""
    return np.random.default_rng(seed).integers(0, vocabulary, (samples, 1, sequence))


def _weight(rng: np.random.Generator, inputs: int, outputs: int) -> Floats:
    array = rng.standard_normal((inputs, outputs), np.float32)
    array *= np.float32(1 / np.sqrt(inputs))
    return array


def _linear(writer: _Writer, rng: np.random.Generator, name: str, x: str, inputs: int, outputs: int) -> str:
    weight = writer.constant(f"{name}.weight", _weight(rng, inputs, outputs))
    bias = writer.constant(f"{name}.bias", (0.1 * rng.standard_normal(outputs)).astype(np.float32))
    product = writer.node("MatMul", [x, weight], f"{name}.product")
    return writer.node("Add", [product, bias], f"{name}.out")


def _norm(writer: _Writer, rng: np.random.Generator, name: str, x: str, width: int) -> str:
    gain = rng.uniform(0.5, 1.5, width).astype(np.float32)
    gain[rng.choice(width, min(_OUTLIERS, width), replace=False)] *= _OUTLIER_GAIN
    shift = (0.1 * rng.standard_normal(width)).astype(np.float32)
    inputs = [x, writer.constant(f"{name}.gain", gain), writer.constant(f"{name}.shift", shift)]
    return writer.node("LayerNormalization", inputs, f"{name}.norm", axis=-1)


def _attention(writer: _Writer, rng: np.random.Generator, name: str, x: str, width: int, heads: int) -> str:
    split = writer.constant(f"{name}.split", np.array([0, 0, heads, width // heads]))
    join = writer.constant(f"{name}.join", np.array([0, 0, width]))
    inside = _norm(writer, rng, name, x, width)
    parts = {}
    for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        flat = _linear(writer, rng, f"{name}.{part}", inside, width, width)
        shaped = writer.node("Reshape", [flat, split], f"{name}.{part}.heads")
        parts[part] = writer.node("Transpose", [shaped], f"{name}.{part}.turned", perm=order)
    scores = writer.node("MatMul", [parts["q"], parts["k"]], f"{name}.scores")
    scale = writer.constant(f"{name}.scale", np.array(1 / np.sqrt(width // heads), np.float32))
    share = writer.node("Softmax", [writer.node("Mul", [scores, scale], f"{name}.scaled")], f"{name}.share", axis=-1)
    mixed = writer.node("MatMul", [share, parts["v"]], f"{name}.mixed")
    turned = writer.node("Transpose", [mixed], f"{name}.mixed.turned", perm=[0, 2, 1, 3])
    joined = writer.node("Reshape", [turned, join], f"{name}.joined")
    return writer.node("Add", [x, _linear(writer, rng, f"{name}.o", joined, width, width)], f"{name}.residual")


def _feed_forward(writer: _Writer, rng: np.random.Generator, name: str, x: str, width: int) -> str:
    inside = _linear(writer, rng, f"{name}.up", _norm(writer, rng, name, x, width), width, 4 * width)
    active = writer.node("Gelu", [inside], f"{name}.active")
    return writer.node("Add", [x, _linear(writer, rng, f"{name}.down", active, 4 * width, width)], f"{name}.residual")


def main() -> None:
    """Build what the command line asks for."""
    parser = argparse.ArgumentParser(description="Build a big random transformer.")
    parser.add_argument("output", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--data", type=Path, help="write tokens here (.npz)")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--sequence", type=int, default=64)
    args = parser.parse_args()
    size = build(args.output, layers=args.layers, width=args.width, vocabulary=args.vocabulary, heads=args.heads)
    print(f"{args.output}: {size / 1e9:.2f} GB of weights")
    if args.data:
        np.savez(args.data, tokens=tokens(args.samples, args.sequence, vocabulary=args.vocabulary))


if __name__ == "__main__":
    main()
