"""The configuration file: TOML with the same keys as the command line."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnxq.errors import OptionError
from onnxq.options import ImageOptions, Options
from onnxq.options.one_value import once
from onnxq.suggest import nearest

__all__ = ["Config", "to_toml"]


@dataclass(frozen=True)
class Config:
    """A configuration file: `options`, `image` and `run` (data, output, ...), only with the keys it holds."""

    options: dict[str, Any] = field(default_factory=dict)
    image: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        *,
        run_keys: Collection[str] = (),
        image: bool = True,
        others: Collection[str] = (),
    ) -> Config:
        """Read a TOML file: fields of `Options` and `run_keys` at the top, a table ``[image]``, a table ``[override]``.

        Dashes and underscores in keys are the same.

        Args:
            path: the file.
            run_keys: other keys that are allowed at the top.
            image: whether a table ``[image]`` is allowed.
            others: keys that others than the reader have a use for; they are passed over, so that one file serves all.

        Raises:
            OptionError: the file is missing or not TOML, or has an unknown key.
        """
        where = f"config file {os.fspath(path)!r}"
        document = _document(path, where)
        options = {f.name for f in dataclasses.fields(Options)}
        config = cls()
        for key, raw in once(document, where).items():
            value = document[raw]
            if key == "image" and (image or key in others) and isinstance(value, dict):
                images = _image(value, where)
                config.image.update(images if image else {})
            elif key in options:
                config.options[key] = value
            elif key in run_keys:
                config.run[key] = value
            elif key not in others:
                known = options | set(run_keys) | set(others) | ({"image"} if image else set())
                raise OptionError(f"unknown key {raw!r}", where=where, hint=nearest(key, known, title="keys"))
        return config


def _document(path: str | os.PathLike[str], where: str) -> dict[str, Any]:
    """What a TOML file holds.

    Raises:
        OptionError: the file is missing or not TOML.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    if not os.fspath(path):
        raise OptionError("this names no file", where=where, hint="Give the path of a TOML file")
    try:
        document: dict[str, Any] = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"cannot be read ({error.strerror or error})", where=where) from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise OptionError(f"is not TOML ({error})", where=where) from error
    return document


def _image(table: dict[str, Any], where: str) -> dict[str, Any]:
    """The fields of `ImageOptions` in a table of a file.

    Raises:
        OptionError: an unknown key.
    """
    known = {f.name for f in dataclasses.fields(ImageOptions)}
    keys = once(table, f"{where}, image")
    for name, raw in keys.items():
        if name not in known:
            hint = nearest(name, known, title="image keys")
            raise OptionError(f"unknown key 'image.{raw}'", where=where, hint=hint)
    return {name: table[raw] for name, raw in keys.items()}


def to_toml(options: Options, comment: str) -> str:
    """Options as a configuration file: what differs from the defaults, overrides as a table.

    Args:
        options: to be written.
        comment: a line for the top.
    """
    lines = [f"# {comment}"]
    defaults = Options()
    for field_ in dataclasses.fields(Options):
        value = getattr(options, field_.name)
        if field_.name != "override" and value != getattr(defaults, field_.name):
            lines.append(f"{field_.name} = {_literal(value)}")
    if options.override:
        lines += ["", "[override]"]
    merged: dict[str, dict[str, object]] = {}
    for pattern, change in options.override:
        said = {f.name: getattr(change, f.name) for f in dataclasses.fields(change)}
        said = {k: v for k, v in said.items() if v is not None and (k, v) != ("float", False)}
        merged[pattern] = {**merged.pop(pattern, {}), **said}
    for pattern, said in merged.items():
        lines.append(f"{_literal(pattern)} = {{ {', '.join(f'{k} = {_literal(v)}' for k, v in said.items())} }}")
    return "\n".join(lines) + "\n"


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)
