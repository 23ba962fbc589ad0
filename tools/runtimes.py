"""Make an environment for each vendor's runtime, and run the tests that need one.

    python tools/runtimes.py --folder ENVIRONMENTS                 # all of them: several GB
    python tools/runtimes.py --folder ENVIRONMENTS openvino tvm    # these
    python tools/runtimes.py --folder ENVIRONMENTS --list          # what is there, and what is missing

An environment holds one runtime and what it needs, without onnxq: ``ENVIRONMENTS/<name>``. The tests are those marked
``runtime``; they find an environment by the variable ``ONNXQ_<NAME>_PYTHON``, which is also how ``onnxq verify`` does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

from onnxq import plugins
from onnxq.runtimes.child import missing
from onnxq.runtimes.runtime import Runtime

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Install what is missing, then run the tests."""
    parser = argparse.ArgumentParser(description="Environments of the vendors' runtimes, and the tests that need them.")
    parser.add_argument("names", nargs="*", help="runtimes; all without any")
    parser.add_argument("--folder", type=Path, required=True, help="where the environments are, or are made")
    parser.add_argument("--list", action="store_true", help="say what is installed, do nothing")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environments")
    args = parser.parse_args()
    runtimes: list[Runtime] = [plugins.find("onnxq.runtimes", n) for n in args.names or plugins.names("onnxq.runtimes")]
    for runtime in runtimes:
        python = args.folder.resolve() / runtime.name / "bin" / "python"
        if python.exists() or not args.list:
            os.environ.setdefault(f"ONNXQ_{runtime.name.upper()}_PYTHON", str(python))
        if not args.list and not python.exists() and runtime.name != "onnxruntime":
            install(runtime, python.parent.parent, args.python)
        if runtime.name == "onnxruntime" and not python.exists():
            os.environ.pop("ONNXQ_ONNXRUNTIME_PYTHON", None)
        print(f"{runtime.name}: {missing(runtime) or 'installed'}")
    if args.list:
        return 0
    tests = [str(p) for r in runtimes for p in sorted(ROOT.glob(f"tests/**/test_{r.name}*_runtime.py"))]
    return subprocess.call([sys.executable, "-m", "pytest", "-m", "runtime", *tests], cwd=ROOT)


def install(runtime: Runtime, folder: Path, python: str) -> None:
    """Make an environment with what a runtime needs."""
    print(f"{runtime.name}: installing {' '.join(runtime.requirements)} into {folder}")
    if python == sys.executable:
        venv.create(folder, with_pip=True)
    else:
        subprocess.check_call([python, "-m", "venv", str(folder)])
    subprocess.check_call(
        [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *runtime.requirements, "numpy"]
    )


if __name__ == "__main__":
    sys.exit(main())
