"""Group 15: custom operators and domains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq import DataError, ExecutionError, OptionError, Options, calibrate, quantize
from onnxq.cli import main
from tests.cases import g15
from tests.contract import ALL, assert_contract, quantize_checked
from tests.models import build, images, normal


@pytest.mark.parametrize("options", [ALL, Options(placement="all", exclude=("odd",)), Options(exclude=("Twist",))])
def test_unknown_custom_op_is_named(options: Options) -> None:
    """Excluded or not, the float model cannot run without its library."""
    with pytest.raises(ExecutionError, match=r"my\.ops.*Twist.*--custom-op-library"):
        quantize(g15.unknown(), images(1, 3, 8, 8), options=options)


def test_unknown_custom_op_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(g15.unknown(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=normal(4, 3, 8, 8))
    arguments = [str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "-o", str(tmp_path / "q.onnx")]
    assert main(["quantize", *arguments]) == 1
    error = capsys.readouterr().err
    assert "Twist" in error
    assert "Traceback" not in error
    assert not (tmp_path / "q.onnx").exists()


def test_unknown_custom_op_that_is_a_function_of_the_model() -> None:
    result = quantize_checked(*g15.custom_function())
    assert {"c1", "c2"} <= result.quantized.plan.quantized.keys()


@pytest.mark.parametrize("verb", [quantize, calibrate])
def test_missing_library_is_found_before_work(verb: Any, tmp_path: Path) -> None:
    def no_data() -> Any:
        raise DataError("the data was read though the library is missing")

    options = Options(custom_op_library=str(tmp_path / "libnone.so"))
    with pytest.raises(OptionError, match=r"libnone\.so.*does not exist"):
        verb(g15.unknown(), no_data, options=options)


def test_library_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_bytes(b"not a library")
    options = Options(custom_op_library=str(tmp_path / "lib.so"))
    with pytest.raises(OptionError, match=r"lib\.so.*cannot be loaded"):
        quantize(g15.unknown(), images(1, 3, 8, 8), options=options)


def test_operators_of_onnxruntime_itself() -> None:
    """com.microsoft operators run; what is behind them is quantized, though onnx does not know their types."""
    result = quantize_checked(*g15.operators_of_onnxruntime())
    assert {"c1", "c2"} <= result.quantized.plan.quantized.keys()
    assert "com.microsoft::Trilu" in result.reasons["corner"]


def test_fused_com_microsoft_graph_of_an_optimized_model() -> None:
    result = quantize_checked(*g15.fused_conv())
    assert "fused" in result.quantized.plan.quantized
    assert "FusedConv" not in result.ops


def test_same_operator_name_in_another_domain() -> None:
    """A Conv of a private domain is no Conv."""
    result = quantize_checked(*g15.conv_of_another_domain(), least=None)
    assert result.sqnr["y"] > 20
    assert "Exp" in result.ops


def test_custom_op_with_its_library() -> None:
    """Calibrated around, with a real library of custom operators."""
    extensions = pytest.importorskip("onnxruntime_extensions", reason="brings a library of custom operators")
    library = extensions.get_library_path()
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) {
            [c1] a = Conv (x, w)
            [odd] n, p = ai.onnx.contrib.NegPos (a)
            [sum] s = Add (n, p)
            [c2] y = Conv (s, v)
        }""",
        domains={"ai.onnx.contrib": 1},
        w=normal(4, 3, 3, 3),
        v=normal(4, 4, 3, 3, seed=1),
    )
    feeds = images(1, 3, 8, 8)
    for options in (Options(placement="all", custom_op_library=library, exclude=("odd",)),
                    Options(placement="all", custom_op_library=library)):  # fmt: skip
        quantized = quantize(model, feeds, options=options)
        scores = assert_contract(model, ir.to_proto(quantized.rendered()), quantized, feeds, library=Path(library))
        assert scores["y"] > 20
        assert {"c1", "c2"} <= quantized.plan.quantized.keys()
        assert "odd" in {kept.node for kept in quantized.plan.kept_float}
