"""``python -m onnxq``: the command line."""

from __future__ import annotations

import sys

try:
    from onnxq.cli import main

    sys.exit(main())
except KeyboardInterrupt:  # before the command line could begin
    sys.exit(130)
