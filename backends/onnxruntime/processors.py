"""What onnxruntime's kernels take on a processor with VNNI instructions, and on one without: figures for the formulas.

All are nanoseconds on one thread, of kernels measured one by one (``tools/conv_costs.py``, onnxruntime 1.32): with VNNI
(an AMD EPYC of family 26) 950 convolutions of planes, 570 of groups, 240 depthwise, 230 of lines, 70 of volumes and 130
products of matrices, and 1,290 convolutions within 22 nets (``tools/net_costs.py``), whose data and weights come from
farther away; without, 256 of planes, 144 of lines and 24 of groups on AVX-512, and of the others fewer. Only what is of
one processor can be compared: they differ in other respects, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["NEAR", "NO_VNNI", "VNNI", "Depthwise", "Linear", "Products"]

NEAR = 1 << 14
"""Weights that caches are taken to hold from one run to the next."""


class Linear(NamedTuple):
    """Of a position of the output and a group of channels.

    Attributes:
        fixed: whatever the sizes.
        output: for each channel out.
        padded: for each multiply-accumulate, where channels out are filled up to blocks of 16.
        alone: times ``padded``, where there is one block only.
        mac: for each multiply-accumulate that counts.
        term: for each term of a sum: what is copied before it is multiplied.
        apart: for each term on top of that, where windows move by more than one element.
        row: for each term of a row of positions.
        tap: for each tap.
        piece: for each piece of what the taps read that is copied at once.
    """

    fixed: float = 0.0
    output: float = 0.0
    padded: float = 0.0
    alone: float = 1.0
    mac: float = 0.0
    term: float = 0.0
    apart: float = 0.0
    row: float = 0.0
    tap: float = 0.0
    piece: float = 0.0


class Depthwise(NamedTuple):
    """Of a position of the output and all channels.

    Attributes:
        fixed: whatever the sizes.
        tap: for each tap.
        channel: for each channel.
        both: for each tap of each channel.
        edge: for each channel of a window that reaches into the padding, in place of ``channel``.
        edge_both: for each tap of each channel there, in place of ``both``.
        read: for each element of the input that there is to a position.
    """

    fixed: float = 0.0
    tap: float = 0.0
    channel: float = 0.0
    both: float = 0.0
    edge: float = 0.0
    edge_both: float = 0.0
    read: float = 0.0


Sides = tuple[Linear, Linear]
"""Of kernels with one tap, and with several."""


@dataclass(frozen=True)
class Products:
    """Sums of products.

    Attributes:
        unit: nanoseconds in the unit of the table of costs.
        blocks: convolutions in float that compute blocks of 16 channels of planes, in and out.
        few: those of planes with fewer than 16 channels in.
        few_lines: those of lines.
        copies: those that copy what the taps read, as all of lines do.
        doubling: from one channel to two, 7x7, at a stride of 2.
        copies_volumes: those of volumes.
        pointers: in integers, following a pointer for each tap.
        pointers_volumes: the same of volumes.
        gathers: copying what the taps read.
        gathers_lines: of lines.
        gathers_volumes: of volumes.
        groups: of several groups of channels.
        from_one: of groups of one channel in.
        single: from one channel to one.
        squares: depthwise in float, of planes whose channels come in fours, 3x3, 5x5 and 7x7.
        planes: of other sizes.
        planes_odd: of channels that do not come in fours.
        lines: of lines.
        volumes: of volumes.
        integer: depthwise in integers, by what the number of channels is divided by: 16, 8, 4 or 1.
        plane: more of planes and volumes.
        volume_tap: more for each tap of volumes.
        left: more of integers for each tap of each channel that is left over of blocks of 8.
        weights: in float and in integers: for each number of weights of more than :data:`NEAR`, which come from afar.
        call: of a call, more in integers than in float.
        group: of a call, in float, for each of several groups that are whole blocks of channels.
        entry: for each element of a model input of few channels, in float.
        transposed: of a transposed convolution in float: for each product, and for each sum of them that is placed.
        placed: for each element of one that is a convolution of its phases, in integers.
        term: of a product of matrices, float and integer: for each term of an element's sum.
        element: for each element.
    """

    unit: float
    blocks: Sides
    few: Sides
    few_lines: Sides
    copies: Sides
    doubling: Linear
    copies_volumes: Sides
    pointers: Sides
    pointers_volumes: Sides
    gathers: Sides
    gathers_lines: Sides
    gathers_volumes: Sides
    groups: Sides
    from_one: Linear
    single: Linear
    squares: Depthwise
    planes: Depthwise
    planes_odd: Depthwise
    lines: Depthwise
    volumes: Depthwise
    integer: tuple[Depthwise, Depthwise, Depthwise, Depthwise]
    plane: float
    volume_tap: float
    left: float
    weights: tuple[float, float]
    call: float
    group: float
    entry: float
    transposed: tuple[float, float]
    placed: float
    term: tuple[float, float]
    element: tuple[float, float]


VNNI = Products(
    unit=1.0,
    blocks=(Linear(0.3, 0.005, 0.0076, alone=1.38), Linear(padded=0.0078, alone=1.42)),
    few=(
        Linear(0.35, 0.01, 0.0197, alone=1.56, term=0.1),
        Linear(0.3, 0.007, 0.0075, alone=1.48, term=0.02),
    ),
    few_lines=(Linear(1.0, 0.022, mac=0.0072, term=0.073), Linear(1.0, 0.016, mac=0.0078, term=0.137)),
    copies=(
        Linear(0.1, 0.06, mac=0.0085, term=0.075, apart=0.3),
        Linear(0.3, 0.01, mac=0.0082, term=0.13, apart=0.2, row=2.2),
    ),
    doubling=Linear(1.1, term=0.126, row=0.98),
    copies_volumes=(Linear(0.6, 0.034, mac=0.0067, term=0.09), Linear(0.7, 0.017, mac=0.0076, term=0.24)),
    pointers=(Linear(1.6, 0.033, 0.0019), Linear(1.6, 0.033, 0.0019, tap=0.5)),
    pointers_volumes=(Linear(1.3, 0.036, 0.0019), Linear(4.9, 0.05, 0.0018, tap=4.5)),
    gathers=(Linear(8.0, 0.24, 0.0015), Linear(6.0, 0.17, 0.0016, term=0.045, piece=3.2)),
    gathers_lines=(Linear(4.9, 0.145, 0.0016), Linear(6.6, 0.155, 0.0016, term=0.036)),
    gathers_volumes=(Linear(3.7, 0.2, 0.0016, term=0.033), Linear(6.5, 0.15, 0.0018, term=0.03, tap=5.0)),
    groups=(Linear(4.0, 0.2, 0.0011), Linear(6.0, 0.17, 0.0019, term=0.03, tap=2.2)),
    from_one=Linear(10.8, 0.016, 0.032, tap=1.7),
    single=Linear(4.0, tap=0.83),
    squares=Depthwise(channel=0.06, both=0.008, edge=0.9, read=0.04),
    planes=Depthwise(channel=0.06, both=0.0105, edge_both=0.028, read=0.04),
    planes_odd=Depthwise(both=0.08, edge=14.0, edge_both=0.08, read=0.5),
    lines=Depthwise(channel=0.08, both=0.0935),
    volumes=Depthwise(channel=0.03, both=0.217),
    integer=(Depthwise(3.7, 0.4, 0.06, 0.0119), *(Depthwise(0.5, 0.65, 0.16, 0.0444),) * 3),
    plane=3.5,
    volume_tap=3.9,
    left=0.35,
    weights=(0.14, 0.05),
    call=500.0,
    group=1000.0,
    entry=0.6,
    transposed=(0.008, 0.33),
    placed=0.15,
    term=(0.0075, 0.00205),
    element=(0.0, 0.09),
)

NO_VNNI = Products(
    unit=0.22,
    blocks=(Linear(0.0, 0.22, 0.010, alone=1.75), Linear(0.0, 0.22, 0.010, alone=1.5)),
    few=(Linear(0.0, 0.22, 0.0155), Linear(0.0, 0.22, 0.0155)),
    few_lines=(Linear(0.0, 0.22, 0.0155), Linear(0.0, 0.22, 0.0155)),
    copies=(Linear(0.0, 0.22, 0.0125, alone=1.3), Linear(0.0, 0.22, 0.0125, alone=1.3, term=0.2)),
    doubling=Linear(1.1, term=0.126, row=0.98),
    copies_volumes=(Linear(0.0, 0.22, 0.0155), Linear(0.0, 0.22, 0.0155, term=0.37)),
    pointers=(Linear(5.0, 0.06, 0.0062), Linear(5.0, 0.06, 0.0062, tap=1.2)),
    pointers_volumes=(Linear(16.0, 0.06, 0.0062), Linear(5.0, 0.06, 0.0062, tap=6.0)),
    gathers=(Linear(13.0, 0.5, 0.0062, term=0.03), Linear(13.0, 0.5, 0.0062, term=0.14, tap=0.8, piece=13.0)),
    gathers_lines=(Linear(13.0, 0.5, 0.0062, term=0.03), Linear(13.0, 0.5, 0.0062, term=0.14, piece=13.0)),
    gathers_volumes=(Linear(16.0, 0.06, 0.0062), Linear(5.0, 0.06, 0.0062, tap=17.0)),
    groups=(Linear(8.0, 0.25, 0.0062), Linear(13.0, 0.5, 0.0062, term=0.14, tap=13.8)),
    from_one=Linear(13.0, 0.5, 0.0062, term=0.14, tap=10.8),
    single=Linear(4.0, tap=0.95),
    squares=Depthwise(channel=0.066, both=0.02, edge=0.066, edge_both=0.02),
    planes=Depthwise(channel=0.066, both=0.02, edge=0.066, edge_both=0.02),
    planes_odd=Depthwise(both=0.27, edge_both=0.27),
    lines=Depthwise(channel=0.17, both=0.1),
    volumes=Depthwise(channel=0.17, both=0.5),
    integer=(
        Depthwise(7.4, 0.22, both=0.040),
        Depthwise(7.4, 1.82, both=0.040),
        Depthwise(7.4, 3.52, both=0.040),
        Depthwise(10.0, 6.5, 0.35, 0.08),
    ),
    plane=0.0,
    volume_tap=6.4,
    left=0.0,
    weights=(0.0, 0.0),
    call=0.0,
    group=0.0,
    entry=0.0,
    transposed=(0.0125, 0.5),
    placed=0.15,
    term=(0.0099, 0.00671),
    element=(0.0, 0.33),
)
