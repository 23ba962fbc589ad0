from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import onnxq
from onnxq import plugins
from onnxq.calibration.ranges import check_range, select_range
from onnxq.calibration.statistics import TensorStatistics
from onnxq.cli import main
from onnxq.errors import OptionError
from onnxq.spec import QuantSpec
from tests.models import feeds_for
from tests.targets import residual

BUILT_IN = ["ema", "entropy", "lsq", "minmax", "mse", "percentile", "std"]


def test_built_in_ranges_are_installed() -> None:
    assert set(BUILT_IN) <= set(plugins.names("onnxq.ranges")), "run `pip install -e .`: entry points are missing"
    for name in BUILT_IN:
        method = plugins.find("onnxq.ranges", name)
        assert name == method.NAME


def test_unknown_names() -> None:
    with pytest.raises(OptionError, match=r"no range method named 'percentle'.*Did you mean percentile\?.*minmax"):
        plugins.find("onnxq.ranges", "percentle")
    with pytest.raises(OptionError, match="not installed properly"):
        plugins.find("onnxq.nothing", "x")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of another author, installed as pip leaves it: a module and a .dist-info folder with entry points."""
    (tmp_path / "third_party_range.py").write_text(
        "NAME = 'half'\n\ndef select(stats, spec, parameter):\n    return stats.min / 2, stats.max / (parameter or 2)\n"
    )
    (tmp_path / "third_party_broken.py").write_text("raise RuntimeError('needs a licence')\n")
    (tmp_path / "third_party_odd.py").write_text("def select(stats, spec, parameter):\n    return 1.0, float('nan')\n")
    info = tmp_path / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[onnxq.ranges]\nhalf = third_party_range\nbroken = third_party_broken\nodd = third_party_odd\n"
        "empty = third_party_range:NAME\nminmax = third_party_range\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.refresh()
    yield tmp_path
    plugins.refresh()
    for name in ("third_party_range", "third_party_broken", "third_party_odd"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("package")
def test_range_of_another_package() -> None:
    stats = TensorStatistics("t", count=1, min=-2.0, max=8.0)
    assert "half" in plugins.names("onnxq.ranges")
    assert select_range(stats, QuantSpec(range="half")) == (-1.0, 4.0)
    assert select_range(stats, QuantSpec(range="half:8")) == (-1.0, 1.0)
    assert select_range(stats, QuantSpec(range="minmax")) == (-2.0, 8.0), "a built-in name cannot be taken over"


@pytest.mark.usefixtures("package")
def test_a_name_that_is_taken_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        plugins.names("onnxq.ranges")
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("range method 'minmax' of package 'third-party' is not used: package 'onnxq' has one")


@pytest.mark.usefixtures("package")
def test_broken_packages_are_named() -> None:
    with pytest.raises(OptionError, match=r"'third-party' cannot be loaded.*needs a licence"):
        plugins.find("onnxq.ranges", "broken")
    stats = TensorStatistics("t", count=1, min=-2.0, max=8.0)
    with pytest.raises(OptionError, match="no function `select"):
        check_range("empty")
    with pytest.raises(OptionError, match=r"'odd' gave the range \(1.0, nan\)"):
        select_range(stats, QuantSpec(range="odd"))


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Algorithms and a backend of another package, most of them faulty."""
    named = "NAME, TITLE, STAGE, PARAMETERS = {!r}, 'x', {!r}, {{}}\ndef apply(draft): {}\n"
    texts = {
        "bare": "def apply(draft): pass\n",
        "other": named.format("another", "numbers", "pass"),
        "odd_stage": named.format("odd_stage", "last", "pass"),
        "failing": named.format("failing", "numbers", "draft.nothing"),
        "flat": "from dataclasses import replace\n"
        + named.format("flat", "numbers", "")
        + "    for name, old in draft.numbers.items():\n"
        "        draft.numbers[name] = replace(old, scale=0 * old.scale)\n",
        "chip": "from dataclasses import replace\nfrom onnxq.backend_choice import backend_named\n"
        "BACKEND = replace(backend_named('onnxruntime'), name='some_chip')\n",
    }
    for name, text in texts.items():
        (tmp_path / f"tools_{name}.py").write_text(text)
    info = tmp_path / "tools-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tools\nVersion: 1.0\n")
    lines = [f"{name} = tools_{name}\n" for name in texts if name != "chip"]
    (info / "entry_points.txt").write_text(f"[onnxq.algorithms]\n{''.join(lines)}[onnxq.backends]\nchip = tools_chip\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.refresh()
    yield
    plugins.refresh()
    for name in texts:
        sys.modules.pop(f"tools_{name}", None)


@pytest.mark.usefixtures("tools")
def test_faulty_algorithms_and_backends_are_left_out_of_the_lists_with_a_warning(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    known = [algorithm.NAME for algorithm in onnxq.installed_algorithms()]
    assert "gptq" in known and "failing" in known
    assert not {"bare", "other", "another", "odd_stage"} & set(known)
    assert "onnxruntime" in [backend.name for backend in onnxq.backends()]
    assert "some_chip" not in [backend.name for backend in onnxq.backends()]
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "algorithm 'bare' of package 'tools' offers no NAME, TITLE, STAGE, PARAMETERS" in said
    assert "algorithm 'other' of package 'tools' calls itself 'another'" in said
    assert "algorithm 'odd_stage' of package 'tools' has the STAGE 'last'" in said
    assert "backend 'chip' of package 'tools' calls itself 'some_chip'" in said
    assert main(["algorithms"]) == 0
    assert main(["algorithms", "failing"]) == 0
    assert main(["backends"]) == 0
    assert "gptq" in capsys.readouterr().out


@pytest.mark.usefixtures("tools")
def test_what_another_package_does_wrong_is_said_to_be_its_fault() -> None:
    with pytest.raises(OptionError, match="'chip' of package 'tools' calls itself 'some_chip'"):
        onnxq.plan(residual(), backend="chip")
    options = onnxq.Options(placement="all", effort="fast", algorithms=("failing",))
    with pytest.raises(OptionError, match=r"algorithm 'failing' of package 'tools' failed \(AttributeError"):
        onnxq.quantize(residual(), feeds_for(residual()), options=options)
    options = onnxq.Options(placement="all", effort="fast", algorithms=("flat",))
    with pytest.raises(OptionError, match=r"tensor '.*': algorithm 'flat' of package 'tools' left a scale"):
        onnxq.quantize(residual(), feeds_for(residual()), options=options)
