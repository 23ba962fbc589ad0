"""Names that were probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxq.suggest import nearest_file


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("digts.npz", "Did you mean 'digits.npz'?"),
        ("Digits.npz", "Did you mean 'digits.npz'?"),
        ("nothere.npz", ""),  # .npz alone is no likeness
        ("digits.npy", ""),
        ("picturs", "Did you mean 'pictures'?"),
        ("no/digits.npz", ""),
    ],
)
def test_files_of_the_folder(asked: str, hint: str, tmp_path: Path) -> None:
    for name in ("digits.npz", "e_str.npz", "encoder.npz", "digits.onnx"):
        (tmp_path / name).touch()
    (tmp_path / "pictures").mkdir()
    assert nearest_file(tmp_path / asked) == hint
