"""What is imported late: in a process of its own, as the import system is changed."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from onnxq.console.deferred import defer_imports
defer_imports()
defer_imports()
assert len([f for f in sys.meta_path if type(f).__module__ == "onnxq.console.deferred"]) == 1
import onnx_ir as ir
assert "sympy.core" not in sys.modules, "sympy was loaded"
total = ir.SymbolicDim("n") + ir.SymbolicDim("m") * 2
assert "sympy.core" in sys.modules
import sympy
n, m = sympy.symbols("n m", integer=True, positive=True)
assert sympy.sympify(total.value, {"n": n, "m": m}) == n + 2 * m
from sympy import Symbol
assert Symbol("x").name == "x"
"""


def test_sympy_is_loaded_when_names_of_dimensions_are_added() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_run_without_it() -> None:
    program = (
        "import sys, tempfile, pathlib\n"
        "from onnxq.cli import main\n"
        "from onnxq.demo.data import MODEL\n"
        "assert main(['plan', str(MODEL), '--quiet']) == 0\n"
        "assert 'onnx_ir' in sys.modules and 'sympy.core' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
