"""From a trained module back to a quantized model."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir
import torch

from onnxq.errors import OptionError
from onnxq.given.fitted import fit_to_target
from onnxq.graph.files.save import file_size
from onnxq.graph.shapes import forget_shapes
from onnxq.graph.traverse import all_constants
from onnxq.measuring.final_check import first_look
from onnxq.numbers import fit_biases
from onnxq.quantized import Quantized
from onnxq.torch.finite import require_finite
from onnxq.torch.graph_module import GraphModule
from onnxq.torch.wrapped import unwrapped

__all__ = ["loaded"]


def loaded(quantized: Quantized, module: torch.nn.Module) -> Quantized:
    """A quantized model with the weights, biases, scales and zero points that a module has now.

    Args:
        quantized: what the module was made of, or the same model with the same plan; left unchanged.
        module: of :meth:`onnxq.Quantized.torch`, or what wraps it, see :func:`onnxq.torch.wrapped.unwrapped`.

    Raises:
        OptionError: it is another module, or of another model, or its training has diverged.
        VerificationError: onnxruntime does not run the result.
    """
    given = unwrapped(module, GraphModule)
    if given is None:
        raise OptionError(f"{type(module).__name__} is not a quantized model's module", hint="Give what torch() gave")
    model = quantized.model.clone()
    constants = all_constants(model)
    arrays = given.arrays()
    same = all(name in constants and tuple(constants[name].shape or ()) == a.shape for name, a in arrays.items())
    if not same or given.source.plan.sites != quantized.plan.sites:
        raise OptionError(
            "the module belongs to another model", where="load_torch", hint="Give what this model's torch() gave"
        )
    require_finite(given, where="load_torch")
    for name, array in arrays.items():
        constants[name].const_value = ir.tensor(array, name=name)
    numbers = {**quantized.qparams, **given.numbers()}
    fit_biases(model, quantized.plan, numbers)
    own = {s.name for s in quantized.plan.sites if s.role == "bias" and s.factors is None}
    numbers |= {name: qp for name, qp in given.numbers().items() if name in own}
    notes = (*quantized.notes, *fit_to_target(model, quantized.plan, numbers, quantized.backend))
    recipe = tuple(dict.fromkeys((*quantized.recipe, "torch")))
    made = replace(quantized, model=model, qparams=numbers, notes=notes, verification=None, recipe=recipe, files=())
    result = made.rendered()
    forget_shapes(result)
    size, home = file_size(model), quantized.backend.at_home
    return replace(made, verification=first_look(model, result, (), float_bytes=size, at_home=home).completed())
