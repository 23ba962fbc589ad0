"""Every call of a torch function inside a module's forward pass, named alike each time, for a visitor to change.

No graph is traced: the module runs as it is, and a ``TorchFunctionMode`` sees the calls. What branches on data, loops
or is called twice works as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock, local
from types import FrameType
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils.hooks import RemovableHandle

from onnxq.errors import OptionError
from onnxq.torch.composites import parts_of

__all__ = [
    "IN_PLACE",
    "Insertion",
    "ModulePath",
    "Visitor",
    "map_tensors",
    "require_one_run",
    "require_seen",
    "tensors_of",
]

Tensor = torch.Tensor

IN_PLACE: dict[str, Callable[..., Any]] = {"add_": torch.add, "sub_": torch.sub, "mul_": torch.mul, "div_": torch.div}
"""Functions that change their first argument, with what computes the same into a new tensor."""

_SILENT = frozenset(
    {"__get__", "__set__", "__len__", "__bool__", "__int__", "__float__", "__index__", "__hash__", "__format__"}
    | {"__repr__", "__contains__", "dim", "size", "numel", "stride", "item", "tolist", "type", "data_ptr", "detach"}
    | {"is_floating_point", "is_complex", "requires_grad_", "backward", "register_hook", "numpy", "cpu", "cuda", "to"}
    | {"_is_view", "get_device", "is_contiguous", "storage", "storage_offset", "element_size", "nelement", "ndimension"}
)
"""Functions that ask about a tensor or move it: nothing to quantize."""

_ASK_GRADIENT = torch.Tensor.requires_grad.__set__  # type: ignore[attr-defined]


class Visitor(Protocol):
    """What is done at the calls."""

    def call(self, key: str, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call.

        Args:
            key: the call's name: the path of its module, the function, the line and the how manieth time.
            name: of the function.
            func: to run.
            args: of it.
            kwargs: of it.
        """


class ModulePath:
    """Which of a module's parts is running: hooks on each of them keep count, as long as this context is entered.

    Threads may enter it at the same time, each for its own run of the module: the first one in sets the hooks, which
    all share, and the last one out removes them.

    Args:
        module: gets the hooks.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self._hooks: list[RemovableHandle] = []
        self._entered = 0
        self._lock = Lock()
        self._own = local()

    def __getstate__(self) -> dict[str, Any]:
        """The module alone: no copy is being run."""
        return {"module": self.module}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __enter__(self) -> None:
        parts = dict(self.module.named_modules())
        for name, part in parts.items():
            require_seen(name, part, where="a prepared module")
        with self._lock:
            if not self._entered:
                for name, part in parts.items():
                    self._hooks.append(part.register_forward_pre_hook(partial(self._enter, name)))
                    self._hooks.append(part.register_forward_hook(self._leave, always_call=True))
            self._entered += 1
        self._stacks.append([""])

    def __exit__(self, *error: object) -> None:
        self._stacks.pop()
        with self._lock:
            self._entered -= 1
            if not self._entered:
                for hook in self._hooks:
                    hook.remove()
                self._hooks = []

    @property
    def current(self) -> str:
        """The path of the part that this thread is in."""
        return self._stacks[-1][-1]

    @property
    def _stacks(self) -> list[list[str]]:
        """Of this thread: for each run that it is in, the paths of the parts that are running."""
        found: list[list[str]] = self._own.__dict__.setdefault("stacks", [])
        return found

    def _enter(self, name: str, module: torch.nn.Module, args: Any) -> None:
        if self._stacks:  # else a run without quantizers, beside those of other threads
            self._stacks[-1].append(name)

    def _leave(self, module: torch.nn.Module, args: Any, result: Any) -> None:
        if self._stacks and len(self._stacks[-1]) > 1:
            self._stacks[-1].pop()


class Insertion(TorchFunctionMode):
    """Shows a visitor every call, one forward pass long.

    Args:
        path: of the modules.
        visitor: of the calls.
    """

    def __init__(self, path: ModulePath, visitor: Visitor) -> None:
        super().__init__()
        self.path, self.visitor = path, visitor
        self.counts: dict[str, int] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func == _ASK_GRADIENT and args[1] and args[0].requires_grad:
            return None  # a quantizer made it one that has a gradient: torch lets only leaves be asked for it
        if name in _SILENT:
            return func(*args, **kwargs)
        parts = parts_of(func, args, kwargs)
        if parts is not None:
            with self:
                return parts(*args, **kwargs)
        frame = sys._getframe(1)
        if frame.f_code.co_name == "handle_torch_function" and frame.f_back is not None and frame.f_back.f_back:
            frame = frame.f_back.f_back
        code = frame.f_code
        base = f"{self.path.current}|{name}|{code.co_name}+{frame.f_lineno - code.co_firstlineno}"
        count = self.counts.get(base, 0)
        self.counts[base] = count + 1
        return self.visitor.call(f"{base}#{count}", name, func, args, kwargs)


def require_seen(name: str, part: torch.nn.Module, *, where: str) -> None:
    """Refuse a part of a module whose calls are not those of its code.

    Raises:
        OptionError: it went through torch.jit or torch.compile.
    """
    scripted = isinstance(part, torch.jit.ScriptModule)
    if scripted or "_orig_mod" in part._modules or getattr(part, "_compiled_call_impl", None) is not None:
        way = "torch.jit" if scripted else "torch.compile"
        raise OptionError(
            f"module {name or 'root'!r} went through {way}: its calls are not seen",
            where=where,
            hint=f"Give the module as it was before {way}",
        )


def require_one_run(key: str) -> None:
    """Refuse a call that the backward pass makes again, when no visitor sees it.

    Raises:
        OptionError: it is inside ``torch.utils.checkpoint``.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == checkpoint.__file__:
            raise OptionError(
                "it runs inside torch.utils.checkpoint, which runs it again in the backward pass, without quantizers",
                where=f"module {key.split('|', 1)[0] or 'root'!r}",
                hint="Turn gradient checkpointing off",
            )
        frame = frame.f_back


def map_tensors(value: Any, change: Callable[[str, Tensor], Tensor], prefix: str) -> Any:
    """A structure of lists, tuples and tensors with each tensor changed.

    Args:
        value: the structure.
        change: (position, tensor) → tensor; a position is ``"1"``, or ``"0.2"`` inside a list.
        prefix: position of ``value``.
    """
    if isinstance(value, Tensor):
        return change(prefix, value)
    if type(value) in (list, tuple):
        return type(value)(map_tensors(v, change, f"{prefix}.{k}") for k, v in enumerate(value))
    return value


def tensors_of(value: Any) -> list[Tensor]:
    """Tensors of a result, in the order in which the exporter names them."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [tensor for part in value for tensor in tensors_of(part)] if isinstance(value, (list, tuple)) else []
