"""``python -m onnxq`` and the console script: the command line, and signals before it has begun and after its end."""

from __future__ import annotations

import sys


def program() -> int:
    """Run the command line of this process.

    Returns:
        The exit code, see :class:`onnxq.console.exit_codes.ExitCode`.
    """
    try:
        from onnxq.cli import main
        from onnxq.console.signals import ignore_signals

        code = main()
        ignore_signals()  # all is done and told; libraries take a second or more to end
        return code
    except KeyboardInterrupt:  # before the command line could begin
        return 130


if __name__ == "__main__":
    sys.exit(program())
