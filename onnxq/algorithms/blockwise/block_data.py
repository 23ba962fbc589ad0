"""What enters and leaves a block: from the quantized model as it is now, and from the float model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.algorithm import Draft
from onnxq.algorithms.blockwise.blocks import Block
from onnxq.calibration.roles import spread
from onnxq.calibration.statistics import KeptSample
from onnxq.calibration.taps import tap
from onnxq.ort.session import open_anyhow

if TYPE_CHECKING:
    from onnxq.torch.fit import Samples

__all__ = ["UnobservableError", "samples_of"]

Array = NDArray[Any]

_BUDGET = 1 << 30
"""Bytes of a block's inputs and outputs that are held at a time; fewer samples are taken where they need more."""
_LEAST_SAMPLES = 2


class UnobservableError(Exception):
    """The tensors of a block cannot be had; never leaves :mod:`onnxq.algorithms`."""


def samples_of(draft: Draft, block: Block) -> tuple[Samples, Samples]:
    """What enters and leaves a block, on the samples to learn from and on those that judge.

    Raises:
        UnobservableError: it cannot be had, or has positions in the quantized model that the float model has not.
    """
    from onnxq.torch.fit import Samples

    tensors = [*block.inputs, block.output]
    need = sum(4 * draft.sizes.get(name, 1 << 20) * (2 if name != block.output else 1) for name in tensors)
    room = max(_BUDGET // max(need, 1) // 2, _LEAST_SAMPLES)
    found = []
    for samples in (draft.fitting, draft.held):
        some = spread(samples, room)
        exact = list(_tensors(draft, draft.reference, tensors, some))
        given = list(_tensors(draft, draft.quantized().fake_quantize(), block.inputs, some))
        usable = [i for i, (row, other) in enumerate(zip(exact, given, strict=True)) if _usable(row, other)]
        if not usable:
            raise UnobservableError("its input or output is not finite or never computed")
        if any(exact[i][n].shape != given[i][n].shape for i in usable for n in block.inputs):
            raise UnobservableError("its input has another shape once quantized")
        inputs = [given[i] for i in usable]
        floats = [{n: exact[i][n] for n in block.inputs} for i in usable]
        found.append(Samples.of(inputs, floats, [exact[i][block.output] for i in usable]))
    return found[0], found[1]


def _usable(exact: Mapping[str, Array], given: Mapping[str, Array]) -> bool:
    """Whether a sample gives a block finite numbers in the float model, and some in the quantized model."""
    finite = all(np.isfinite(a).all() for a in exact.values() if a.dtype.kind == "f")
    return finite and all(a.size for a in (*exact.values(), *given.values()))


def _tensors(
    draft: Draft, model: ir.Model, tensors: Sequence[str], samples: Sequence[KeptSample]
) -> Iterator[dict[str, Array]]:
    """Tensors of a model, sample by sample; what is fed is taken as it is, and what might be has its default."""
    fed = {value.name for value in model.graph.inputs}
    defaults = {v.name or "": v.const_value.numpy() for v in model.graph.inputs if v.const_value is not None}
    wanted = [name for name in tensors if name not in fed]
    shown: Mapping[str, str] = {}
    session = None
    if wanted:
        tapped = tap(model, wanted, keep_outputs=False)
        for name, reason in tapped.unobservable.items():
            raise UnobservableError(f"tensor {name!r} cannot be observed: {reason}")
        shown = tapped.outputs
        options = draft.options
        session = open_anyhow(tapped.model, **options.session)
    for sample in samples:
        given = {**defaults, **sample.feeds}
        found = {name: np.asarray(given[name]) for name in tensors if name in fed}
        if session is not None:
            got = session.run(session.taken(sample.feeds), list(set(shown.values())))
            found.update({name: got[output] for name, output in shown.items()})
        yield found
