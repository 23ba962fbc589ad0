"""What a target can do, as a table of rows, and how its result is written.

A backend is data. The engine (:mod:`onnxq.planning`) reads the rows; no shared code asks which backend it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import onnx_ir as ir

from onnxq.asked_scheme import check_scheme
from onnxq.calibration.ranges import check_range
from onnxq.checks.findings import Finding
from onnxq.errors import OptionError
from onnxq.format import Format
from onnxq.graph.note import Note
from onnxq.graph.passes.fused_chains import FUSED
from onnxq.graph.passes.write_out import COMPOSITE
from onnxq.graph.recognition.groups import KINDS
from onnxq.op_rule import ANY_BITS, Kind, OpRule
from onnxq.options import Options
from onnxq.plan import Plan
from onnxq.qparams import QParams
from onnxq.spec import NEWEST_OPSET, QuantSpec

__all__ = ["Backend", "Format", "Kind", "OpRule"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Backend:
    """A target.

    Attributes:
        name: what ``--backend`` takes.
        title: one line for tables.
        activation: spec of activations. Where it is symmetric the target has no zero points: options that ask for them
            are refused, and so are models to deploy that have them.
        weight: spec of weights; its granularity is replaced by the operator's channel axis where ``per_channel``.
        rules: rows by operator type, ``"DOMAIN::OP"`` of another domain; ``"Gather:constant"`` where the first input is
            a constant, ``"MatMul:product"`` where no weight is, ``"ConvTranspose:stored"`` where the row refuses.
        formats: ways to write the result by name, the target's default first.
        bias: ``"int32"`` (scale of data times scale of weight), ``"float"``, or a spec of its own.
        per_channel: weights have a scale for each output channel where their row has a ``weight_axis``, unless the
            options say otherwise; where no row has one they never do.
        channel_activations: activations of a model to deploy may have a scale for each channel; none are given here.
        activation_zero_points: activations of a model to deploy may have zero points where the target's own have none.
        weight_zero_points: weights of a model to deploy may have some: ``"tensor"``, with one scale; ``"beyond"``, none
            of its integers too; ``"channel"``, with one a channel too. What is given here says ``asymmetric_weights``.
        asymmetric_weights: widths in which weights of Conv, Gemm and the like may have zero points.
        overflows: whether sums of 8-bit products overflow where the artifact runs, see :mod:`onnxq.for_processor`.
        overflowing: gives the target with the costs of processors where they do, which are slower in integers.
        moves_weights: weights of ``asymmetric_weights`` have zero points unless the options say otherwise; else
            where the options ask for them.
        unsigned: activations that the options make symmetric stay unsigned, with the zero point in the middle of the
            grid; else they become signed.
        constants: which constant operands that are no weights are quantized like activations: ``"all"``,
            ``"tensors"`` (those of more than one element) or ``"none"``.
        inputs_only: an activation is quantized on its way into the operators that want it so, and nowhere else: other
            readers of the same tensor, and model outputs, see it as it is, also where a row says ``output``.
        first_last_bits: least width of weights and inputs of the layers that read a model input or make a model output.
        absorbed: activation functions that the target may compute together with the quantized operator in front of
            them; then no quantizer stands between the two.
        absorbs: (operator, activation function behind it) → whether the target computes these two together, asked of
            the functions that ``absorbed`` names. ``None``: always, but behind an operator of a ``fixed`` range.
        absorbs_by_zero_point: an activation function is absorbed by a grid behind it that ends where the function does;
            with a grid symmetric about zero the two are computed in float, which placement ``auto`` then leaves so.
        drops_absorbed: an absorbed Relu or Clip is taken out of a QDQ model where the quantizer behind it saturates at
            the same bounds.
        complete_units: every quantized operator has a quantizer directly behind it, or an entry for its output in the
            table: in front of an absorbed activation function too, where that cannot be taken out. An operator of a
            model given, whose output has no scale, stays float.
        whole: kinds of :func:`onnxq.graph.recognition.groups.find_groups` whose nodes all stay float.
        by_cost: placement ``auto`` weighs the costs below; else it quantizes all that the table allows.
        mixes: float nodes may stand among integer ones, so that data may keep float what 8 bits would destroy; else
            only the table, ``in_float`` and the user decide.
        in_float: where it does not mix, operators that are computed in float beside integers in any case: what only
            moves values from inputs of the model or from one of them to one of them stays float.
        bodies: nodes inside of If, Loop and Scan may be quantized; else the artifact names tensors of the main graph.
        float_tails: where it does not mix, what ends the model may stay float for the data's sake, as no
            multiply-accumulate comes behind: a processor beside the target computes it.
        all_integers: the vendor's tool makes integers of every tensor, those that the artifact has no numbers for too.
        has_whole: of Attention, RMSNormalization and RotaryEmbedding (opset 23), and of the operators that
            onnxruntime's optimizer fuses (``"com.microsoft::BiasGelu"``), those that the target is given as they are;
            the others are written out with the operators that they consist of. A row for the arithmetic of a fused one
            says the same.
        runtime_operators: what runs the artifact has onnxruntime's own operators, or ``lacks`` says which of them it
            has not; else nodes that are left of them are warned of.
        min_opset: the model is raised to at least this opset.
        max_opset: the newest opset that the target reads, at most the newest whose quantizers onnxruntime runs.
        wide_domain: domain of QuantizeLinear and DequantizeLinear with 4- and 16-bit integers below opset 21, where the
            target knows one (``"com.microsoft"``); else the model is raised to opset 21.
        weight_bits: widths of weights that the target has.
        act_bits: widths of activations.
        refuses: raises an OptionError for options that make no sense on the target, beyond what :meth:`require` finds
            in this table; called before any work.
        rewrite: brings the float model into the form that the target wants, in place, before it is planned. Tensors
            that are left keep names and (to rounding, or as the target computes them) numbers; gives notes.
        rewrite_opset: the opset that ``rewrite`` makes use of for a model; the model is raised to it unless the user
            asks for one.
        adjust: makes numbers fit the target's limits, in place, whenever numbers were chosen or given; gives notes.
        lacks: what of a float model the target cannot run, or not well in the widths that the options ask for: for
            ``onnxq check``, and for the warnings of a result.
        quantize_cost: cost per element of entering integers, in the unit of ``OpRule.cost``.
        dequantize_cost: cost per element of leaving them.
        split_cost: kind of a group of nodes that one float kernel computes → cost per element of computing it node by
            node, as where each of its readers has a DequantizeLinear of its own in front.
        reorder_cost: cost per element of leaving the layout of float convolutions, on top of ``quantize_cost``.
        node_cost: cost of a kernel call whatever its size, in the same unit.
        spill: tensor, number of its elements → what converting each costs more where caches do not hold it.
        fused_float: (operator, operator behind it) pairs of which a float kernel computes the second for free → its
            cost per element elsewhere.
        quantizer_bits: widths that the target's QuantizeLinear can have; activations of another width that it allows
            are written as ``onnxq::FakeQuantize``.
        stores_weights: the weights of layers that stay float are stored as integers, too, not those of WEIGHT_ONLY rows
            alone.
        stored_because: operator of a WEIGHT_ONLY row → why its arithmetic stays float, if not for want of a kernel.
        float_needs: what operators of the table need where they stay float, said of a result that has some.
        recast: a rewriting of the rendered QDQ model, in place, into faster forms, which may have other tensors inside.
        finish: a last one, in place, that keeps them.
        runtime: name of the real runtime in ``onnxq.runtimes`` that can load the artifact.
        runtime_file: writes, beside an ONNX model that is written, float or with quantizers, or over it, the file that
            the runtime takes in its place: for copies of an artifact with more outputs, for parts of it, for the float
            model. ``None``: it takes ONNX as onnxruntime does.
        artifacts: files written, for the table of targets.
        next_step: the vendor's command that takes the artifact in the target's default format, ``MODEL`` standing for
            its path without the ending; several commands are joined by ``&&``.
        verified: what a real runtime has confirmed.
        unverified: what is known from documents only.
    """

    name: str
    title: str
    activation: QuantSpec
    weight: QuantSpec
    rules: Mapping[str, OpRule]
    formats: Mapping[str, Format]
    bias: Literal["int32", "float"] | QuantSpec = "int32"
    per_channel: bool = True
    channel_activations: bool = False
    activation_zero_points: bool = False
    weight_zero_points: Literal["", "tensor", "channel", "beyond"] = ""
    asymmetric_weights: frozenset[int] = frozenset()
    overflows: Callable[[], bool] | None = None
    overflowing: Callable[[Backend], Backend] | None = None
    moves_weights: bool = False
    unsigned: bool = False
    constants: Literal["all", "tensors", "none"] = "all"
    inputs_only: bool = False
    first_last_bits: int | None = None
    absorbed: frozenset[str] = field(default_factory=lambda: frozenset({"Relu", "Clip"}))
    absorbs: Callable[[ir.Node, ir.Node], bool] | None = None
    absorbs_by_zero_point: bool = False
    drops_absorbed: bool = True
    complete_units: bool = False
    whole: frozenset[str] = frozenset(KINDS)
    by_cost: bool = False
    mixes: bool = True
    in_float: frozenset[str] = frozenset()
    bodies: bool = True
    float_tails: bool = False
    all_integers: bool = False
    has_whole: frozenset[str] = frozenset()
    runtime_operators: bool = False
    min_opset: int = 14
    max_opset: int = NEWEST_OPSET
    wide_domain: str = ""
    weight_bits: frozenset[int] = ANY_BITS
    act_bits: frozenset[int] = ANY_BITS
    refuses: Callable[[Options], None] | None = None
    rewrite: Callable[[ir.Model], list[Note]] | None = None
    rewrite_opset: Callable[[ir.Model], int] | None = None
    adjust: Callable[[ir.Model, Plan, MutableMapping[str, QParams]], list[str]] | None = None
    lacks: Callable[[ir.Model, Options], list[Finding]] | None = None
    quantize_cost: float = 1.0
    dequantize_cost: float = 1.0
    split_cost: Mapping[str, float] = field(default_factory=dict)
    reorder_cost: float = 0.0
    node_cost: float = 0.0
    spill: Callable[[ir.Value, float], float] = lambda value, size: 0.0
    fused_float: Mapping[tuple[str, str], float] = field(default_factory=dict)
    quantizer_bits: frozenset[int] = field(default_factory=lambda: frozenset({8, 16}))
    stores_weights: bool = False
    stored_because: Mapping[str, str] = field(default_factory=dict)
    float_needs: str = ""
    recast: Callable[[ir.Model, Plan], None] | None = None
    finish: Callable[[ir.Model, Plan], None] | None = None
    runtime: str | None = None
    runtime_file: Callable[[ir.Model, Path], object] | None = None
    artifacts: str = ""
    next_step: str = ""
    verified: str = ""
    unverified: str = ""

    def __repr__(self) -> str:
        specs = f"activations {self.activation}, weights {self.weight}"
        return f"<Backend {self.name}: {self.title}; {specs}; {len(self.rules)} operators>"

    @property
    def has_channels(self) -> bool:
        """Whether a weight can have a scale for each output channel."""
        return any(rule.weight_axis is not None for rule in self.rules.values())

    @property
    def weights_alone(self) -> bool:
        """Whether weights alone are quantized: kernels that multiply integers find the ranges of activations."""
        return all(rule.data == () or rule.kind is Kind.WEIGHT_ONLY for rule in self.rules.values())

    @property
    def lacks_whole(self) -> frozenset[str]:
        """Operators that are written out for the target with those that they consist of."""
        computed = {op for op, rule in self.rules.items() if rule.kind is not Kind.WEIGHT_ONLY}
        return COMPOSITE - self.has_whole - (FUSED & computed)

    def rounds_bias(self, bits: int) -> bool:
        """Whether the bias of a layer is an integer where its data has so many bits, of those times the weight's.

        Where no QuantizeLinear has that width the layer computes in float, and steps of few bits are coarse.
        """
        return self.bias == "int32" and bits in self.quantizer_bits

    @property
    def at_home(self) -> bool:
        """Whether the runtime in which onnxq checks every result is the one that it is made for."""
        return self.runtime == "onnxruntime"

    @property
    def beside(self) -> frozenset[str]:
        """Endings of the files that lie beside a model, of all formats."""
        return frozenset(ending for form in self.formats.values() for ending in form.beside)

    @property
    def one_entry(self) -> bool:
        """Whether a tensor is quantized in one way for all that read it: the artifact is a table of tensors."""
        form = self.format_named(None)
        return form.simulated and bool(form.beside)

    @property
    def has_own_quantizers(self) -> bool:
        """Whether the artifact is ONNX with operators of the target's own that quantize."""
        form = self.format_named(None)
        return form.simulated and not form.beside

    def require(self, options: Options) -> None:
        """Refuse what the target cannot hold, before any work.

        Raises:
            OptionError: the options ask for a width or format that it has not, for a range method that is not installed
                or does not know its grid, for zero points or scales per channel where it has none, or for what
                ``refuses`` names.
        """
        if self.refuses is not None:
            self.refuses(options)
        self.bits(options)
        for method in (options.range, *(change.range for _, change in options.override if change.range is not None)):
            check_range(method, self.activation)
        self.format_named(options.format)
        check_scheme(self, options)

    def bits(self, options: Options) -> tuple[int, int]:
        """Width of weights and of activations: what the options ask for, else the target's own.

        Raises:
            OptionError: the target has no such width.
        """
        weight, activation = options.weight_bits or self.weight.bits, options.act_bits or self.activation.bits
        wanted = [("weight_bits", weight, self.weight_bits), ("act_bits", activation, self.act_bits)]
        wanted += [("override", o.weight_bits or weight, self.weight_bits) for _, o in options.override]
        wanted += [("override", o.act_bits or activation, self.act_bits) for _, o in options.override]
        for where, bits, known in wanted:
            if bits not in known:
                hint = f"It has those of {', '.join(map(str, sorted(known)))} bits"
                what = "activations" if known is self.act_bits else "weights"
                raise OptionError(f"{self.name} has no {what} of {bits} bits", where=where, hint=hint)
        return weight, activation

    def format_named(self, name: str | None) -> Format:
        """A way to write the result; the target's default for None or an empty name.

        Raises:
            OptionError: the target has no such format.
        """
        name = name or next(iter(self.formats))
        if name not in self.formats:
            known = ", ".join(self.formats)
            raise OptionError(f"{self.name} has no format {name!r}", where="format", hint=f"It has: {known}")
        return self.formats[name]
