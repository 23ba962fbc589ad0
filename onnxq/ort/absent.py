"""Execution providers that onnxruntime has, but not the one that is installed here."""

from __future__ import annotations

from collections.abc import Sequence

import onnxruntime as ort

__all__ = ["absent_providers"]


def absent_providers(providers: Sequence[str] | None) -> list[str]:
    """Those of some providers that another build of onnxruntime has, in full; names that no build knows are not listed.

    Args:
        providers: ``"CUDA"`` or ``"CUDAExecutionProvider"``.
    """
    here = set(ort.get_available_providers())
    known = {str(name).lower().removesuffix("executionprovider"): str(name) for name in ort.get_all_providers()}
    named = (known.get(name.lower().removesuffix("executionprovider")) for name in providers or ())
    return [name for name in named if name is not None and name not in here]
