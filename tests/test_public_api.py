"""The public API: ``__all__`` is what can be imported, and importing onnxq costs next to nothing."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module, metadata
from types import ModuleType

import numpy as np
import pytest

import onnxq
from onnxq.demo.data import MODEL, load_digits
from tests.models import feeds_for
from tests.targets import residual

DATA = load_digits().calibration[:2]
HEAVY = ("ml_dtypes", "numpy", "onnx", "onnx_ir", "onnxruntime", "rich", "torch")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def run_each(codes: Sequence[str]) -> list[str]:
    """The line that each prints that is the first to import onnxq, though what onnxq needs is there already."""
    program = f"""
import sys, numpy, onnx, onnx_ir, onnxruntime
for code in {list(codes)!r}:
    for name in [name for name in sys.modules if name.partition(".")[0] == "onnxq"]:
        del sys.modules[name]
    exec(code, dict())
"""
    return run(program).splitlines()


def test_all_is_sorted_and_can_be_imported() -> None:
    assert onnxq.__all__ == sorted(onnxq.__all__)
    for name in onnxq.__all__:
        value = getattr(onnxq, name)
        assert not isinstance(value, ModuleType) or callable(value), name
        assert value.__doc__, name
    assert set(onnxq.__all__) <= set(dir(onnxq))


def test_every_name_comes_from_the_module_that_is_said() -> None:
    assert set(onnxq.__all__) == set(onnxq._HOMES)
    for name, home in onnxq._HOMES.items():
        assert name in import_module(f"onnxq.{home}").__all__, name


@pytest.mark.parametrize("name", ["check", "compare", "plan", "quantize", "show"])
def test_a_function_is_not_hidden_by_its_module(name: str) -> None:
    codes = (
        f"import onnxq.{name}, onnxq; print(callable(onnxq.{name}))",
        f"from onnxq import {name}; print(callable({name}))",
        f"from onnxq.{name} import __all__; print(len(__all__) > 0)",
    )
    assert run_each(codes) == ["True"] * 3


@pytest.mark.parametrize(("module", "call"), [("backends.qnn", "backends()")])
def test_a_function_does_not_hide_the_package_of_its_name(module: str, call: str) -> None:
    """Whichever is used first, in each way of importing."""
    name = module.partition(".")[0]
    codes = [
        f"{first}; {then}; import onnxq; onnxq.{call}; print(onnxq.{module}.__name__)"
        for first in ("import onnxq", f"from onnxq import {name}", f"import onnxq; onnxq.{call}")
        for then in (
            f"import onnxq.{module} as m",
            f"from onnxq.{module} import __all__ as m",
            f"import onnxq.{module}",
        )
    ]
    assert run_each(codes) == [f"onnxq.{module}"] * len(codes)
    assert inspect.signature(getattr(onnxq, name)) == inspect.signature(onnxq._public(name))
    with pytest.raises(TypeError):
        getattr(onnxq, name)(no_such_argument=1)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        onnxq.nothing  # type: ignore[attr-defined]  # noqa: B018  # to a type checker it is a mistake, too


@pytest.mark.parametrize(
    "code", ["import onnxq", "import onnxq.cli, onnxq.arguments.parser as p; p.make_parser()", "import onnxq.options"]
)
def test_importing_is_light(code: str) -> None:
    loaded = run(f"import sys; {code}; print(*[m for m in {HEAVY!r} if m in sys.modules])")
    assert loaded.split() == []


def test_the_version_is_that_of_the_package() -> None:
    assert onnxq.__version__ == metadata.version("onnxq")


def test_errors_have_one_root_and_are_public() -> None:
    errors = import_module("onnxq.errors")
    for name in errors.__all__:
        assert issubclass(getattr(onnxq, name), onnxq.OnnxqError)


@pytest.mark.parametrize("name", onnxq.__all__)
def test_the_types_of_a_function_can_be_looked_up(name: str) -> None:
    function = getattr(onnxq, name)
    if not inspect.isclass(function):
        hints = typing.get_type_hints(getattr(function, "__wrapped__", function))
        assert "return" in hints


def handed_out(hint: object) -> Iterator[str]:
    """The names of classes of onnxq in a type hint."""
    if isinstance(hint, type) and hint.__module__.startswith("onnxq."):
        yield hint.__name__
    for inner in typing.get_args(hint):
        for one in inner if isinstance(inner, list) else [inner]:
            yield from handed_out(one)


@pytest.mark.parametrize("name", onnxq.__all__)
def test_what_functions_take_and_types_hold_is_public(name: str) -> None:
    """So that a program can name the type of what it is given."""
    value = onnxq._public(name)
    later = {one: onnxq._public(one) for one in onnxq.__all__}  # what a module imports for type checkers alone
    hints = typing.get_type_hints(value, localns=later)
    found = {held for key, hint in hints.items() if not key.startswith("_") for held in handed_out(hint)}
    own = {"Measured", "Note"}  # of Statistics, and of passes over graphs, which hooks of targets are
    assert found <= {*onnxq.__all__, *own}


def test_a_quantized_models_target_is_onnxruntime_unless_another_is_named() -> None:
    for name in ("quantize", "read", "verify", "finetune", "plan", "search", "sensitivity"):
        assert inspect.signature(getattr(onnxq, name)).parameters["backend"].default == "onnxruntime", name


def test_alike_parameters_are_called_alike_and_stand_alike() -> None:
    """The model first, then the data, all else by name; one target is ``backend``, several are ``backends``."""
    alike = {"reporter": None, "options": None, "image": None, "statistics": None}
    for name in onnxq.__all__:
        function = getattr(onnxq, name)
        if inspect.isclass(function) or name in ("backends", "installed_algorithms", "make_reporter", "open_data"):
            continue
        parameters = inspect.signature(function).parameters
        by_place = [key for key, value in parameters.items() if value.kind is value.POSITIONAL_OR_KEYWORD]
        models = ("model", "artifact", "reference", "quantized", "path")
        assert by_place and all(key in models for key in by_place if key != "data"), name
        assert ("data" in parameters) == (by_place[-1] == "data"), name
        assert ("backends" in parameters) == name.endswith("_all"), name
        assert all(parameters[key].default == value for key, value in alike.items() if key in parameters), name


def test_what_is_nearly_right_is_taken_or_named() -> None:
    with pytest.raises(onnxq.OptionError, match="backend: the target 'academic' itself is not a name"):
        onnxq.plan(residual(), backend=onnxq.backends()[0])  # type: ignore[arg-type]
    for given in (onnxq.backends(), onnxq.backends()[0]):
        with pytest.raises(onnxq.OptionError, match="backend: the target 'academic' itself is not a name"):
            onnxq.quantize_all(residual(), feeds_for(residual()), backends=given)  # type: ignore[arg-type]
    data = feeds_for(residual())
    options = onnxq.Options(placement="all", effort="fast")
    made = onnxq.quantize_all(residual(), data, backends="onnxruntime", options=options)
    assert list(made) == ["onnxruntime"]
    assert onnxq.sensitivity(residual(), data, bits=4, options=options).bits == (4,)
    compared = onnxq.compare(made["onnxruntime"], made["onnxruntime"], data)
    assert all(errors.sqnr > 100 for errors in compared.outputs.values())


def test_pipelines_are_there_without_an_import_of_their_own() -> None:
    code = "import onnxq; print(onnxq.weight_only.quantize_weights.__name__, onnxq.dynamic.rewrite.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["quantize_weights", "rewrite"]


def test_the_target_is_onnxruntime_unless_another_is_named() -> None:
    """In Python as on the command line, by whichever function."""
    functions = [getattr(onnxq, name) for name in onnxq.__all__ if inspect.isfunction(getattr(onnxq, name))]
    defaults = {f.__name__: inspect.signature(f).parameters["backend"].default for f in functions if _has_target(f)}
    assert defaults.pop("compare") is None, "the file as it is"
    assert len(defaults) > 8 and set(defaults.values()) == {"onnxruntime"}, defaults


def _has_target(function: typing.Any) -> bool:
    return "backend" in inspect.signature(function).parameters


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: onnxq.quantize(MODEL, DATA, image={"mean": 0}), "image: .* is not an onnxq.ImageOptions"),  # type: ignore[arg-type]
        (lambda: onnxq.compare(MODEL, MODEL, DATA, image=3), "image: 3 is not an onnxq.ImageOptions"),  # type: ignore[arg-type]
        (lambda: onnxq.quantize(MODEL, statistics=5), "statistics: an object of type int is not statistics"),  # type: ignore[arg-type]
        (lambda: onnxq.sensitivity(MODEL, statistics=[]), "statistics: an object of type list is not"),  # type: ignore[arg-type]
        (lambda: onnxq.Options(exclude=("",)), "exclude: one is empty"),
        (lambda: onnxq.Options(algorithms=5), "algorithms: 5 is not a list of strings"),  # type: ignore[arg-type]
        (lambda: onnxq.verify(MODEL, DATA, timeout="5"), "timeout: '5' is not a number of seconds"),  # type: ignore[arg-type]
        (
            lambda: onnxq.plan(MODEL, shapes={"picture": (1, 1, 24, 24)}),
            "no input 'picture'. The model's inputs: 'image'",
        ),
        (
            lambda: onnxq.plan(MODEL, shapes={"image": (1, 24, 24)}),
            r"\(1, 24, 24\) is no shape of input 'image' \(Nx1x24x24",
        ),
        (lambda: onnxq.plan(MODEL, shapes={"image": (1, 3, 24, 24)}), "is no shape of input 'image'"),
        (lambda: onnxq.plan(MODEL, shapes={"image": 5}), "5 is no shape of input 'image'"),  # type: ignore[dict-item]
    ],
)
def test_what_is_of_the_wrong_kind_is_named(call: Callable[[], object], said: str) -> None:
    with pytest.raises(onnxq.OptionError, match=said):
        call()


def test_a_plan_takes_the_shape_of_a_batch() -> None:
    assert onnxq.plan(MODEL, shapes={"image": [np.int64(8), 1, 24, 24]}).quantized
