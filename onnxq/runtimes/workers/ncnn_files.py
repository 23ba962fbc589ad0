"""ncnn's ``.param`` and ``.bin`` files: read with ncnn itself, and written with int8 weights as ncnn2int8 writes them.

A ``.param`` file has a line for each layer: type, name, numbers of tensors read and made, their names, ``key=value``.
The ``.bin`` file has the arrays of all layers one after the other, without names or lengths; each layer of ncnn asks
for those it needs. Float32 arrays that might be of another type have a tag of four bytes in front, 0; int8 ones another
tag, and are filled up to four bytes. Known from ncnn's sources: ``modelbin.cpp``, ``tools/quantize/ncnn2int8.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common import RefusedError

__all__ = ["KINDS", "Layer", "quantize", "read_layers", "requantize", "write_layers"]

KINDS = ("Convolution", "ConvolutionDepthWise", "InnerProduct")
"""Types of layers whose input and weights the table of ncnn2int8 has scales for."""
_CONVOLUTIONS = KINDS[:2]
_MAGIC = "7767517"
_INT8 = 0x000D4B38
_TERM = 8
"""Key of ``int8_scale_term``: 2 for scales of a Convolution or InnerProduct, 1 for those of a ConvolutionDepthWise."""
_REQUANTIZED = 100
"""Added to it where a layer writes the integers that the next one reads."""


@dataclass
class Layer:
    """A layer: its line of the ``.param`` file, its arrays, whether a tag precedes each, the scale of its input."""

    type: str
    name: str
    bottoms: list[str]
    tops: list[str]
    params: dict[int, str]
    arrays: list[Any] = field(default_factory=list)
    tagged: list[bool] = field(default_factory=list)
    data: Any = None

    @property
    def quantized(self) -> bool:
        """Whether its weights are int8."""
        return self.data is not None

    @property
    def form(self) -> tuple[object, ...]:
        """What it is, without names."""
        return self.type, len(self.bottoms), len(self.tops), self.params

    def line(self) -> str:
        """As the ``.param`` file has it."""
        params = [f"{key}={value}" for key, value in self.params.items()]
        return " ".join(
            [self.type, self.name, f"{len(self.bottoms)} {len(self.tops)}", *self.bottoms, *self.tops, *params]
        )


def read_layers(param: Path, binary: Path) -> list[Layer]:
    """The layers of a model with float32 weights.

    Raises:
        RefusedError: ncnn lacks a layer of it or does not load it, or it has arrays of another type.
    """
    import ncnn

    lines = [line.split() for line in param.read_text().splitlines()[2:]]
    if unknown := {words[0] for words in lines if ncnn.layer_to_index(words[0]) < 0}:
        raise RefusedError(f"what pnnx makes of the model needs layers that ncnn lacks: {', '.join(sorted(unknown))}")
    layers = [_parsed(words) for words in lines]
    data = binary.read_bytes()

    class Recorder(ncnn.ModelBin):  # type: ignore[misc]
        """Gives each layer what it asks for, and keeps it."""

        def __init__(self) -> None:
            super().__init__()
            self.at = 0
            self.layer = layers[0]

        def load(self, *asked: int) -> Any:
            *shape, kind = asked
            if kind == 0:
                if int.from_bytes(data[self.at : self.at + 4], "little"):
                    raise RefusedError(f"{self.layer.type} {self.layer.name} has weights that are not float32")
                self.at += 4
            size = int(np.prod(shape))
            if 4 * size > len(data) - self.at:
                where = f"{self.layer.type} {self.layer.name}"
                raise RefusedError(f"pnnx writes fewer weights than ncnn reads: {where} asks for {size} more")
            array = np.frombuffer(data, np.float32, size, self.at).copy()
            self.at += array.nbytes
            self.layer.arrays.append(array)
            self.layer.tagged.append(kind == 0)
            return ncnn.Mat(array).clone()

    recorder = Recorder()
    with ncnn.Net() as net:
        if net.load_param(str(param)):
            raise RefusedError("ncnn does not load what pnnx makes of the model")
        for recorder.layer, layer in zip(layers, net.layers(), strict=True):
            if layer.load_model(recorder):
                raise RefusedError(f"ncnn does not load the weights of {recorder.layer.type} {recorder.layer.name}")
    if recorder.at != len(data):
        raise RefusedError(f"pnnx writes {len(data)} bytes of weights, of which ncnn reads {recorder.at}")
    return layers


def _parsed(words: list[str]) -> Layer:
    kind, name, reads, makes, *rest = words
    bottoms, rest = rest[: int(reads)], rest[int(reads) :]
    tops, rest = rest[: int(makes)], rest[int(makes) :]
    params = {int(key): value for key, value in (text.split("=", 1) for text in rest)}
    return Layer(kind, name, bottoms, tops, params)


def quantize(layer: Layer, weights: Any, data: Any) -> None:
    """Weights in int8, with the scales behind them that ncnn multiplies by.

    Args:
        layer: changed; its type is one of :data:`KINDS`.
        weights: inverse scales, float32, one for each output channel, or for each group of a ConvolutionDepthWise.
        data: that of the input, float32, an array of one.
    """
    import ncnn

    rows = layer.arrays[0].reshape(weights.size, -1)
    options = ncnn.Option()
    options.use_packing_layout = False
    made = ncnn.quantize_to_int8(ncnn.Mat(rows), ncnn.Mat(weights), options)
    layer.arrays[0] = np.array(made).reshape(-1).astype(np.int8)
    layer.arrays += [weights, data]
    layer.tagged += [False, False]
    layer.params[_TERM] = "1" if layer.type == "ConvolutionDepthWise" else "2"
    layer.data = data


def requantize(layers: list[Layer]) -> None:
    """Between quantized convolutions tensors are integers: the first of two gets the scale that the second reads by."""
    readers = {name: layer for layer in layers for name in layer.bottoms}
    for layer in layers:
        if layer.type not in _CONVOLUTIONS or not layer.quantized:
            continue
        reader = readers.get(layer.tops[0])
        after = [readers.get(name) for name in reader.tops] if reader and reader.type == "Split" else [reader]
        scales = [each.data for each in after if each and each.type in _CONVOLUTIONS and each.quantized]
        if len(scales) == len(after) and all(scale == scales[0] for scale in scales):
            layer.arrays.append(scales[0])
            layer.tagged.append(False)
            layer.params[_TERM] = str(int(layer.params[_TERM]) + _REQUANTIZED)


def write_layers(layers: list[Layer], param: Path, binary: Path) -> None:
    """Write the two files of a model."""
    blobs = {name for layer in layers for name in layer.tops}
    lines = [_MAGIC, f"{len(layers)} {len(blobs)}", *(layer.line() for layer in layers)]
    param.write_text("".join(f"{line}\n" for line in lines))
    with open(binary, "wb") as file:
        for layer in layers:
            for array, tagged in zip(layer.arrays, layer.tagged, strict=True):
                small = array.dtype == np.int8
                if tagged:
                    file.write((_INT8 if small else 0).to_bytes(4, "little"))
                file.write(array.tobytes() + bytes(-array.nbytes % 4))
