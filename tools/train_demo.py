# torch is not a dependency of the project, not even of its tests
# mypy: ignore-errors
"""Make the model and the data of ``onnxq demo``: a small CNN on scikit-learn's digits, BatchNormalization unfolded.

    pip install torch scikit-learn onnx
    python tools/train_demo.py

Writes onnxq/demo/digits.onnx and onnxq/demo/digits.npz. Every fifth digit is for testing; calibration takes some of the
others. Takes about a minute on a CPU. The digits are the test set of Alpaydin & Kaynak, Optical Recognition of
Handwritten Digits, UCI 1998 (CC BY 4.0).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from torch import nn

from onnxq.demo.data import upscale

HERE = Path(__file__).resolve().parent.parent / "onnxq" / "demo"
CALIBRATION = 128


class Block(nn.Module):
    """Convolution, BatchNormalization, Relu."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Nx``inputs``xHxW → Nx``outputs``xHxW."""
        y: torch.Tensor = torch.relu(self.bn(self.conv(x)))
        return y


class Net(nn.Module):
    """Nx1x24x24 → Nx10: three blocks (the second with a residual), two poolings, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = Block(1, 32), Block(32, 32), Block(32, 48)
        self.head = nn.Linear(48 * 9, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the ten digits."""
        x = self.first(x)
        x = torch.max_pool2d(x + self.second(x), 2)
        y: torch.Tensor = self.head(nn.functional.avg_pool2d(self.third(x), 4).flatten(1))
        return y


def train(x: np.ndarray, y: np.ndarray, epochs: int) -> Net:
    """Train on images shifted by up to two pixels."""
    torch.manual_seed(0)
    net = Net()
    steps = epochs * -(-len(x) // 64)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    images, labels = torch.from_numpy(x), torch.from_numpy(y)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            shift = torch.randint(-2, 3, (2,)).tolist()
            loss = nn.functional.cross_entropy(net(images[batch].roll(shift, (2, 3))), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def export(net: Net) -> onnx.ModelProto:
    """The network as ONNX, operator by operator as it was trained."""
    weights = {name: p.detach().numpy() for name, p in net.state_dict().items() if "num_batches" not in name}
    nodes = []
    for block, source in (("first", "image"), ("second", "first.relu"), ("third", "pool")):
        parameters = [f"{block}.bn.{n}" for n in ("weight", "bias", "running_mean", "running_var")]
        conv = helper.make_node("Conv", [source, f"{block}.conv.weight"], [f"{block}.conv"], pads=[1] * 4)
        bn = helper.make_node("BatchNormalization", [f"{block}.conv", *parameters], [f"{block}.bn"], epsilon=1e-5)
        nodes += [conv, bn, helper.make_node("Relu", [f"{block}.bn"], [f"{block}.relu"])]
        if block == "second":
            nodes.append(helper.make_node("Add", ["first.relu", "second.relu"], ["sum"]))
            nodes.append(helper.make_node("MaxPool", ["sum"], ["pool"], kernel_shape=[2, 2], strides=[2, 2]))
    nodes.append(helper.make_node("AveragePool", ["third.relu"], ["mean"], kernel_shape=[4, 4], strides=[4, 4]))
    nodes.append(helper.make_node("Flatten", ["mean"], ["features"]))
    nodes.append(helper.make_node("Gemm", ["features", "head.weight", "head.bias"], ["logits"], transB=1))
    for node in nodes:
        node.name = f"{node.output[0].rpartition('.')[0] or node.output[0]}.{node.op_type}"
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 24, 24])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(np.ascontiguousarray(w), name) for name, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="onnxq")
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Train, export, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    epochs = parser.parse_args().epochs
    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target.astype(np.int64)
    test = np.arange(len(images)) % 5 == 4
    net = train(upscale(images[~test]), labels[~test], epochs)
    with torch.no_grad():
        right = net(torch.from_numpy(upscale(images[test]))).argmax(1).numpy() == labels[test]
    onnx.save(export(net), HERE / "digits.onnx")
    chosen = np.flatnonzero(~test)[:: len(labels[~test]) // CALIBRATION][:CALIBRATION]
    np.savez_compressed(
        HERE / "digits.npz",
        calibration=images[chosen],
        test=images[test],
        labels=labels[test].astype(np.uint8),
    )
    print(f"test accuracy {right.mean():.4f} on {right.size} digits")
    print({p.name: p.stat().st_size for p in sorted(HERE.glob("digits.*"))})


if __name__ == "__main__":
    main()
