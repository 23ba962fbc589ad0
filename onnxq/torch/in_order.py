"""Outputs whose rows a TopK picked, each row in the place of the nearest one of the float model, with gradients."""

from __future__ import annotations

import torch

from onnxq.measuring.chosen_rows import Rows, order_of

__all__ = ["in_order"]

Tensor = torch.Tensor


def in_order(got: Tensor, exact: Tensor, along: Rows | None) -> Tensor:
    """As :func:`onnxq.measuring.chosen_rows.matched`.

    Args:
        got: of the quantized model.
        exact: of the float model.
        along: where rows lie; None where there are none.
    """
    if along is None:
        return got
    order = order_of(exact.detach().cpu().numpy(), got.detach().cpu().numpy(), along)
    if order is None:
        return got
    moved = got.movedim(order.axis, order.place)
    index = torch.from_numpy(order.nearest).to(got.device)[:, :, None].expand(order.shape)
    return moved.reshape(order.shape).gather(1, index).reshape(moved.shape).movedim(order.place, order.axis)
