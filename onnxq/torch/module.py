"""A user's module with fake-quantizers at its calls."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from onnxq.backend import Backend
from onnxq.errors import ModelError, OptionError
from onnxq.plan import Plan
from onnxq.torch.biases import folded_bias_error, rounded_bias
from onnxq.torch.composites import BETWEEN, opened_between
from onnxq.torch.eager import eagerly
from onnxq.torch.insertion import IN_PLACE, Insertion, ModulePath, map_tensors, require_one_run
from onnxq.torch.kept import Kept
from onnxq.torch.mapped import BiasRule, Mapped, Spot
from onnxq.torch.mapping import LAYERS
from onnxq.torch.marks import changes_first
from onnxq.torch.nodes import is_exporting
from onnxq.torch.quantizers import Quantizer
from onnxq.torch.wrapped import unwrapped

__all__ = ["QuantizedModule", "require_prepared"]

Tensor = torch.Tensor
Args = tuple[Any, ...]


class QuantizedModule(Kept):
    """A module whose calls are quantized as a target's plan says.

    Attributes:
        module: the user's.
        quantizers: by name; what the name says is the first tensor that each of them quantizes.
        target: what it was prepared for.
        plan: the target's plan of the example's graph.
        example: the inputs that it was prepared with, their values left out.
        left: node → why it stays float although the target would quantize it.
        notes: what deploying does to the graph for the target, and the module does not: where an operator becomes
            another one, the deployed file computes something else than the module to that extent.
        active: quantizers work; else the module runs as it was.
        round_biases: biases are rounded to whole units of data scale times weight scale, as the target stores them.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        target: Backend,
        mapped: Sequence[Mapped],
        make: Callable[[Spot], Quantizer],
        path: ModulePath,
        example: Args,
    ) -> None:
        super().__init__()
        self.module, self.target = module, target
        self.example: Args = map_tensors(example, lambda _, x: x.new_empty(0), "")
        self.plan: Plan = mapped[0].plan
        self.left = {name: why for m in mapped for name, why in m.left.items()}
        self.notes = tuple(dict.fromkeys(note for m in mapped for note in m.notes))
        self.quantizers = torch.nn.ModuleDict()
        self.active = self.round_biases = True
        self._path = path
        self._calls = {call for m in mapped for call in m.calls}
        self._at: dict[str, dict[str, str]] = {}
        self._biases = {rule.call: rule for m in mapped for rule in m.biases}
        self._norms = {rule.norm: rule for rule in self._biases.values() if rule.norm is not None}
        self._unknown: set[str] = set()
        self._trained_once = False
        for part in mapped:
            for spot in part.spots:
                self._add(spot, make)

    def __getattr__(self, name: str) -> Any:
        """What is found otherwise; of what only the user's module has, where it is."""
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            own = self.__dict__.get("_modules", {}).get("module")
            if own is None or name.startswith("__") or not hasattr(own, name):
                raise
            raise AttributeError(
                f"{error}; {type(own).__name__} has it: .module.{name}, without quantizers where it runs layers"
            ) from None

    @eagerly
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The user's module, quantized."""
        if not self.active:
            return self.module(*args, **kwargs)
        with self._path, Insertion(self._path, _Run(self)):
            result = self.module(*args, **kwargs)
        self._trained_once = self._trained_once or self.training
        return result

    @contextmanager
    def set(self, **values: bool) -> Iterator[None]:
        """Attributes with other values for a while."""
        before = {name: getattr(self, name) for name in values}
        for name, value in values.items():
            setattr(self, name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def _add(self, spot: Spot, make: Callable[[Spot], Quantizer]) -> None:
        known = {self._at.get(p.call, {}).get(p.position) for p in spot.places} - {None}
        if len(known) > 1:
            raise ModelError(
                "two examples tie different quantizers",
                where=spot.places[0].call,
                hint="Prepare with fewer examples",
            )
        name = known.pop() if known else None
        if name is None:
            first = spot.places[0]
            path, function, _ = first.call.split("|", 2)
            part = "output" if first.position.startswith("out") else "weight" if spot.weight else "input"
            part = BETWEEN if first.position == BETWEEN else part
            base = "_".join(filter(None, [path.replace(".", "_"), function.strip("_"), part]))
            name, count = base, 1
            while name in self.quantizers:
                count += 1
                name = f"{base}_{count}"
            self.quantizers[name] = made = make(spot)
            made.name = name
        for place in spot.places:
            self._at.setdefault(place.call, {})[place.position] = name


class _Run:
    """One forward pass: quantizers at the places that the plan found."""

    def __init__(self, owner: QuantizedModule) -> None:
        self.owner = owner
        self.at, self.quantizers = owner._at, owner.quantizers
        self.biases: dict[str, Tensor | None] = {}
        self.known = WeakTensorKeyDictionary()
        self.looking = owner.training and not owner._trained_once

    def call(self, key: str, name: str, func: Callable[..., Any], args: Args, kwargs: dict[str, Any]) -> Any:
        """See :meth:`onnxq.torch.insertion.Visitor.call`."""
        owner = self.owner
        spots = self.at.get(key)
        if self.looking and spots is not None:
            require_one_run(key)
        rule = owner._biases.get(key) if owner.round_biases else None
        if rule is not None:
            args, kwargs = self._with_rounded_bias(rule, args, kwargs)
        norm = owner._norms.get(key) if owner.round_biases and name == "batch_norm" else None
        if norm is not None and norm.call in self.biases and not self._watching(norm.call):
            func = self._with_bias_error(func, norm)
        if spots is None:
            if key not in owner._calls and key not in owner._unknown:
                self._unknown(key, name)
            return func(*args, **kwargs)
        return self._quantized(spots, name, func, args, kwargs)

    def _with_rounded_bias(self, rule: BiasRule, args: Args, kwargs: dict[str, Any]) -> tuple[Args, dict[str, Any]]:
        """Arguments of a layer with its bias rounded, which is remembered as it was."""

        def rounded(position: str, x: Tensor) -> Tensor:
            if position != rule.position:
                return x
            self.biases[rule.call] = x
            if rule.norm is not None or self._watching(rule.call):
                return x
            return rounded_bias(x, self._scale(rule.data), self._scale(rule.weight))

        self.biases[rule.call] = None
        return (
            tuple(map_tensors(a, rounded, str(k)) for k, a in enumerate(args)),
            {k: map_tensors(a, rounded, k) for k, a in kwargs.items()},
        )

    def _with_bias_error(self, func: Callable[..., Any], norm: BiasRule) -> Callable[..., Any]:
        """A batch normalization whose output is that of the folded layer, its bias rounded, before it is quantized."""

        def call(*args: Any, **kwargs: Any) -> Any:
            data, weight = self._scale(norm.data), self._scale(norm.weight)
            return folded_bias_error(func(*args, **kwargs), args, kwargs, self.biases[norm.call], data, weight)

        return call

    def _quantized(
        self, spots: Mapping[str, str], name: str, func: Callable[..., Any], args: Args, kwargs: dict[str, Any]
    ) -> Any:
        changed = changes_first(name, args, kwargs)
        first = args[0] if changed and args else None

        def quantize(position: str, x: Tensor) -> Tensor:
            found = spots.get(position)
            return x if found is None else self._through(found, x)

        if BETWEEN in spots:
            func = opened_between(name, args, quantize) or func
        before = tuple(map_tensors(a, quantize, str(k)) for k, a in enumerate(args))
        rest = {k: map_tensors(a, quantize, k) for k, a in kwargs.items()}
        if first is not None and before[0] is not first:
            if name not in IN_PLACE:
                raise ModelError(f"{name!r} changes the tensor that is quantized", hint="Use a function that does not")
            result = IN_PLACE[name](*before, **rest)
            if is_exporting() or not torch.onnx.is_in_onnx_export():  # TorchScript's would lose the call
                first.copy_(result)
        else:
            result = func(*before, **rest)
        return map_tensors(result, quantize, "out")

    def _through(self, name: str, x: Tensor) -> Tensor:
        """Through a quantizer; a tensor that several calls read is quantized once."""
        quantizer = self.quantizers[name]
        if isinstance(x, torch.nn.Parameter) or not x.is_floating_point() or x.is_inference():
            return quantizer(x)  # type: ignore[no-any-return]  # tensors of inference_mode count no changes
        known = self.known.get(x)
        if known is not None and known[:2] == (quantizer, x._version):
            return known[2]  # type: ignore[no-any-return]
        result: Tensor = quantizer(x)
        if result is not x:
            self.known[x] = (quantizer, x._version, result)
        return result

    def _scale(self, place: Any) -> Tensor:
        quantizer = self.quantizers[self.at[place.call][place.position]]
        assert isinstance(quantizer, Quantizer)
        with torch.no_grad():
            return quantizer.numbers()[0]

    def _watching(self, key: str) -> bool:
        rule = self.owner._biases[key]
        quantizer = self.quantizers[self.at[rule.data.call][rule.data.position]]
        return bool(quantizer.watching)

    def _unknown(self, key: str, name: str) -> None:
        """Say once that a layer runs in float which the examples did not reach."""
        self.owner._unknown.add(key)
        if name in LAYERS:
            path, function, line = key.split("|", 2)
            warnings.warn(
                f"onnxq: {function} at {line} of module {path or 'root'!r} was not reached by the examples given to "
                "prepare and runs in float; give 'more_examples' that reach it",
                stacklevel=2,
            )


def require_prepared(module: torch.nn.Module) -> QuantizedModule:
    """The module as the kind that :func:`prepare` gives, taken out of what wraps it.

    Raises:
        OptionError: it is another.
    """
    found = unwrapped(module, QuantizedModule)
    if found is None:
        raise OptionError(f"{type(module).__name__} is not prepared", hint="Give what onnxq.torch.prepare returned")
    return found
