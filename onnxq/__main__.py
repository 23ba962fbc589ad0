"""``python -m onnxq`` and the console script: the command line, and Ctrl-C while it is still being imported."""

from __future__ import annotations

import sys


def program() -> int:
    """Run the command line of this process.

    Returns:
        The exit code, see :class:`onnxq.console.exit_codes.ExitCode`.
    """
    try:
        from onnxq.cli import main

        return main()
    except KeyboardInterrupt:  # before the command line could begin
        return 130


if __name__ == "__main__":
    sys.exit(program())
