"""Options, right and wrong, and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onnxq import OptionError, Options, quantize
from onnxq.cli import main
from onnxq.weight_only import quantize_weights
from tests.installed import needs
from tests.weight_only.layers import feeds_of_layers, layers, save


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 3}, "bits: 3 is not one of 2, 4, 8"),
        pytest.param(
            {"bits": 2, "block": 16},
            "does not multiply with 2 bits in blocks of 16. It takes blocks of 32, 64, 128",
            marks=needs("onnx", "1.20"),
        ),
        ({"bits": 2, "format": "matmulnbits", "block": 16}, "does not multiply with 2 bits in blocks of 16"),
        ({"block": 48}, "block: 48"),
        ({"method": "awq"}, "method: 'awq'"),
        ({"format": "int4"}, "format"),
        ({"accuracy_level": 1}, "only format=matmulnbits"),
        ({"method": "gptq"}, "learns from data"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str, tmp_path: Path) -> None:
    source = save(layers(), tmp_path / "m.onnx")
    with pytest.raises(OptionError, match=message):
        quantize_weights(source, tmp_path / "q.onnx", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "q.onnx").exists()


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = save(layers(), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    command = ["quantize", str(source), "-o", str(output), "--algorithm"]
    assert main([*command, "weight_only:bits=8,block=64,symmetric=no"]) == 0
    text = capsys.readouterr().out
    assert "weights in 8 bits, asymmetric, blocks of 64, rtn, qdq" in text
    assert "1 Gather, 1 MatMul, 1 Gemm" in text and "fewer than 1024 numbers" in text and "times smaller" in text
    assert main([*command, "weight_only", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["quantized_nodes"] == 3 and document["below_floor"] is False
    assert main([*command, "weight_only", "--weight-bits", "4"]) == 1
    assert (
        "weight_bits: has no effect on the algorithm 'weight_only'. Write weight_only:bits=4" in capsys.readouterr().err
    )
    assert main([*command, "weight_only:method=gptq"]) == 1
    assert "learns from data" in capsys.readouterr().err
    assert main([*command, "weight_only", "--algorithm", "bias_correction"]) == 2  # data is needed for the other one
    with pytest.raises(OptionError, match="pipeline of its own"):
        quantize(source, feeds_of_layers(2), options=Options(algorithms=("weight_only",)))
