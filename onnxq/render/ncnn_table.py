"""The calibration table of ncnn: inverse scales by layer.

``<layer>_param_0 s0 s1 ...`` for the weights of every layer, then ``<layer> s`` for every layer's input; ``s`` is 1
over our scale, written with 17 digits, so that the float32 scale is read back bit for bit. ncnn2int8 reads what is
before the first blank as the key, up to 255 characters, and takes any key with ``_param_`` in it for weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnxq.errors import BackendError
from onnxq.render.tables import read_lines

__all__ = ["read_table", "table_text"]

_WEIGHTS = "_param_0"


def table_text(weights: Mapping[str, Sequence[float]], inputs: Mapping[str, float]) -> str:
    """The text of a table.

    Args:
        weights: layer → scales of its weights.
        inputs: layer → scale of its input.
    """
    lines = [" ".join([f"{name}{_WEIGHTS}", *(repr(1.0 / s) for s in scales)]) for name, scales in weights.items()]
    lines += [f"{name} {1.0 / scale!r}" for name, scale in inputs.items()]
    return "".join(f"{line}\n" for line in lines)


def read_table(path: Path) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Scales of weights and of inputs, by layer.

    Raises:
        BackendError: there is no such table, a line is of another form, or a layer has one of the two lines only.
    """
    weights: dict[str, list[float]] = {}
    inputs: dict[str, float] = {}
    for line in read_lines(path):
        key, *texts = line.split()
        try:
            numbers = [1.0 / float(text) for text in texts]
        except (ValueError, ZeroDivisionError) as error:
            raise BackendError(f"a line of the table has no scales: {line[:80]!r}", where=f"'{path}'") from error
        if key.endswith(_WEIGHTS) and numbers:
            weights[key.removesuffix(_WEIGHTS)] = numbers
        elif len(numbers) == 1:
            inputs[key] = numbers[0]
        else:
            raise BackendError(f"layer {key!r} has {len(numbers)} input scales, not one", where=f"'{path}'")
    if odd := weights.keys() ^ inputs.keys():
        names = ", ".join(map(repr, sorted(odd)))
        raise BackendError(f"layers with only one of their two lines: {names}", where=f"'{path}'")
    return weights, inputs
