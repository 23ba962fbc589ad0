"""What is declared for installation is what is there."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from onnxq.arguments.parser import make_parser

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent


def _project() -> dict[str, Any]:
    document: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return document


def test_every_package_is_declared() -> None:
    own = {p.parent.relative_to(ROOT) for p in (ROOT / "onnxq").rglob("__init__.py")}
    own |= {Path("onnxq") / p.parent.relative_to(ROOT) for p in (ROOT / "backends").rglob("__init__.py")}
    assert {".".join(path.parts) for path in own} == set(_project()["tool"]["setuptools"]["packages"])


def test_every_entry_point_leads_somewhere() -> None:
    for entries in _project()["project"]["entry-points"].values():
        for target in entries.values():
            module, _, name = target.partition(":")
            loaded = import_module(module)
            assert not name or hasattr(loaded, name), target


def test_every_verb_has_a_function_that_runs_it() -> None:
    from onnxq import verbs

    (choices,) = (a.choices for a in make_parser()._actions if a.dest == "verb")
    assert choices is not None
    assert set(choices) == set(verbs.__all__)
