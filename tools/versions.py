"""Runs the tests on every supported Python with the oldest and the newest libraries that `pyproject.toml` allows.

    python tools/versions.py                          # a part of the tests, in eight environments
    python tools/versions.py --write                  # and the table of docs/versions.md
    python tools/versions.py --python 3.10 --libraries oldest
    python tools/versions.py --whole                  # all tests of the default run, with torch

The oldest are those of numpy, onnx, onnx-ir and onnxruntime that have a wheel for that Python, at or above the lower
bound; all else is what pip chooses. Every environment is made in a temporary folder and removed again. Interpreters are
`python3.X` on the path, or pyenv's. Exit code 1 if a test fails anywhere.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarking.report import replace_section

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "versions.md"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
LIBRARIES = ("numpy", "onnx", "onnx-ir", "onnxruntime")
CHOICES = ("oldest", "newest")
PART = (
    "tests/end_to_end/test_cases.py",
    "tests/end_to_end/test_g02_opset.py",
    "tests/end_to_end/test_g03_dtypes.py",
    "tests/end_to_end/test_g06_constants.py",
    "tests/end_to_end/test_g16_files.py",
    "tests/calibration/test_archive.py",
    "tests/calibration/test_histogram.py",
    "tests/calibration/test_statistics.py",
    "tests/render",
    "tests/graph",
    "tests/weight_only/test_lanes.py",
    "tests/test_qparams.py",
    "tests/test_quantize.py",
)
"""What touches numpy, onnx, onnx-ir and onnxruntime most, without torch."""
_NEEDED = ("pytest>=8", "hypothesis>=6", "pillow>=9", "onnxsim>=0.4.36")
_TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Outcome:
    """What came of one environment.

    Attributes:
        python: full version, or what was asked for where it is missing.
        choice: of `CHOICES`.
        versions: of `LIBRARIES`, as installed.
        text: pytest's last line, or why there is none.
        passed: whether all tests that ran passed.
        wrong: tests that failed.
    """

    python: str
    choice: str
    versions: tuple[str, ...]
    text: str
    passed: bool
    wrong: tuple[str, ...] = ()


def interpreter(version: str) -> Path | None:
    """An interpreter of a minor version: on the path, or the newest of pyenv's."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    own = sorted((root / "versions").glob(f"{version}.*/bin/python"), key=lambda path: numbers(path.parts[-3]))
    found = shutil.which(f"python{version}")
    for path in (*reversed(own), *([Path(found)] if found else [])):
        if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return path
    return None


def numbers(version: str) -> tuple[int, ...]:
    """A version to compare: ``"1.20.0"`` → (1, 20), trailing zeros being no difference."""
    found = [int(part) for part in re.findall(r"\d+", version)]
    while found and not found[-1]:
        found.pop()
    return tuple(found)


def lower_bound(name: str) -> str:
    """The oldest version of a library that `pyproject.toml` allows."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(rf'^    "{name}>=([\d.]+)', text, re.M)
    if found is None:
        raise SystemExit(f"pyproject.toml names no lower bound of {name}")
    return found[1]


def oldest(listing: str, bound: str) -> str:
    """The oldest release at or above a bound among those with a wheel.

    Args:
        listing: what pip says of a version that does not exist; ``pip index versions`` lists those without wheels too.
        bound: the oldest that is allowed.
    """
    found = re.search(r"\(from versions: ([^)]*)\)", listing)
    versions: list[str] = re.findall(r"[^\s,]+", found[1]) if found else []
    allowed = [v for v in versions if re.fullmatch(r"[\d.]+", v) and numbers(v) >= numbers(bound)]
    if not allowed:
        raise SystemExit(f"pip lists no version from {bound} on: {listing.strip() or 'nothing'}")
    return min(allowed, key=numbers)


def try_out(python: Path, choice: str, *, whole: bool, folder: Path) -> Outcome:
    """Make an environment, run the tests in it and remove it."""
    environment = folder / "environment"
    try:
        _run([python, "-m", "venv", environment])
        own = environment / "bin" / "python"
        pip: list[str | Path] = [own, "-m", "pip", "--disable-pip-version-check", "-q"]
        version = _run([own, "-c", "import platform; print(platform.python_version())"]).strip()
        pins = []
        if choice == "oldest":
            for name in LIBRARIES:
                asked = [*pip, "install", "--dry-run", "--no-deps", "--only-binary", ":all:", f"{name}==0"]
                listing = subprocess.run(asked, capture_output=True, text=True).stderr
                pins.append(f"{name}=={oldest(listing, lower_bound(name))}")
        if whole:
            _run([*pip, "install", _TORCH, *pins])
        needed = [f"{ROOT}[test]"] if whole else [str(ROOT), *_NEEDED]
        _run([*pip, "install", "--prefer-binary", *pins, *needed[1:], "--editable", needed[0]])
        code = "from importlib.metadata import version as v; import sys; print(*map(v, sys.argv[1:]))"
        versions = tuple(_run([own, "-c", code, *LIBRARIES]).split())
        tests = [] if whole else PART
        command: list[str | Path] = [own, "-m", "pytest", "-p", "no:cacheprovider", *tests]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "CI": "true"})
        lines = [line for line in done.stdout.splitlines() if line.strip()] or done.stderr.splitlines()
        wrong = tuple(line for line in lines if line.startswith(("FAILED", "ERROR ")))
        return Outcome(version, choice, versions, _summary(lines), done.returncode == 0, wrong)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout or "").strip().splitlines()
        return Outcome(
            python.parts[-3], choice, ("",) * 4, f"cannot be installed: {said[-1] if said else error}", False
        )
    finally:
        shutil.rmtree(environment, ignore_errors=True)


def _summary(lines: Sequence[str]) -> str:
    found = [line for line in lines if re.search(r"\d+ (passed|failed|error)", line)]
    return re.sub(r" in [\d.]+s.*", "", found[-1]).strip("= ") if found else (lines[-1] if lines else "no output")


def _run(command: Sequence[str | Path]) -> str:
    done: subprocess.CompletedProcess[str] = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout


def report(outcomes: Sequence[Outcome], *, whole: bool) -> str:
    """The section of the page: what ran, a row an environment, and what failed."""
    what = "All tests of the default run" if whole else "A part of the tests (`PART` there)"
    lines = [
        f"{what}, by `python tools/versions.py{' --whole' if whole else ''} --write`: on every Python, with the oldest",
        "libraries that `pyproject.toml` allows and that have a wheel for it, and with the newest.",
        "",
        f"| Python | libraries | {' | '.join(LIBRARIES)} | tests |",
        f"|---|---|{'---|' * len(LIBRARIES)}---|",
    ]
    lines += [f"| {o.python} | {o.choice} | {' | '.join(o.versions)} | {o.text} |" for o in outcomes]
    for one in outcomes:
        if one.wrong:
            lines += ["", f"Python {one.python}, {one.choice}:", "", *(f"- `{line[:200]}`" for line in one.wrong)]
    return "\n".join(lines)


def main() -> int:
    """Print what came of each, write it into the page where asked to; 1 if anything fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", nargs="+", choices=PYTHONS, default=PYTHONS)
    parser.add_argument("--libraries", nargs="+", choices=CHOICES, default=CHOICES)
    parser.add_argument("--whole", action="store_true", help="all tests of the default run, with torch")
    parser.add_argument("--write", action="store_true", help="write the table of docs/versions.md")
    arguments = parser.parse_args()
    outcomes = []
    for version in arguments.python:
        python = interpreter(version)
        for choice in arguments.libraries:
            with tempfile.TemporaryDirectory() as folder:
                if python is None:
                    found = Outcome(version, choice, ("",) * len(LIBRARIES), "no interpreter found", False)
                else:
                    found = try_out(python, choice, whole=arguments.whole, folder=Path(folder))
            print(found.python, choice, *found.versions, found.text, *found.wrong, sep="\n    ", flush=True)
            outcomes.append(found)
    if arguments.write:
        replace_section(PAGE, "environments", report(outcomes, whole=arguments.whole))
    return not all(one.passed for one in outcomes)


if __name__ == "__main__":
    sys.exit(main())
