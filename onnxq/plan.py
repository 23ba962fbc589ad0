"""Where a model is quantized: sites, ties, and for all that stays float the reason. No data, no numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from onnxq.spec import QuantSpec

__all__ = ["Edge", "Kept", "Plan", "Role", "Site"]

Role = Literal["activation", "constant", "weight", "bias"]


@dataclass(frozen=True, slots=True)
class Edge:
    """One input of one node."""

    node: str
    index: int


@dataclass(frozen=True, slots=True)
class Site:
    """A place where a tensor is quantized.

    Attributes:
        name: unique in the plan; the tensor's name unless one tensor is quantized in several ways.
        tensor: the tensor in the float model.
        role: activation, constant (a constant operand quantized like an activation), weight or bias.
        spec: how.
        readers: the inputs that read the quantized tensor.
        produced: the quantizer stands directly behind the producer, so every reader that has no other site of this
            tensor sees the quantized one.
        tied_to: name of the site whose scale and zero point this one shares.
        fixed: the real range, where it follows from an operator's definition.
        factors: for a bias, the sites of data and weight; its scale is the product of theirs. ``None`` where that would
            overflow 32 bits (weights of more than 8 bits): the bias then has a scale of its own.
        source: for an activation, the tensor whose statistics it takes: itself, or the one it is a reordering of.
        spans: tensors whose ranges this site's grid holds as well: what is tied to it, but not part of its tensor. Of
            constants that is all of them.
    """

    name: str
    tensor: str
    role: Role
    spec: QuantSpec
    readers: tuple[Edge, ...]
    produced: bool = False
    tied_to: str | None = None
    fixed: tuple[float, float] | None = None
    factors: tuple[str, str] | None = None
    source: str = ""
    spans: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """A node that stays float, and why."""

    node: str
    op: str
    reason: str


@dataclass(frozen=True, repr=False)
class Plan:
    """Where a model is quantized for one target.

    Attributes:
        backend: name of the target.
        sites: in the order of the graph.
        quantized: node → operator type, for every node whose inputs are quantized.
        stored: node → operator type, for every float node whose weights are stored as integers.
        absorbed: activation function (Relu, Clip) → the node it is computed together with.
        kept_float: every node with float arithmetic that stays float.
    """

    backend: str
    sites: tuple[Site, ...]
    quantized: Mapping[str, str]
    absorbed: Mapping[str, str] = field(default_factory=dict)
    stored: Mapping[str, str] = field(default_factory=dict)
    kept_float: tuple[Kept, ...] = ()

    def __repr__(self) -> str:
        stored = f"; {len(self.stored)} with stored weights" if self.stored else ""
        sites = f"{len(self.sites)} tensors quantized" if len(self.sites) != 1 else "1 tensor quantized"
        return f"<Plan for {self.backend}: {self.done} of {self.total} nodes in integers{stored}; {sites}>"

    @cached_property
    def by_name(self) -> dict[str, Site]:
        """Sites by their names."""
        return {site.name: site for site in self.sites}

    def by_edge(self, *roles: Role) -> dict[Edge, Site]:
        """The site that each input of a node reads; where roles are given, of sites of these alone."""
        return {edge: site for site in self.sites if not roles or site.role in roles for edge in site.readers}

    @property
    def done(self) -> int:
        """Number of nodes that run in integers: quantized ones, and functions computed together with one."""
        return len(self.quantized) + len(self.absorbed)

    @property
    def total(self) -> int:
        """Number of nodes with float arithmetic before quantization: those that run in integers now, and the others."""
        return self.done + len(self.kept_float)

    def in_integers(self, node: str | None) -> bool:
        """Whether a node of that name is one of :attr:`done`."""
        return node in self.quantized or node in self.absorbed

    def root(self, site: Site) -> Site:
        """The site whose numbers ``site`` uses: itself, or the one it is tied to."""
        while site.tied_to is not None:
            site = self.by_name[site.tied_to]
        return site

    def observed(self) -> list[str]:
        """Tensors whose statistics the plan needs, in the order of the graph, without repeats."""
        roots = [s for s in self.sites if s.role == "activation" and s.tied_to is None]
        names = ((*(() if s.fixed else (s.source,)), *s.spans) for s in roots)
        constants = {s.tensor for s in self.sites if s.role == "constant"}
        return list(dict.fromkeys(name for group in names for name in group if name not in constants))

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready data."""
        return {
            "backend": self.backend,
            "nodes": self.total,
            "integer_nodes": self.done,
            "sites": [
                {
                    "name": s.name,
                    "tensor": s.tensor,
                    "role": s.role,
                    "spec": str(s.spec),
                    "range": list(s.fixed) if s.fixed else s.spec.range,
                    "tied_to": s.tied_to,
                    "readers": [f"{e.node}:{e.index}" for e in s.readers],
                }
                for s in self.sites
            ],
            "quantized": dict(self.quantized),
            "stored": dict(self.stored),
            "absorbed": dict(self.absorbed),
            "kept_float": [{"node": k.node, "op": k.op, "reason": k.reason} for k in self.kept_float],
        }

    def to_text(self) -> str:
        """The plan as stable text, a line a site or node; golden tests compare it."""
        lines = [f"backend {self.backend}"]
        for s in self.sites:
            extra = f" tied to {s.tied_to}" if s.tied_to else f" in [{s.fixed[0]:g}, {s.fixed[1]:g}]" if s.fixed else ""
            readers = " ".join(f"{e.node}:{e.index}" for e in s.readers)
            lines.append(f"{s.role} {s.name}: {s.spec}{extra} -> {readers or '(no reader)'}")
        lines += [f"absorbed {node} into {into}" for node, into in self.absorbed.items()]
        lines += [f"stored {node} ({op}): weights only" for node, op in self.stored.items()]
        lines += [f"float {k.node} ({k.op}): {k.reason}" for k in self.kept_float]
        return "\n".join(lines) + "\n"
