"""What a user may ask for: `Options` (how to quantize) and `ImageOptions` (how to read pictures).

Plain data, checked when it is made; imports nothing heavy. `onnxq.options.config` reads them from a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, TypedDict

from onnxq.errors import OptionError
from onnxq.options.one_value import check_bits, check_choice, check_flag, check_int, check_range, is_number, plain
from onnxq.options.override import GivenOverrides, Override, parse_overrides
from onnxq.options.shapes import GivenShapes, parse_shapes

__all__ = ["EFFORTS", "PLACEMENTS", "Effort", "ImageOptions", "Options", "Override", "Placement", "SessionOptions"]

Placement = Literal["auto", "all", "compute"]
Effort = Literal["fast", "default", "best"]
PLACEMENTS = ("auto", "all", "compute")
EFFORTS = ("fast", "default", "best")


class SessionOptions(TypedDict):
    """The arguments of :class:`onnxq.ort.session.Session` that a user chooses; see :class:`Options`."""

    providers: tuple[str, ...]
    custom_op_library: str | None


def _strings(name: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, (list, tuple, set, frozenset)) or not all(isinstance(s, str) and s for s in given):
        empty = isinstance(given, (list, tuple, set, frozenset)) and "" in given
        raise OptionError("one is empty" if empty else f"{given!r} is not a list of strings", where=name)
    return tuple(sorted(given) if isinstance(given, (set, frozenset)) else given)


@dataclass(frozen=True)
class Options:
    """How to quantize. Every field has a sensible default; None means that the backend decides.

    Attributes:
        weight_bits: bits of weights, 2 to 16; None takes the target's, mostly 8.
        act_bits: bits of activations, 2 to 16; None takes the target's, mostly 8: on qnn and snpe 16 where 8 leave too
            little.
        symmetric: activations are symmetric.
        per_channel: weights have a scale per output channel, else one per tensor.
        weight_symmetric: weights are symmetric, else they take any range, with a zero point. None takes the
            target's own: onnxruntime's of 4 bits and fewer have zero points, unless they are trained or given.
        reduce_range: weights of 8 bits use as much less of their range as it takes that sums of products do not
            overflow on x86-64 processors without VNNI, see :mod:`onnxq.calibration.reduced`, and onnxruntime's costs
            are those of such a processor; where a model is deployed, its weights are stored as uint8 in
            place of int8 where sums overflow. None: for onnxruntime and OpenVINO, where this processor is one.
        range: range method of activations, a name or ``NAME:NUMBER``.
        exclude: patterns of node names, tensor names or op types that stay float.
        include: if any, only what matches one of these patterns is quantized.
        override: patterns with what is different there; pairs, ``"PATTERN=key=value"`` strings or a mapping.
        samples: at most this many samples of the data, spread over them where their number is known; None uses all.
        opset: ONNX opset of the result; None raises it as far as needed only.
        shapes: sizes for inputs whose sizes are free, ``{"images": (1, 3, 480, 480), "batch": 1}`` or
            ``"images=1x3x480x480"``: by the name of an input, or by that of a free size. The result has them.
        simplify: run onnxsim first, guarded.
        providers: onnxruntime execution providers, e.g. ``("cuda",)``; empty means the CPU.
        custom_op_library: shared library with custom operators.
        placement: ``"auto"`` (what runs faster), ``"all"``, or ``"compute"`` (convolutions and matrix products only).
        format: one of the target's formats, e.g. ``"qdq"`` or ``"fake-quantize"`` (model-local functions); None takes
            its default.
        seed: of everything random.
        min_sqnr: floor in dB; a result below it is reported loudly.
        bias_correction: take out the mean error that rounding the weights gives each output channel.
        effort: ``"fast"`` (ranges only), ``"default"``, or ``"best"`` (minutes: algorithms are tried and kept where
            they are better on samples held back).
        algorithms: ``NAME`` or ``NAME:key=value,key=value``, run in this order instead of what ``effort`` runs.
        keep: samples to hold back in the statistics, to verify with and for algorithms to learn from; None holds 32,
            64 where the effort or the algorithms need them, and 256 of those where weights have 4 bits or fewer.

    Raises:
        OptionError: a value is of the wrong kind or out of range.
    """

    weight_bits: int | None = None
    act_bits: int | None = None
    symmetric: bool | None = None
    per_channel: bool | None = None
    weight_symmetric: bool | None = None
    reduce_range: bool | None = None
    range: str = "mse"
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    override: tuple[tuple[str, Override], ...] = ()
    samples: int | None = None
    opset: int | None = None
    shapes: tuple[str, ...] = ()
    simplify: bool = False
    providers: tuple[str, ...] = ()
    custom_op_library: str | None = None
    placement: Placement = "auto"
    format: str | None = None
    seed: int = 0
    min_sqnr: float = 10.0
    bias_correction: bool = True
    effort: Effort = "default"
    algorithms: tuple[str, ...] = ()
    keep: int | None = None

    if TYPE_CHECKING:  # what may be given is wider than what is kept

        def __init__(
            self,
            weight_bits: int | None = None,
            act_bits: int | None = None,
            symmetric: bool | None = None,
            per_channel: bool | None = None,
            weight_symmetric: bool | None = None,
            reduce_range: bool | None = None,
            range: str = "mse",
            exclude: str | Collection[str] = (),
            include: str | Collection[str] = (),
            override: GivenOverrides = (),
            samples: int | None = None,
            opset: int | None = None,
            shapes: GivenShapes = (),
            simplify: bool = False,
            providers: str | Collection[str] = (),
            custom_op_library: str | os.PathLike[str] | None = None,
            placement: Placement = "auto",
            format: str | None = None,
            seed: int = 0,
            min_sqnr: float = 10.0,
            bias_correction: bool = True,
            effort: Effort = "default",
            algorithms: str | Collection[str] = (),
            keep: int | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        for name in ("weight_bits", "act_bits", "samples", "opset", "keep", "seed", "min_sqnr"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        for name in ("weight_bits", "act_bits"):
            if getattr(self, name) is not None:
                check_bits(name, getattr(self, name))
        for name in ("symmetric", "per_channel", "weight_symmetric", "reduce_range", "simplify", "bias_correction"):
            check_flag(name, getattr(self, name))
        check_range("range", self.range)
        for name in ("exclude", "include", "providers", "algorithms"):
            object.__setattr__(self, name, _strings(name, getattr(self, name)))
        object.__setattr__(self, "override", parse_overrides(self.override))
        object.__setattr__(self, "shapes", parse_shapes(self.shapes))
        for name, least in (("samples", 1), ("opset", 1), ("keep", 1)):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), least)
        check_int("seed", self.seed, 0)
        if self.custom_op_library is not None:
            if not isinstance(self.custom_op_library, (str, os.PathLike)):
                raise OptionError(f"{self.custom_op_library!r} is not a path", where="custom_op_library")
            object.__setattr__(self, "custom_op_library", os.fspath(self.custom_op_library))
        check_choice("placement", self.placement, PLACEMENTS)
        if self.format is not None and (not isinstance(self.format, str) or not self.format):
            raise OptionError(f"{self.format!r} is not the name of a format", where="format")
        check_choice("effort", self.effort, EFFORTS)
        if (
            isinstance(self.min_sqnr, bool)
            or not isinstance(self.min_sqnr, (int, float))
            or self.min_sqnr != self.min_sqnr
        ):
            raise OptionError(f"{self.min_sqnr!r} is not a number of dB", where="min_sqnr")

    @property
    def session(self) -> SessionOptions:
        """With what to open a model in onnxruntime: ``Session(model, **options.session)``."""
        return {"providers": self.providers, "custom_op_library": self.custom_op_library}

    @classmethod
    def of(cls, given: Options | None) -> Options:
        """The options given to a function, or the defaults.

        Raises:
            OptionError: they are something else.
        """
        if given is None:
            return cls()
        if not isinstance(given, Options):
            raise OptionError(
                f"{given!r} is not an onnxq.Options", where="options", hint="Write onnxq.Options(weight_bits=4), say"
            )
        return given

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Options:
        """The options in a TOML file (see `onnxq.options.config.Config`), which must hold nothing else.

        Raises:
            OptionError: the file is missing or not TOML, or has an unknown key or a wrong value.
        """
        from onnxq.options.config import Config

        return cls(**Config.read(path, run_keys=(), image=False).options)


@dataclass(frozen=True)
class ImageOptions:
    """How picture files become a model's input: resize → crop → scale → (x - mean) / std → layout.

    Attributes:
        resize: ``"SIDE"`` scales the shorter side to SIDE, ``"HxW"`` scales both; None takes the
            model's height and width.
        crop: ``"HxW"`` or ``"SIDE"`` cut from the centre after resizing; None takes the model's when
            ``resize`` is a side.
        mean: of each channel (or one for all), after scaling.
        std: of each channel (or one for all), after scaling.
        scale: factor on the bytes 0..255; None means 1/255 for a float input and 1 for an integer one.
        layout: ``"nchw"`` or ``"nhwc"``; None finds it in the model's input shape.
        channels: ``"rgb"``, ``"bgr"`` or ``"gray"``; None means gray for a single channel, else rgb.

    Raises:
        OptionError: a value is of the wrong kind or out of range.
    """

    resize: str | None = None
    crop: str | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float | None = None
    layout: Literal["nchw", "nhwc"] | None = None
    channels: Literal["rgb", "bgr", "gray"] | None = None

    def __post_init__(self) -> None:
        for name in ("resize", "crop"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, str(value))
                self.size(name)
        for name in ("mean", "std"):
            value = getattr(self, name)
            several = isinstance(value, Iterable) and not isinstance(value, str)
            value = tuple(map(plain, value if several else (value,)))
            if not value or not all(is_number(v) for v in value):
                raise OptionError(f"{value!r} is not a list of finite numbers", where=f"image {name}")
            object.__setattr__(self, name, tuple(float(v) for v in value))
        if 0.0 in self.std:
            raise OptionError("must not be zero", where="image std")
        object.__setattr__(self, "scale", plain(self.scale))
        if self.scale is not None and (not is_number(self.scale) or self.scale == 0):
            raise OptionError(f"{self.scale!r} is not a finite number other than 0", where="image scale")
        if self.layout is not None:
            check_choice("image layout", self.layout, ("nchw", "nhwc"))
        if self.channels is not None:
            check_choice("image channels", self.channels, ("rgb", "bgr", "gray"))

    @classmethod
    def of(cls, given: ImageOptions | None) -> ImageOptions:
        """The options given to a function, or the defaults.

        Raises:
            OptionError: they are something else.
        """
        if given is None:
            return cls()
        if not isinstance(given, ImageOptions):
            hint = "Write onnxq.ImageOptions(mean=0.5), say"
            raise OptionError(f"{given!r} is not an onnxq.ImageOptions", where="image", hint=hint)
        return given

    @staticmethod
    def refuse(given: ImageOptions | None, what: str) -> None:
        """Refuse options where no picture is read.

        Args:
            given: the options, if any.
            what: is read instead.

        Raises:
            OptionError: one of them has another value than its default.
        """
        default, given = ImageOptions(), ImageOptions.of(given)
        names = [f.name for f in fields(default) if getattr(given, f.name) != getattr(default, f.name)]
        if names:
            raise OptionError(
                f"{'has' if len(names) == 1 else 'have'} no effect on {what}",
                where=", ".join(f"image {name}" for name in names),
                hint="Leave it out, or give a folder of pictures as data",
            )

    def size(self, name: str) -> tuple[int, ...] | None:
        """``resize`` or ``crop`` as (side,) or (height, width) in pixels; None if not given."""
        value: str | None = getattr(self, name)
        if value is None:
            return None
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)?", value):
            raise OptionError(
                f"{value!r} is neither SIDE nor HEIGHTxWIDTH", where=f"image {name}", hint="For example 256 or 224x320."
            )
        return tuple(int(part) for part in value.split("x"))
