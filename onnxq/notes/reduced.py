"""What is said of weights whose range is reduced because this processor needs it."""

from __future__ import annotations

from onnxq.options import Options
from onnxq.plan import Plan

__all__ = ["reduced"]


def reduced(plan: Plan, options: Options) -> list[str]:
    """A note where the user did not ask for it, nothing else."""
    count = sum(site.spec.reduced for site in plan.sites)
    if options.reduce_range is not None or not count:
        return []
    weights = "1 weight has" if count == 1 else f"{count} weights have"
    return [
        f"reduce_range: {weights} a slightly larger scale, as this processor (x86 without VNNI) cuts off sums of 8-bit "
        "products: --full-range where the model will run on another kind"
    ]
