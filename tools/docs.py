"""Bring README.md and the pages of docs/ that hold examples up to date: run these, and write their output and the
generated tables in.

    python tools/docs.py            # rewrite the pages
    python tools/docs.py --check    # exit code 1 where the tables differ from the parser, nothing is written

Blocks of Python run in the order of PAGES and of each page, in one namespace. In console blocks every line that starts
with ``$`` is run, and what it writes to stdout follows it. A block after ``<!-- file: NAME -->`` is written to that
file instead. All of it in one folder, empty at first.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from docstrings import markdown

from onnxq.arguments.flags import SEARCH
from onnxq.arguments.parser import make_parser
from onnxq.console.exit_codes import ExitCode
from onnxq.options import ImageOptions, Options

ROOT = Path(__file__).resolve().parent.parent
PAGES = tuple(ROOT / name for name in ("README.md", "docs/commands.md", "docs/python.md", "docs/extending.md"))
"""In the order in which their examples run."""
TABLES = (*PAGES, ROOT / "docs/contributing.md")
"""Pages with generated tables."""
_MARK = r"(?:<!-- (?P<what>file|command): (?P<name>[^>]+?) -->\n)?"
_BLOCK = re.compile(_MARK + r"```(?P<language>\w+)\n(?P<body>.*?)```\n", re.S)
_RUN_KEYS = ("data", "output", "statistics", "backend", *SEARCH)
_TABLE = re.compile(r"(<!-- generated: (?P<name>[^>]+?) -->\n).*?(<!-- end -->\n)", re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: after the fence.
        body: the lines between the fences.
        what: ``"file"`` or ``"command"`` where a comment before the block says so.
        name: the name in that comment.
        start: where the body starts in the text.
        page: the file it is in.
    """

    language: str
    body: str
    what: str | None
    name: str | None
    start: int
    page: Path


def blocks(pages: Iterable[Path] = PAGES) -> list[Block]:
    """All fenced blocks with a language."""
    return [
        Block(m["language"], m["body"], m["what"], m["name"], m.start("body"), page)
        for page in pages
        for m in _BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]


def command(name: str) -> str:
    """The command of a block marked ``<!-- command: NAME -->``."""
    return next(b.body.strip() for b in blocks() if (b.what, b.name) == ("command", name))


def commands(block: Block) -> list[str]:
    """The commands of a console block."""
    return [line[2:] for line in block.body.splitlines() if line.startswith("$ ")]


def run(line: str, folder: Path) -> tuple[int, str]:
    """Run an ``onnxq`` command in a folder: exit code and stdout."""
    program, *arguments = shlex.split(line)
    if program != "onnxq":
        raise ValueError(f"{line!r} is not an onnxq command")
    done = subprocess.run(
        [sys.executable, "-m", "onnxq", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONSAFEPATH": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode, done.stdout.decode("utf-8")


def play(
    folder: Path, run: Callable[[str, Path], tuple[int, str]] = run
) -> Iterator[tuple[Block, list[tuple[str, int, str]]]]:
    """Run all examples in order.

    Args:
        folder: where they run.
        run: runs a command there, and gives its exit code and stdout.

    Yields:
        Each Python and console block, and for the latter command, exit code and stdout of each line.
    """
    namespace: dict[str, object] = {}
    before = Path.cwd()
    os.chdir(folder)
    try:
        for block in blocks():
            if block.what == "file" and block.name:
                (folder / block.name).write_text(block.body, encoding="utf-8")
            elif block.language == "python":
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(block.body, str(block.page), "exec"), namespace)
                yield block, []
            elif block.language == "console":
                yield block, [(line, *run(line, folder)) for line in commands(block)]
    finally:
        os.chdir(before)


def tables(text: str) -> str:
    """The text with its generated tables made anew."""
    made = {"options": _options, "exit codes": _exit_codes, "packages": _packages}
    return _TABLE.sub(lambda m: m[1] + made[m["name"]]() + m[3], text)


def verb_parsers() -> dict[str, argparse.ArgumentParser]:
    """Verb → its parser."""
    actions = make_parser()._actions
    return dict(next(a.choices for a in actions if isinstance(a, argparse._SubParsersAction)))


def _options() -> str:
    """Every option of every verb: flag, key in a file or in `Options`, what it means."""
    fields = {f.name for f in dataclasses.fields(Options)}
    fields |= {f"image_{f.name}" for f in dataclasses.fields(ImageOptions)} | set(_RUN_KEYS)
    rows: dict[tuple[str, str], tuple[str, list[str]]] = {}
    parsers = verb_parsers()
    for verb, parser in parsers.items():
        for action in parser._actions:
            if not action.option_strings or action.dest == "help":
                continue
            flags = ", ".join(f"`{flag}`" for flag in action.option_strings)
            value = "\\|".join(map(str, action.choices)) if action.choices else action.metavar
            name = action.dest.removeprefix("opt_")
            key = name.replace("image_", "image.") if name in fields else ""
            flags += f" {value}" if value and action.nargs != 0 else ""
            rows.setdefault((flags, action.help or ""), (key, []))[1].append(verb)
    lines = ["| option | key | | verbs |", "|---|---|---|---|"]
    for (flags, text), (key, verbs) in rows.items():
        where = "all" if len(verbs) == len(parsers) else ", ".join(verbs)
        lines.append(f"| {flags} | {f'`{key}`' if key else ''} | {text} | {where} |")
    return "\n".join(lines) + "\n"


def _exit_codes() -> str:
    """The exit codes as ``onnxq --help`` lists them."""
    rows = (f"| {code:d} | {code.meaning} |" for code in ExitCode)
    return "\n".join(["| code | |", "|--:|---|", *rows]) + "\n"


def _packages() -> str:
    """What is in each package of the source, by its docstring's first sentence."""
    rows = []
    for path in sorted(ROOT.glob("onnxq/*/__init__.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        rows.append(f"| `{path.parent.name}` | {markdown(docstring.splitlines()[0])} |")
    return "\n".join(["| in `onnxq/` | |", "|---|---|", *rows]) + "\n"


def refreshed() -> dict[Path, str]:
    """Page → its text with tables and outputs made anew."""
    with tempfile.TemporaryDirectory() as folder:
        played = list(play(Path(folder)))
    texts = {page: page.read_text(encoding="utf-8") for page in TABLES}
    for block, results in reversed(played):
        if block.language == "console":
            body, text = "".join(f"$ {line}\n{output}" for line, _, output in results), texts[block.page]
            texts[block.page] = text[: block.start] + body + text[block.start + len(block.body) :]
    return {page: tables(text) for page, text in texts.items()}


def main() -> int:
    """Rewrite or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the tables are up to date")
    if parser.parse_args().check:
        return int(any(tables(text) != text for text in (page.read_text(encoding="utf-8") for page in TABLES)))
    for page, text in refreshed().items():
        page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
