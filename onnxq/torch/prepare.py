"""Quantization-aware training in the user's own module and loop.

Three lines are added to a training script::

    import onnxq.torch
    model = onnxq.torch.prepare(model, (images,), backend="onnxruntime", batches=loader)
    ...  # the loop as it was, its optimizer made of model.parameters()
    onnxq.torch.export(model, "model.onnx", (images,))

and ``onnxq deploy model.onnx --backend onnxruntime`` writes the artifact. Batch normalizations stay as they are while
training, and fold into the quantized weights when the model is deployed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from onnxq.backend import Backend
from onnxq.backend_choice import backend_named
from onnxq.errors import DataError, ModelError, OnnxqError, OptionError
from onnxq.options import Options
from onnxq.torch.exporter import in_evaluation, in_float32, to_onnx
from onnxq.torch.faithful import tell_of_unfaithful
from onnxq.torch.feeding import example_of, fed
from onnxq.torch.finite import require_float32
from onnxq.torch.insertion import Insertion, ModulePath, map_tensors, require_seen, tensors_of
from onnxq.torch.maker import Maker
from onnxq.torch.mapped import Mapped, Spot
from onnxq.torch.mapping import map_plan
from onnxq.torch.marks import Marker
from onnxq.torch.module import QuantizedModule, require_prepared
from onnxq.torch.quantizers import Quantizer
from onnxq.torch.untrained import told_of_untrained

__all__ = ["OPSET", "calibrate", "prepare"]

Tensor = torch.Tensor
Args = tuple[Any, ...]
OPSET = 17
"""Of the graphs that are planned and exported; deploying raises it where a target needs more."""


def prepare(
    module: torch.nn.Module,
    example_inputs: Tensor | Args | Mapping[str, Any],
    *,
    backend: str = "onnxruntime",
    options: Options | None = None,
    weight_quantizer: str | None = None,
    act_quantizer: str | None = None,
    weight_observer: str = "mse",
    act_observer: str = "ema_mse",
    more_examples: Sequence[Tensor | Args | Mapping[str, Any]] = (),
    batches: Iterable[Any] | None = None,
    most: int | None = 16,
    dynamo: bool = False,
) -> QuantizedModule:
    """A module that trains as the target will compute it.

    The module is exported once, the target's plan of that graph says what is quantized how, and fake-quantizers are put
    at the calls that the plan's sites come from. The module is not copied: its parameters are the ones trained. Its
    code is not changed or traced either, so it may branch on data.

    Args:
        module: the user's; batch normalizations stay.
        example_inputs: of its forward, on its device: a tuple of them, a dictionary of arguments by name, or the tensor
            where there is one.
        backend: name of the target.
        options: bits, symmetry, granularity, exclusions; every operator that the target quantizes is, as in
            :func:`onnxq.deploy`.
        weight_quantizer: how weights are trained, see :data:`onnxq.torch.quantizers.QUANTIZERS`, with parameters as in
            ``"qdrop:drop=0.3"``; ``"lsq"``, or ``"logarithmic"`` where the target's grid is, if None.
        act_quantizer: how activations are.
        weight_observer: how the range of a weight is found that training starts with, see
            :data:`onnxq.torch.observers.OBSERVERS`.
        act_observer: how that of an activation is.
        more_examples: further inputs, that reach other branches of the code.
        batches: to find the scales with that training starts from, see :func:`calibrate`, which it is left to where
            they are None.
        most: at most this many of them.
        dynamo: export it by torch's newer exporter, see :func:`onnxq.torch.export`; code must not branch on data then.

    Returns:
        The module with quantizers, to be calibrated before training where no batches were given.

    Raises:
        DataError: the batches are not what :func:`calibrate` takes.
        ModelError: torch cannot export the module, or the target quantizes nothing of it.
        OptionError: an unknown name, a combination that training cannot express, or onnxscript is not installed.
        VerificationError: the module gives more than tensors.
    """
    if isinstance(module, QuantizedModule):
        raise OptionError("the module is prepared already", where="prepare")
    _require_plain(module)
    target = backend_named(backend)
    weights, activations = (
        Maker(quantizer, observer, target.name)
        for quantizer, observer in ((weight_quantizer, weight_observer), (act_quantizer, act_observer))
    )
    path = ModulePath(module)
    examples = [example_of(given, module) for given in (example_inputs, *more_examples)]
    mapped_of = partial(_mapped, module, target=target, options=Options.of(options), path=path, dynamo=dynamo)
    mapped = list(map(mapped_of, examples))

    def make(spot: Spot) -> Quantizer:
        maker = weights if spot.weight else activations
        return maker.make(spot.spec, spot.channels, weight=spot.weight, fixed=spot.fixed, shape=spot.shape)

    made = QuantizedModule(module, target, mapped, make, path, examples[0])
    _tell_of_weights(mapped, target)
    made.train(module.training)
    place = next(iter(module.parameters()), None)
    if place is not None:
        made.to(place.device)
    if batches is not None:
        calibrate(made, batches, most=most)
    return made


def _require_plain(module: torch.nn.Module) -> None:
    """Refuse what no exporter takes, or gives in a form that no target quantizes."""
    for name, part in module.named_modules():
        if isinstance(part, QuantizedModule):
            raise OptionError(
                f"module {name!r} is prepared already",
                where="prepare",
                hint="Prepare the whole as it was before, once",
            )
        require_seen(name, part, where="prepare")
    require_float32(module, where="prepare")


def _mapped(
    module: torch.nn.Module, example: Args, target: Backend, options: Options, path: ModulePath, dynamo: bool
) -> Mapped:
    marker = Marker()
    marking = _Marking(module, path, marker)
    wanted = _look(marking if dynamo else module, example, of=type(module).__name__)
    proto = to_onnx(marking, example, opset=OPSET, of=type(module).__name__, dynamo=dynamo)
    tell_of_unfaithful(proto, example, wanted, of=type(module).__name__)
    found = map_plan(proto, marker, target, options)
    if found.refolded:
        raise OptionError(
            f"{target.name} holds no weight scale that a batch normalization could fold into, at {found.refolded[0]!r}",
            where="prepare",
            hint=_folding(proto, found.refolded[0]),
        )
    return found


def _folding(proto: Any, name: str) -> str:
    """How a user folds the batch normalization behind a layer, or keeps that in float."""
    transposed = [n for n in proto.graph.node if n.name == name and n.op_type == "ConvTranspose"]
    groups = [a.i for n in transposed for a in n.attribute if a.name == "group" and a.i > 1]
    kept = f"Keep it in float: Options(exclude=[{name!r}])"
    if groups:
        return f"{kept}. torch folds none into a transposed convolution in groups"
    more = ", transpose=True" if transposed else ""
    return f"Fold batch normalizations before training: torch.nn.utils.fuse_conv_bn_eval(conv, norm{more})"


def _tell_of_weights(mapped: Sequence[Mapped], target: Backend) -> None:
    """Warn of weights that stay float although the target would quantize them."""
    lost = {name: m.left[name] for m in mapped for name in m.weights}
    if lost:
        first = next(iter(lost))
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        warnings.warn(
            f"onnxq: weights of {first!r}{more} train and deploy in float, though {target.name} would quantize them: "
            f"{lost[first]}; the prepared module's 'left' has all reasons",
            stacklevel=3,
        )


def _look(module: torch.nn.Module, example: Args, *, of: str) -> list[Tensor]:
    """What a module gives in evaluation mode; with marks for what is noted on the way, with values at hand.

    Raises:
        ModelError: it does not run on the example.
    """
    with in_evaluation(module), in_float32():
        try:
            return tensors_of(module(*map_tensors(list(example), lambda _, x: x.clone(), "")))
        except OnnxqError:
            raise
        except Exception as error:  # the user's code raises what it likes
            raise ModelError(
                f"it does not run on the example ({type(error).__name__}: {error})",
                where=f"module {of}",
                hint="Give what its forward takes and no more, labels say, of the right types and on its device",
            ) from error


class _Marking(torch.nn.Module):
    def __init__(self, module: torch.nn.Module, path: ModulePath, marker: Marker) -> None:
        super().__init__()
        self.module, self.path, self.marker = module, path, marker

    def forward(self, *args: Any) -> Any:
        with self.path, Insertion(self.path, self.marker):
            return self.module(*args)


def calibrate(module: torch.nn.Module, batches: Iterable[Any], *, most: int | None = None) -> None:
    """Find the scales that training starts with, by running batches in evaluation mode.

    Args:
        module: prepared; its mode is left as it was.
        batches: tensors; or tuples and lists that begin with the inputs, as many as in the example that the module was
            prepared with (labels may follow, as a ``DataLoader`` gives them), or with a tuple of them; or dictionaries
            of keyword arguments. Arrays of NumPy are taken like tensors.
        most: at most this many batches.

    Raises:
        DataError: there is no batch, one has fewer inputs than the example, a tensor is not finite, or no batch reaches
            a quantizer.
        OptionError: the module is not prepared.
    """
    prepared = require_prepared(module)
    device = next((p.device for p in prepared.parameters()), torch.device("cpu"))
    quantizers = prepared.observing()
    for _, quantizer in quantizers:
        quantizer.begin()
    count = 0
    try:
        with in_evaluation(prepared):
            with torch.no_grad(), told_of_untrained(prepared.module):
                for batch in batches:
                    if most is not None and count >= most:
                        break
                    args, named = fed(batch, prepared.example, device)
                    prepared(*args, **named)
                    count += 1
            if not count:
                raise DataError("there are no batches", where="calibrate")
            for name, quantizer in quantizers:
                quantizer.settle(f"quantizer {name!r}")
    finally:
        for _, quantizer in quantizers:
            quantizer.end()
