"""With what code the command line ends, and what each means."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitCode"]


class ExitCode(IntEnum):
    """An exit code of ``onnxq``, with its ``meaning``."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        made = int.__new__(cls, code)
        made._value_ = code
        made.meaning = meaning
        return made

    OK = 0, "done"
    FAILED = 1, "an error: the message says what, where and what to do (-v adds the traceback)"
    USAGE = 2, "wrong usage"
    BELOW = 3, "quantize, verify: worse than --min-sqnr or --max-steps allow; check: more than notes was found"
    UNMET = 4, "quantize --max-drop: nothing tried meets the target; the best was written"
    HUNG_UP = 129, "ended by SIGHUP: its terminal was closed"
    INTERRUPTED = 130, "interrupted"
    BROKEN_PIPE = 141, "the reader of the output closed it"
    TERMINATED = 143, "ended by SIGTERM: kill, timeout, a scheduler"
