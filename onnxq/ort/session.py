"""The one place that opens onnxruntime: options, providers, custom-op libraries, errors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from onnxq.errors import ExecutionError, ModelError, OptionError
from onnxq.ort.feeds_refused import about_feeds
from onnxq.ort.fp4_in_float import in_float
from onnxq.ort.hand_over import hand_over
from onnxq.ort.inputs import InputInfo
from onnxq.ort.messages import first_line, load_error
from onnxq.ort.raw_types import RAW_TYPES, to_array, to_value

__all__ = ["PRECISE", "Session", "available_providers", "open_anyhow", "require_library"]

_NUMPY_TYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
    **{f"tensor({sign}int{bits})": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_NUMPY_TYPES.update({f"tensor({ir.DataType(number).name.lower()})": kind for number, kind in RAW_TYPES.items()})

PRECISE = "session.x64quantprecision"
"""The session option with which integer kernels of x86 processors sum exactly, see :mod:`onnxq.measuring.overflow`."""


def available_providers() -> list[str]:
    """Execution providers of the installed onnxruntime, e.g. ``["CPUExecutionProvider"]``."""
    return [str(name) for name in ort.get_available_providers()]


class Session:
    """A model loaded in onnxruntime.

    One with 4-bit floating-point numbers, of which onnxruntime has no kernels, is run in simulation, see
    :mod:`onnxq.ort.fp4_in_float`.

    Args:
        model: the model in memory, serialized, or the path of its file. It is not modified.
        optimize: all graph optimizations of onnxruntime, else none.
        fuse_quantizers: among these, integer kernels and less for quantizers and what stands between; else each
            QuantizeLinear and DequantizeLinear is computed as it is written.
        providers: execution providers in order of preference, ``"CUDA"`` or ``"CUDAExecutionProvider"``; the CPU if
            None or empty.
        custom_op_library: shared library with the model's custom operators.
        threads: threads within an operator; None leaves it to onnxruntime.
        profile: prefix of a profile file, written by :meth:`end_profiling`.
        prepack: weights are copied into the layout that runs fastest; without it, those of a file stay where they are.
        precise: integer kernels sum products exactly where the processor's fastest cut them off.
        timed: runs are timed, so that memory is planned at the first run of some shapes and reused by the next ones, as
            onnxruntime does by itself; else each tensor asks for its own, which leaves less memory taken between runs
            of many shapes.

    Attributes:
        inputs: inputs that must or may be fed, in order; initializers that may be overridden are not listed.
        defaults: the latter.
        outputs: outputs in order, without those that are sequences or maps.
        simulated: onnxruntime does not load the model, and a simulation is run in its place.

    Raises:
        OptionError: an unknown provider, a missing library.
        ExecutionError: onnxruntime cannot load the model.
    """

    def __init__(
        self,
        model: ir.Model | bytes | str | os.PathLike[str],
        *,
        optimize: bool = True,
        fuse_quantizers: bool = True,
        providers: Sequence[str] | None = None,
        custom_op_library: str | os.PathLike[str] | None = None,
        threads: int | None = None,
        profile: str | os.PathLike[str] | None = None,
        prepack: bool = True,
        precise: bool = False,
        timed: bool = False,
    ) -> None:
        chosen = _resolve_providers(providers)
        where = _named(model)
        self._kept_alive: list[Any] = []

        def opened(given: ir.Model | bytes | str | os.PathLike[str]) -> ort.InferenceSession:
            options = _session_options(
                optimize=optimize, fuse_quantizers=fuse_quantizers, threads=threads, profile=profile, prepack=prepack
            )
            options.enable_mem_pattern = timed
            if precise:
                options.add_session_config_entry(PRECISE, "1")
            if custom_op_library is not None:
                _register(options, custom_op_library)
            source: str | bytes
            if isinstance(given, ir.Model):
                source, self._kept_alive = hand_over(given, options)
            else:
                source = given if isinstance(given, bytes) else os.fspath(given)
            try:
                return ort.InferenceSession(source, options, providers=chosen)
            except Exception as error:  # the boundary to onnxruntime, whose exceptions share no base
                raise load_error(error, where) from error

        self.simulated = False
        try:
            self._session = opened(model)
        except ExecutionError:
            if (simulation := _simulation(model)) is None:
                raise
            self._session, self.simulated = opened(simulation), True
        used = self._session.get_providers()
        missing = [name for name in chosen if name not in used]
        if missing:
            raise ExecutionError(
                f"onnxruntime could not start {', '.join(missing)}",
                hint="Check its driver and libraries, or use the CPU",
            )
        self.inputs = [_info(value) for value in self._session.get_inputs()]
        self.defaults = [replace(_info(v), default=True) for v in self._session.get_overridable_initializers()]
        self.outputs = [info for v in self._session.get_outputs() if not (info := _info(v)).container]
        self._raw = {
            info.name: info.dtype for info in (*self.inputs, *self.defaults) if info.dtype in RAW_TYPES.values()
        }
        ends = (*self._session.get_inputs(), *self._session.get_outputs())
        known = (*_NUMPY_TYPES, "tensor(string)")
        self._barred = {v.name: v.type for v in ends if v.type.startswith("tensor(") and v.type not in known}
        self._any_raw = bool(self._raw) or any(info.dtype in RAW_TYPES.values() for info in self.outputs)

    def taken(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Of the arrays for another model those that this one has inputs for, with a default or without."""
        names = {info.name for info in (*self.inputs, *self.defaults)}
        return {name: array for name, array in feeds.items() if name in names}

    def run(self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """Run the model once.

        Args:
            feeds: an array for each input, of its type and shape; bfloat16 and 8-bit floats may come as float32.
            outputs: names of the outputs wanted; all that are tensors if None.

        Returns:
            Output name to array, in the order asked for.

        Raises:
            ExecutionError: onnxruntime refuses the feeds, or a node fails.
        """
        names = list(outputs) if outputs is not None else [info.name for info in self.outputs]
        for name in (*feeds, *names):
            if name in self._barred:
                raise ExecutionError(
                    f"{name!r} is a {self._barred[name]}, a type that onnxruntime does not exchange with Python",
                    hint="Put a Cast to another type there",
                )
        try:
            arrays = {name: np.asarray(array) for name, array in feeds.items()}
            values = self._run_raw(names, arrays) if self._any_raw else self._session.run(names or None, arrays)
        except Exception as error:
            raise ExecutionError(first_line(error), hint=about_feeds(self.inputs, feeds, str(error))) from error
        return dict(zip(names, values, strict=bool(names)))

    def _run_raw(self, names: Sequence[str], feeds: Mapping[str, NDArray[Any]]) -> list[Any]:
        """Run with inputs or outputs that NumPy arrays cannot carry in and out."""
        values = {}
        for name, array in feeds.items():
            values[name] = to_value(array, self._raw.get(name))
        return [to_array(value) for value in self._session.run_with_ort_values(list(names), values)]

    def end_profiling(self) -> Path:
        """Stop profiling and give the path of the profile, a JSON file in Chrome's trace format."""
        return Path(self._session.end_profiling())


def _simulation(model: ir.Model | bytes | str | os.PathLike[str]) -> ir.Model | None:
    """What onnxruntime can run in the place of a model that it cannot load, if there is anything."""
    try:
        return in_float(model)
    except ModelError:
        return None


def _named(model: ir.Model | bytes | str | os.PathLike[str]) -> str:
    """What errors call a model.

    Raises:
        ExecutionError: its file's name, or a folder's on the way, is no text in UTF-8.
    """
    if isinstance(model, ir.Model):
        return f"graph {model.graph.name!r}" if model.graph.name else "model"
    if isinstance(model, bytes):
        return "model"
    path = os.fspath(model)
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ExecutionError(
            "onnxruntime opens no file whose path is not UTF-8", where=f"'{path}'", hint="Rename the file or its folder"
        ) from error
    return path


def open_anyhow(model: ir.Model, *, optimize: bool = True, **options: Any) -> Session:
    """A session to measure with; without graph optimizations, which onnxruntime makes for CPUs, where they break it.

    Args:
        model: what to run.
        optimize: try it with all graph optimizations first.
        options: of :class:`Session`.

    Raises:
        ExecutionError: onnxruntime cannot load it either way.
    """
    try:
        return Session(model, optimize=optimize, **options)
    except ExecutionError:
        if not optimize:
            raise
    return Session(model, optimize=False, **options)


def _resolve_providers(providers: Sequence[str] | None) -> list[str]:
    available = available_providers()
    by_short_name = {name.lower().removesuffix("executionprovider"): name for name in available}
    chosen: list[str] = []
    for name in providers or ("CPU",):
        full = by_short_name.get(name.lower().removesuffix("executionprovider"))
        if full is None:
            raise OptionError(f"onnxruntime has no provider {name!r}", hint=f"Available here: {', '.join(available)}")
        chosen.append(full)
    return chosen


def require_library(library: str | os.PathLike[str] | None) -> None:
    """Make sure that a custom-op library is there, before any work.

    Raises:
        OptionError: it is not.
    """
    if library is not None and not os.path.isfile(library):
        raise OptionError(f"custom-op library {os.fspath(library)!r} does not exist", hint="Check --custom-op-library")


def _session_options(
    *, optimize: bool, fuse_quantizers: bool, threads: int | None, profile: str | os.PathLike[str] | None, prepack: bool
) -> ort.SessionOptions:
    """How onnxruntime is to load a model, see :class:`Session`."""
    options = ort.SessionOptions()
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    options.log_severity_level = 4  # errors come as exceptions
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.inter_op_num_threads = 1
    if threads is not None:
        options.intra_op_num_threads = threads
    if not fuse_quantizers:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = os.fspath(profile)
    return options


def _register(options: Any, library: str | os.PathLike[str]) -> None:
    require_library(library)
    path = Path(library)
    try:
        options.register_custom_ops_library(str(path.resolve()))
    except Exception as error:
        raise OptionError(
            f"custom-op library {str(path)!r} cannot be loaded ({first_line(error)})",
            hint="It must be built for this onnxruntime and export RegisterCustomOps",
        ) from error


def _info(value: Any) -> InputInfo:
    optional = value.type.startswith("optional(")
    kind = value.type.removeprefix("optional(").removesuffix(")" if optional else "")
    container = {"seq": "sequence", "map": "map"}.get(kind.partition("(")[0], "")
    dtype = np.dtype(_NUMPY_TYPES.get(kind, np.object_))
    shape = None if container else value.shape
    return InputInfo(value.name, dtype, None if shape is None else tuple(shape), container, optional=optional)
