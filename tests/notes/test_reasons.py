"""Reasons for staying float, put together for people."""

from __future__ import annotations

from onnxq.notes.reasons import by_reason
from onnxq.plan import Kept


def test_reasons_that_differ_in_the_operator_are_one() -> None:
    kept = [Kept("a", "Pad", "slow"), Kept("b", "Neg", "Neg has no kernel"), Kept("c", "Log", "Log has no kernel")]
    assert [(reason, [k.node for k in group]) for reason, group in by_reason(kept)] == [
        ("no kernel", ["b", "c"]),
        ("slow", ["a"]),
    ]


def test_a_reason_is_said_of_any_number_of_nodes() -> None:
    kept = [Kept("a", "Relu", "Relu is not among the operators that x quantizes"), Kept("b", "Pad", "is slow")]
    assert [reason for reason, _ in by_reason(kept)] == ["not among the operators that x quantizes", "is slow"]


def test_reasons_that_differ_in_decibels_are_one_line() -> None:
    alone = "quantized alone it leaves {} dB at the outputs"
    kept = [Kept(name, "Conv", alone.format(sqnr)) for name, sqnr in zip("abc", (9, -1, "-inf"), strict=True)]
    kept += [Kept("d", "Conv", "slow"), Kept("e", "Add", "its integers cost output 'y' 3 dB of 20 dB")]
    kept += [Kept("f", "Add", "its integers cost output 'y' 5 dB of 20 dB")]
    assert [(reason, len(group)) for reason, group in by_reason(kept)] == [
        ("quantized alone it leaves -inf to 9 dB at the outputs", 3),
        ("its integers cost output 'y' 3 to 5 dB of 20 dB", 2),
        ("slow", 1),
    ]


def test_reasons_that_differ_in_the_tensor_are_one_line() -> None:
    never = "tensor '{}' was never computed on the calibration data"
    kept = [Kept(name, "Conv", never.format(name)) for name in ("a", "b\\1", "b\\1", "c")]
    kept += [Kept("d", "Conv", "constant 'w' is empty"), Kept("e", "Conv", "constant 'v' is empty")]
    kept += [Kept(name, "Relu", f"input {name!r} is float16, not float32") for name in "xy"]
    kept += [Kept("f", "Add", "tensor 'q\\1' holds mask values")]
    kept += [Kept(name, "Transpose", f"node {name!r} needs zero point 0: quantized just before it") for name in "stst"]
    assert [(reason, len(group)) for reason, group in by_reason(kept)] == [
        ("each of 3 tensors ('a', 'b\\1', ...) was never computed on the calibration data", 4),
        ("each of 2 nodes ('s', 't') needs zero point 0: quantized just before it", 4),
        ("each of 2 constants ('w', 'v') is empty", 2),
        ("each of 2 inputs ('x', 'y') is float16, not float32", 2),
        ("tensor 'q\\1' holds mask values", 1),
    ]
