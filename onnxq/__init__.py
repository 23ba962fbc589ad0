"""onnxq: quantize an ONNX model for the chip it will run on.

The public names are loaded when first used: ``import onnxq`` itself imports no onnx, onnxruntime or numpy.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxq import dynamic as dynamic
    from onnxq import nvfp4 as nvfp4
    from onnxq import weight_only as weight_only
    from onnxq.algorithm import Algorithm
    from onnxq.backend import Backend, Format, Kind, OpRule
    from onnxq.calibration.data import open_data
    from onnxq.calibration.samples import Samples
    from onnxq.calibration.statistics import KeptSample, Statistics
    from onnxq.calibration.tensor_statistics import TensorStatistics
    from onnxq.catalog import backends, installed_algorithms
    from onnxq.check import Finding, check
    from onnxq.compare import Comparison, compare
    from onnxq.console.progress import Reporter, make_reporter
    from onnxq.deploy import deploy
    from onnxq.deploy_all import deploy_all
    from onnxq.errors import (
        BackendError,
        DataError,
        ExecutionError,
        MetricError,
        ModelError,
        OnnxqError,
        OptionError,
        OutputError,
        StatisticsError,
        TargetsError,
        VerificationError,
    )
    from onnxq.finetune import finetune
    from onnxq.measuring.agreement import Agreement
    from onnxq.measuring.comparison import TensorErrors
    from onnxq.measuring.layerwise import LayerAgreement
    from onnxq.measuring.loss import Loss
    from onnxq.measuring.metrics import Errors
    from onnxq.measuring.sensitivities import Sensitivity, SensitivityRow
    from onnxq.measuring.verification import OtherSize, SourceAgreement, Verification
    from onnxq.options import ImageOptions, Options, Override
    from onnxq.ort.inputs import InputInfo
    from onnxq.ort.session import Session
    from onnxq.plan import Edge, Kept, Plan, Site
    from onnxq.qparams import QParams
    from onnxq.quantize import calibrate, plan, quantize, quantize_all
    from onnxq.quantized import Quantized
    from onnxq.read import read
    from onnxq.render.reading.quantized_tensor import QuantizedTensor
    from onnxq.rewritten import Rewritten
    from onnxq.searching.attempt import Attempt
    from onnxq.searching.result import Search
    from onnxq.searching.search import search
    from onnxq.searching.user_metric import Run
    from onnxq.sensitivity import sensitivity
    from onnxq.show import ModelView, StatisticsView, show
    from onnxq.spec import PerBlock, PerChannel, PerTensor, QuantSpec, Scheme
    from onnxq.verify import verify

__version__ = "0.1.0"

__all__ = [
    "Agreement",
    "Algorithm",
    "Attempt",
    "Backend",
    "BackendError",
    "Comparison",
    "DataError",
    "Edge",
    "Errors",
    "ExecutionError",
    "Finding",
    "Format",
    "ImageOptions",
    "InputInfo",
    "Kept",
    "KeptSample",
    "Kind",
    "LayerAgreement",
    "Loss",
    "MetricError",
    "ModelError",
    "ModelView",
    "OnnxqError",
    "OpRule",
    "OptionError",
    "Options",
    "OtherSize",
    "OutputError",
    "Override",
    "PerBlock",
    "PerChannel",
    "PerTensor",
    "Plan",
    "QParams",
    "QuantSpec",
    "Quantized",
    "QuantizedTensor",
    "Reporter",
    "Rewritten",
    "Run",
    "Samples",
    "Scheme",
    "Search",
    "Sensitivity",
    "SensitivityRow",
    "Session",
    "Site",
    "SourceAgreement",
    "Statistics",
    "StatisticsError",
    "StatisticsView",
    "TargetsError",
    "TensorErrors",
    "TensorStatistics",
    "Verification",
    "VerificationError",
    "backends",
    "calibrate",
    "check",
    "compare",
    "deploy",
    "deploy_all",
    "finetune",
    "installed_algorithms",
    "make_reporter",
    "open_data",
    "plan",
    "quantize",
    "quantize_all",
    "read",
    "search",
    "sensitivity",
    "show",
    "verify",
]

_MODULES = {
    "algorithm": ("Algorithm",),
    "backend": ("Backend", "Format", "Kind", "OpRule"),
    "calibration.data": ("open_data",),
    "calibration.samples": ("Samples",),
    "calibration.statistics": ("KeptSample", "Statistics"),
    "calibration.tensor_statistics": ("TensorStatistics",),
    "catalog": ("backends", "installed_algorithms"),
    "check": ("Finding", "check"),
    "compare": ("Comparison", "compare"),
    "console.progress": ("Reporter", "make_reporter"),
    "deploy": ("deploy",),
    "deploy_all": ("deploy_all",),
    "errors": tuple(name for name in __all__ if name.endswith("Error")),
    "finetune": ("finetune",),
    "measuring.agreement": ("Agreement",),
    "measuring.comparison": ("TensorErrors",),
    "measuring.layerwise": ("LayerAgreement",),
    "measuring.loss": ("Loss",),
    "measuring.metrics": ("Errors",),
    "measuring.sensitivities": ("Sensitivity", "SensitivityRow"),
    "measuring.verification": ("OtherSize", "SourceAgreement", "Verification"),
    "options": ("ImageOptions", "Options", "Override"),
    "ort.inputs": ("InputInfo",),
    "ort.session": ("Session",),
    "plan": ("Edge", "Kept", "Plan", "Site"),
    "qparams": ("QParams",),
    "quantize": ("calibrate", "plan", "quantize", "quantize_all"),
    "quantized": ("Quantized",),
    "read": ("read",),
    "render.reading.quantized_tensor": ("QuantizedTensor",),
    "rewritten": ("Rewritten",),
    "searching.attempt": ("Attempt",),
    "searching.result": ("Search",),
    "searching.search": ("search",),
    "searching.user_metric": ("Run",),
    "sensitivity": ("sensitivity",),
    "show": ("ModelView", "StatisticsView", "show"),
    "spec": ("PerBlock", "PerChannel", "PerTensor", "QuantSpec", "Scheme"),
    "verify": ("verify",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

_PACKAGES = ("backends",)
"""Public functions that are called as a package of onnxq."""
_PIPELINES = ("dynamic", "nvfp4", "weight_only")
"""Modules that are public as a whole, imported when they are asked for."""


class _Package(ModuleType):
    """Some public functions are called as the module they live in; importing that module must not hide the function."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _PACKAGES and isinstance(value, ModuleType):
            value.__class__ = _Called
        elif name in _HOMES and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


class _Called(ModuleType):
    """A package that can be called as the public function of its name.

    So ``onnxq.backends()`` is the list of targets, and ``import onnxq.backends.qnn as qnn`` finds the module.
    """

    @property
    def __wrapped__(self) -> Any:  # what inspect and help look at
        return _public(self.__name__.rpartition(".")[2])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)


sys.modules[__name__].__class__ = _Package


def _public(name: str) -> Any:
    """What a public name stands for."""
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


if not TYPE_CHECKING:  # to a type checker all that there is is imported above, and any other name is a mistake

    def __getattr__(name: str) -> Any:
        if name in _PIPELINES:
            return import_module(f"{__name__}.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in _PACKAGES:
            return import_module(f"{__name__}.{name}")
        value = globals()[name] = _public(name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
