"""Rotation: turn the channels between linear layers, so that no weight and no channel stands out.

``W2 (W1 x + b) = (W2 R') (R W1 x + R b)`` for an orthogonal R, whatever is added in between, if it is turned as well. A
random R makes weights and values nearly normally distributed, whose extremes are few deviations away, so that grids
become finer (Chee et al., QuIP: 2-Bit Quantization of Large Language Models With Guarantees, 2023, section 4; Ashkboos
et al., QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs, 2024, section 4). Nothing is left of it at run time.

It takes tensors that only linear layers and residual Adds touch (see :mod:`onnxq.algorithms.channels.streams`), as the
bottlenecks of MobileNetV2 and EfficientNet are, and what the blocks of a transformer add to where they normalize what
they read. No rotation passes an activation, nor a normalization whose result is added to, as in BERT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from onnxq.algorithm import FloatDraft
from onnxq.algorithms.channels.channel_noise import Specs, weight_error
from onnxq.algorithms.channels.rotation import Rotation, rotation
from onnxq.algorithms.channels.streams import Stream, quantized_streams, turn, turned_weights
from onnxq.algorithms.common.keep_what_helps import keep_what_helps
from onnxq.calibration.moved import Move
from onnxq.errors import OptionError
from onnxq.plan import Plan
from onnxq.planning.placement import elements

__all__ = ["HELP", "NAME", "PARAMETERS", "STAGE", "TITLE", "Turning", "apply", "check", "turnings"]

NAME = "rotate"
TITLE = "turn the channels between linear layers so that no weight and no channel stands out"
STAGE = "float"
PARAMETERS: Mapping[str, object] = {"tries": 4}
HELP: Mapping[str, str] = {
    "tries": "random rotations to choose from, by the error of the rounded weights, 1 or more",
}
_MOST = 1 << 34
"""Multiply-accumulates to try a rotation by. On all layers of a ViT-B four took 13.7 s of one thread, on this part of
them 3.0 s; which of the four is taken may differ."""


@dataclass(frozen=True, slots=True, eq=False)
class Turning:
    """One stream, and how it is turned."""

    stream: Stream
    rotation: Rotation

    def apply(self, draft: FloatDraft) -> dict[str, Move]:
        """Do it."""
        turn(draft.lookup(), self.stream, self.rotation)
        digest = self.rotation.digest()
        return {name: Move(name, rotation=digest) for name in self.stream.tensors}


def check(tries: int) -> None:
    """See :func:`apply`.

    Raises:
        OptionError: there is nothing to choose from.
    """
    if tries < 1:
        raise OptionError(f"{tries!r} is below 1", where="algorithm rotate, tries")


def apply(draft: FloatDraft, tries: int = 4) -> None:
    """Turn the channels between linear layers, and undo what does not help on samples held back.

    Args:
        draft: changed in place.
        tries: random rotations of each stream, of which the one is taken that leaves the weights before and behind the
            least error, each relative to its own.
    """
    if not draft.statistics.kept:
        draft.notes.append(f"{NAME}: nothing done, the statistics hold no samples")
        return
    plan = draft.plan()
    streams = quantized_streams(draft.model, plan)
    if not streams:
        draft.notes.append(f"{NAME}: nothing done, no quantized layers with only linear operators between them")
        return
    outcome = keep_what_helps(draft, turnings(draft, streams, plan, tries))
    kept = [streams[index] for index in outcome.kept]
    said = f"{NAME}: {len(kept)} of {len(streams)} places turned"
    if kept:
        layers = {name for stream in kept for name in (*stream.writers, *stream.readers)}
        said += f" ({len(layers)} layers), outputs {outcome.before:.2f} dB to {outcome.after:.2f} dB"
    if len(kept) < len(streams):
        said += f"; {len(streams) - len(kept)} undone, no gain on samples held back"
    draft.notes.append(said)


def turnings(draft: FloatDraft, streams: Sequence[Stream], plan: Plan, tries: int = 4) -> list[Turning]:
    """A rotation for each of some streams, not made yet.

    Args:
        draft: left as it is.
        streams: of its model.
        plan: of its model.
        tries: random rotations to choose from, see :func:`apply`.
    """
    specs, nodes = Specs(plan), draft.lookup().nodes
    found = []
    for number, stream in enumerate(streams):
        random = np.random.default_rng((draft.options.seed, number))
        tried = (rotation(stream.size, random, keeps_mean=stream.centred) for _ in range(tries))
        shown = _a_part(nodes, stream)
        found.append(Turning(stream, min(tried, key=partial(_error, nodes, shown, specs=specs))))
    return found


def _a_part(nodes: Mapping[str, ir.Node], stream: Stream) -> Stream:
    """A stream with as many of its layers, spread evenly, as are turned quickly; most streams are left as they are."""
    layers = [nodes[name].inputs[1] for name in (*stream.writers, *stream.readers)]
    macs = stream.size * sum(elements(weight) for weight in layers if weight is not None)
    if macs <= _MOST:
        return stream
    step = -(-macs // _MOST) | 1  # an odd number comes upon all layers of a block, which mostly are 2 or 4
    return replace(stream, writers=stream.writers[::step], readers=stream.readers[::step])


def _error(nodes: Mapping[str, ir.Node], stream: Stream, turned: Rotation, specs: Specs) -> float:
    """Log of the error of the rounded weights before and behind a stream that is turned, summed over the layers."""
    total = 0.0
    for node, weight in turned_weights(nodes, stream, turned):
        error = weight_error(weight, specs.of(node, 1))
        if error is not None:
            total += float(np.log(max(np.square(error, dtype=np.float64).sum(), 1e-300)))
    return total
