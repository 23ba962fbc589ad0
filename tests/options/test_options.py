"""Options: values are checked when they are made, and a TOML file says the same things."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxq
import onnxq.options as options_module
from onnxq.algorithm_choice import chosen
from onnxq.errors import OptionError
from onnxq.options import ImageOptions, Options, Override
from onnxq.options.config import Config
from tests.models import feeds_for
from tests.targets import residual


def test_defaults_are_valid_and_hashable() -> None:
    assert hash(Options()) == hash(Options())
    assert Options().weight_bits is Options().act_bits is None
    assert ImageOptions().size("resize") is None


def test_what_a_type_checker_reads_are_the_fields() -> None:
    """It is told of wider types than those of the fields, by a signature written out beside them."""
    tree = ast.parse(inspect.getsource(options_module))
    made = next(c for c in tree.body if isinstance(c, ast.ClassDef) and c.name == "Options")
    (branch,) = [b for b in made.body if isinstance(b, ast.If)]
    (signature,) = [f.args for f in branch.body if isinstance(f, ast.FunctionDef)]
    told = zip([a.arg for a in signature.args[1:]], map(ast.literal_eval, signature.defaults), strict=True)
    assert dict(told) == {field.name: field.default for field in dataclasses.fields(Options)}
    assert [a.arg for a in signature.args[1:]] == [field.name for field in dataclasses.fields(Options)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight_bits", 1),
        ("weight_bits", 17),
        ("weight_bits", True),
        ("act_bits", 8.0),
        ("symmetric", "yes"),
        ("per_channel", 1),
        ("weight_symmetric", "no"),
        ("range", ""),
        ("range", "percentile:abc"),
        ("range", "percentile: 99"),
        ("samples", 0),
        ("opset", -1),
        ("seed", -1),
        ("placement", "some"),
        ("format", 8),
        ("min_sqnr", float("nan")),
        ("min_sqnr", "10"),
        ("exclude", 3),
        ("exclude", [""]),
        ("override", ["Conv"]),
        ("override", [("Conv", "bits=99")]),
        ("custom_op_library", 5),
    ],
)
def test_wrong_values_are_refused_and_named(field: str, value: Any) -> None:
    with pytest.raises(OptionError, match=field.split("_")[0]):
        Options(**{field: value})


def test_lists_and_single_strings_become_tuples() -> None:
    options = Options(exclude=["a", "b"], include="c", providers=["cuda"])
    assert options.exclude == ("a", "b")
    assert options.include == ("c",)
    assert options.providers == ("cuda",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("float", Override(float=True)),
        ("bits=16", Override(weight_bits=16, act_bits=16)),
        ("weight-bits=4, range=percentile:99.9", Override(weight_bits=4, range="percentile:99.9")),
        ("bits=8,act_bits=16", Override(weight_bits=8, act_bits=16)),
        ("symmetric=yes;per_channel=off", Override(symmetric=True, per_channel=False)),
        ({"per-channel": True}, Override(per_channel=True)),
        ("weight_symmetric=no", Override(weight_symmetric=False)),
    ],
)
def test_overrides_are_read(text: Any, expected: Override) -> None:
    assert Override.parse(text) == expected


@pytest.mark.parametrize("text", ["", "bit=8", "bits", "bits=many", "symmetric=maybe", "range=a b", 7])
def test_wrong_overrides_are_refused(text: Any) -> None:
    with pytest.raises(OptionError, match="override"):
        Override.parse(text)


@pytest.mark.parametrize(
    "given", ["bits=4,bits=8", "float,float", "act-bits=4, act_bits=8", {"act-bits": 4, "act_bits": 8}]
)
def test_an_override_that_says_a_key_twice_is_refused(given: Any) -> None:
    with pytest.raises(OptionError, match="is there twice"):
        Override.parse(given)


def test_an_algorithm_that_is_given_a_parameter_twice_is_refused() -> None:
    with pytest.raises(OptionError, match="'alpha' is there twice") as error:
        chosen(["smoothquant:alpha=0.5,alpha=0.8"])
    assert error.value.where == "algorithm 'smoothquant:alpha=0.5,alpha=0.8'"


@pytest.mark.parametrize("text", ["weight-bits = 4\nweight_bits = 8", "[image]\nmean = 0\n'me-an' = 1\n'me_an' = 2"])
def test_a_file_that_says_a_key_twice_is_refused(tmp_path: Path, text: str) -> None:
    """TOML itself refuses equal keys; with a dash and with an underscore they are the same to us alone."""
    file = tmp_path / "c.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(OptionError, match=r"is there twice, as '.*-.*' and as") as error:
        Config.read(file)
    assert "c.toml" in str(error.value.where)


def test_unknown_override_key_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="'weight_bits'"):
        Override.parse("weigth_bits=4")


@pytest.mark.parametrize(
    "given",
    [
        ["/a/Conv=bits=16", "Gemm=float"],
        [("/a/Conv", "bits=16"), ("Gemm", Override(float=True))],
        {"/a/Conv": {"bits": 16}, "Gemm": "float"},
    ],
)
def test_overrides_may_be_strings_pairs_or_a_mapping(given: Any) -> None:
    expected = (("/a/Conv", Override(weight_bits=16, act_bits=16)), ("Gemm", Override(float=True)))
    assert Options(override=given).override == expected


def test_a_pattern_may_hold_an_equals_sign() -> None:
    options = Options(override=["a=b/Conv=bits=16,range=minmax"])
    assert options.override == (("a=b/Conv", Override(weight_bits=16, act_bits=16, range="minmax")),)


def test_toml_gives_the_same_options(tmp_path: Path) -> None:
    file = tmp_path / "onnxq.toml"
    file.write_text(
        'weight-bits = 4\nact_bits = 8\nsymmetric = true\nexclude = ["Softmax", "/head/*"]\n'
        '[override]\n"Conv_0" = "bits=16"\n"Gemm" = { range = "minmax" }\n'
    )
    assert Options.from_toml(file) == Options(
        weight_bits=4,
        act_bits=8,
        symmetric=True,
        exclude=("Softmax", "/head/*"),
        override=(("Conv_0", Override(weight_bits=16, act_bits=16)), ("Gemm", Override(range="minmax"))),
    )


def test_config_keeps_run_keys_and_pictures_apart(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('data = "d.npz"\nseed = 3\n[image]\nmean = [0.5]\nresize = 256\n')
    config = Config.read(file, run_keys=("data",))
    assert (config.run, config.options) == ({"data": "d.npz"}, {"seed": 3})
    assert ImageOptions(**config.image) == ImageOptions(mean=(0.5,), resize="256")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weigth-bits = 4", "'weigth-bits'.*Did you mean 'weight_bits'"),
        ("= 4", "is not TOML"),
        ("[image]\nmeen = 1", "'image.meen'.*'mean'"),
        ("output = 'x'", "unknown key 'output'"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(OptionError, match=message) as caught:
        Config.read(file)
    assert str(file) in str(caught.value)


def test_a_missing_file_and_binary_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        Options.from_toml(tmp_path / "none.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match="is not TOML"):
        Options.from_toml(tmp_path / "b.toml")


@pytest.mark.parametrize(
    "given",
    [
        {"resize": "big"},
        {"crop": "0"},
        {"std": (1.0, 0.0, 1.0)},
        {"mean": "0.5"},
        {"mean": (0.5, float("nan"))},
        {"std": float("inf")},
        {"scale": "x"},
        {"scale": float("inf")},
        {"scale": 0},
        {"layout": "chw"},
        {"channels": "yuv"},
    ],
)
def test_wrong_picture_options_are_refused(given: Any) -> None:
    with pytest.raises(OptionError, match="image"):
        ImageOptions(**given)


def test_picture_sizes() -> None:
    options = ImageOptions(resize="256", crop="224x320")
    assert options.size("resize") == (256,)
    assert options.size("crop") == (224, 320)


@pytest.mark.parametrize("verb", [onnxq.plan, onnxq.quantize, onnxq.check, onnxq.calibrate, onnxq.sensitivity])
def test_options_that_are_none_are_refused(verb: Any) -> None:
    more = () if verb in (onnxq.plan, onnxq.check) else (feeds_for(residual()),)
    with pytest.raises(OptionError, match=r"^options: \{'weight_bits': 4\} is not an onnxq\.Options"):
        verb(residual(), *more, options={"weight_bits": 4})


def test_numbers_of_numpy_are_numbers() -> None:
    given = Options(weight_bits=np.int64(4), samples=np.int32(8), min_sqnr=np.float32(12.5))
    assert given == Options(weight_bits=4, samples=8, min_sqnr=12.5)
    assert {type(given.weight_bits), type(given.samples), type(given.min_sqnr)} == {int, float}
    with pytest.raises(OptionError, match="not a number of bits"):
        Options(weight_bits=np.float64(4.5))
    pictures = ImageOptions(mean=np.float32([0.5, 0.25]), std=np.float32(0.5), scale=np.float32(0.125))  # type: ignore[arg-type]
    assert pictures == ImageOptions(mean=(0.5, 0.25), std=(0.5,), scale=0.125)
