"""``python -m onnxq``: the command line."""

from __future__ import annotations

import sys

from onnxq.cli import main

sys.exit(main())
