"""Random graphs are small; what onnxruntime's forms are written for is large."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from onnxq.backends.onnxruntime import fast_floats

__all__ = ["of_any_size"]


@contextmanager
def of_any_size() -> Iterator[None]:
    """Operators on floats are written in another form however few elements they have."""
    forms = {op: form._replace(least=1) for op, form in fast_floats._FORMS.items()}
    with patch.object(fast_floats, "_FORMS", forms), patch.object(fast_floats, "_OF_MISH", 1):
        yield
