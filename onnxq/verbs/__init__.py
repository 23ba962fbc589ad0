"""What the command line does for each verb: call the API, show the result, give the exit code and the JSON document."""

from __future__ import annotations

from onnxq.verbs.listing import algorithms, backends, demo, show
from onnxq.verbs.making import quantize
from onnxq.verbs.measuring import calibrate, check, compare, plan, sensitivity
from onnxq.verbs.quantized import deploy, finetune, verify

__all__ = [
    "algorithms",
    "backends",
    "calibrate",
    "check",
    "compare",
    "demo",
    "deploy",
    "finetune",
    "plan",
    "quantize",
    "sensitivity",
    "show",
    "verify",
]
