"""The executor on the models that ship with the onnx package: as onnxruntime, or the operator it lacks is named."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.errors import ExecutionError, ModelError
from onnxq.options import Options
from onnxq.ort.session import Session
from onnxq.prepare import Prepared
from tests.foreign import Case, cases

pytest.importorskip("torch", reason="the extra torch is not installed")

from onnxq.torch.executor import Executor, unsupported_nodes
from tests.torch.ops.helpers import assert_same

GROUPS = ("simple", "pytorch-operator", "pytorch-converted", "light")
LACKING = ("test_gradient", "test_sequence_model", "test_strnorm_model")
"""Beginnings of names: gradients, sequences and strings."""


def _runs(case: Case) -> bool:
    """Hold a model against onnxruntime; False where an operator is lacking, which is then named."""
    source = onnx.load_from_string(case.source) if isinstance(case.source, bytes) else case.source
    model = Prepared(source, Options()).model
    if lacking := unsupported_nodes(model.graph):
        with pytest.raises(ModelError, match=re.escape(lacking[0])):
            Executor(model)
        return False
    content = ir.to_proto(model).SerializeToString()
    for feed in case.feeds:
        try:
            Session(content, optimize=False).run(feed)
        except ExecutionError as error:
            pytest.skip(f"onnxruntime cannot run it: {error}")
        assert_same(model, content, {name: np.asarray(array) for name, array in feed.items()})
    return True


@pytest.mark.slow
@pytest.mark.parametrize("case", list(cases(GROUPS)), ids=lambda case: f"{case.group}: {case.name}")
def test_models_of_the_onnx_package(case: Case) -> None:
    assert _runs(case) != case.name.startswith(LACKING)
