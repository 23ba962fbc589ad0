"""How the source is laid out: what README and the docstrings of packages promise to those who read or add to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from onnxq import plugins

ROOT = Path(__file__).resolve().parent.parent


def module_of(path: Path) -> str:
    """Dotted name of a file of ``onnxq`` or ``backends``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = ("onnxq", *parts) if parts[0] == "backends" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def sources() -> dict[str, ast.Module]:
    """Every module of the package by its name."""
    files = [p for p in (ROOT / "onnxq").rglob("*.py") if p.relative_to(ROOT).parts[1] != "backends"]
    files += (ROOT / "backends").rglob("*.py")
    return {module_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in files}


def imports(module: str, *, inside_functions: bool = True) -> set[str]:
    """Modules of onnxq that a module imports, but for those that only the type checker reads.

    Args:
        module: its name.
        inside_functions: count imports inside functions, too, which run when the function is called.
    """
    known = sources()

    def of(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.FunctionDef) and not inside_functions:
            return
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from inner
            if not set(inner) <= set(known):
                yield node.module
        for child in ast.iter_child_nodes(node):
            yield from of(child)

    return {name for name in of(known[module]) if name in known} - {module}


def package_modules(package: str) -> set[str]:
    """Names of the modules that lie in a package itself, not in those inside it."""
    folder = ROOT.joinpath(*package.split("."))
    return {path.stem for path in folder.glob("*.py")} - {"__init__"}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """While they are imported; a method may import what renders its object when it is called."""
    imported = {name: imports(name, inside_functions=False) for name in sources()}
    assert len(list(TopologicalSorter(imported).static_order())) > 300  # CycleError names the circle


@pytest.mark.parametrize("group", ["algorithms", "calibration.ranges"])
def test_every_module_of_the_folder_is_one_that_a_user_can_name(group: str) -> None:
    entries = f"onnxq.{group.rpartition('.')[2]}"
    installed = {name for name in plugins.names(entries) if plugins.owner(entries, name) == plugins.OWN}
    own = {name for name in installed if plugins.find(entries, name).__name__.startswith(f"onnxq.{group}.")}
    assert package_modules(f"onnxq.{group}") == own


@pytest.mark.parametrize("package", ["onnxq.algorithms", "onnxq.calibration.ranges"])
def test_they_know_nothing_of_each_other(package: str) -> None:
    named = {f"{package}.{name}" for name in package_modules(package)}
    assert named
    for module in sources():
        if module.startswith(f"{package}."):
            assert not imports(module) & named, module


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("spec", set()),
        ("errors", set()),
        ("plan", {"spec"}),
        ("graph", {"errors", "file_system", "ort"}),
        ("ort", {"errors", "graph"}),
        ("runtimes", {"errors"}),
    ],
)
def test_the_lowest_layers_know_of_these_alone(package: str, allowed: set[str]) -> None:
    package = f"onnxq.{package}"
    modules = [name for name in sources() if name == package or name.startswith(f"{package}.")]
    found = {name for module in modules for name in imports(module) if name not in modules}
    assert {name.split(".")[1] for name in found} <= allowed


def test_what_other_modules_take_is_public() -> None:
    """A module says with ``__all__`` what others may rely on."""
    known = sources()
    public = {name: names for name, module in known.items() if (names := _public_names(module)) is not None}
    missing = [
        f"{module} takes {alias.name} from {node.module}"
        for module, tree in known.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in public
        for alias in node.names
        if f"{node.module}.{alias.name}" not in known and not alias.name.startswith("__")
        if alias.name not in public[node.module]
    ]
    assert not missing


def _public_names(module: ast.Module) -> set[str] | None:
    """What a module lists in ``__all__``; None where it has none."""
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return None


def test_targets_are_found_by_entry_point_never_imported() -> None:
    for module in sources():
        if not module.startswith("onnxq.backends"):
            assert not [name for name in imports(module) if name.startswith("onnxq.backends.")], module
