"""What a pass did to the graph, or why it left something alone."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CONVERTED", "NOT_FOLDED", "Note"]

CONVERTED = "converted"
"""How the raising of the opset begins to say that onnx's converter did it."""
NOT_FOLDED = "not folded"
"""How a pass that folds begins to say why it left a node."""


@dataclass(frozen=True, slots=True)
class Note:
    """One remark of one pass.

    Attributes:
        pass_name: the pass, e.g. ``"fold_batchnorm"``.
        node: name of the node (or tensor, or domain) it is about; empty when it is about the whole model.
        message: what was done, or why it was not.
    """

    pass_name: str
    node: str
    message: str

    @property
    def by_converter(self) -> bool:
        """Whether it says that onnx's converter has raised the opset."""
        return self.pass_name == "opset" and self.message.startswith(CONVERTED)

    def __str__(self) -> str:
        return f"{self.pass_name}: {self.node}: {self.message}" if self.node else f"{self.pass_name}: {self.message}"
