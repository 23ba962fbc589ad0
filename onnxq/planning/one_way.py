"""What a table of tensors cannot say: a tensor that is quantized in two ways."""

from __future__ import annotations

from onnxq.backend import Backend
from onnxq.console.terminal import listed
from onnxq.errors import OptionError
from onnxq.options import Options
from onnxq.plan import Plan, Site

__all__ = ["require_one_way"]

_NAMED = 3


def require_one_way(plan: Plan, target: Backend, options: Options) -> None:
    """Refuse overrides that quantize a tensor for one reader otherwise than for others, where a table has one entry.

    Args:
        plan: as the options ask for it.
        target: whose format says whether there is a table.
        options: overrides among them.

    Raises:
        OptionError: names the tensor, its readers, and the override that is of all of them.
    """
    form = target.format_named(options.format)
    if not (options.override and form.simulated and form.beside):
        return
    ways: dict[str, list[Site]] = {}
    for site in plan.sites:
        if site.role == "activation":
            ways.setdefault(site.tensor, []).append(site)
    for tensor, sites in ways.items():
        if len(sites) == 1:
            continue
        with_range = len({str(site.spec) for site in sites}) < len(sites)
        said = " and ".join(_way(site, with_range=with_range) for site in sites)
        raise OptionError(
            f"tensor {tensor!r} is asked for in two ways, {said}; {target.name} has one entry for each tensor",
            where="override",
            hint=f"Name the tensor in place of a node: {tensor!r}",
        )


def _way(site: Site, *, with_range: bool) -> str:
    """``uint16 asymmetric per tensor for 'c1'``."""
    names = [edge.node for edge in site.readers]
    spec = f"{site.spec}, range {site.spec.range}," if with_range else str(site.spec)
    return f"{spec} for {listed(names, _NAMED)}" if names else f"{spec} where it is made"
