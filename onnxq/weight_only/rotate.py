"""Rotation before weights are rounded: no channel stands out in a block then, see :mod:`onnxq.algorithms.rotate`.

The float model computes what it did. Where some channels of what the blocks of a transformer add to are far larger than
the others, rounding to few bits costs less behind it; where none are, it costs more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from onnxq.algorithms.channels.rotation import rotation
from onnxq.algorithms.channels.streams import Stream, find_streams, turn
from onnxq.calibration.moved import Move
from onnxq.console.terminal import plural
from onnxq.errors import OptionError
from onnxq.graph.lookup import Lookup
from onnxq.measuring.rescaled import mark_rescaled
from onnxq.weight_only.find import Matrix

__all__ = ["rotate"]

_MOST_BYTES = 2**31
"""Of weights turned: they are held in memory, while others are read from their files one at a time."""


def rotate(model: ir.Model, matrices: Sequence[Matrix], seed: int = 0, most_bytes: int = _MOST_BYTES) -> str:
    """Turn the channels between the layers of a model, which goes on computing the same.

    Args:
        model: changed in place; its values stay those that they are.
        matrices: to be rounded; only what they read or make is turned.
        seed: of the rotations.
        most_bytes: of the weights that may be turned.

    Returns:
        What was done.

    Raises:
        OptionError: their weights take more.
    """
    rounded = {node.name for matrix in matrices if matrix.multiplied for node in matrix.nodes}
    streams = [s for s in find_streams(model) if not rounded.isdisjoint((*s.writers, *s.readers))]
    lookup = Lookup(model)
    size = sum(tensor.nbytes for tensor in _weights(lookup, streams))
    if size > most_bytes:
        raise OptionError(
            f"the weights to turn take {size / 2**30:.1f} GB, all of which would be held in memory",
            where="rotate",
            hint=f"Leave rotate=true out; it takes up to {most_bytes / 2**30:g} GB",
        )
    for number, stream in enumerate(streams):
        random = np.random.default_rng((seed, number))
        chosen = rotation(stream.size, random, keeps_mean=stream.centred)
        turn(lookup, stream, chosen)
        move = partial(Move, rotation=chosen.digest())
        mark_rescaled(model, {name: move(name) for name in stream.tensors})
    if not streams:
        return "rotate: nothing turned, no weights to round with only linear operators or normalizations between them"
    layers = {name for stream in streams for name in (*stream.writers, *stream.readers)}
    return f"rotate: the channels of {plural(len(streams), 'place')} turned ({plural(len(layers), 'layer')})"


def _weights(lookup: Lookup, streams: Sequence[Stream]) -> list[ir.TensorProtocol]:
    """The weights of the layers of streams, and what is added or picked from."""
    places = {(name, 1) for stream in streams for name in (*stream.writers, *stream.readers)}
    places |= {(name, index) for stream in streams for name, index, _ in stream.constants}
    values = {lookup.nodes[name].inputs[index] for name, index in places}
    return [value.const_value for value in values if value is not None and value.const_value is not None]
