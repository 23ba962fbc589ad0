"""ncnn on the CPU: pnnx converts the float model, the table makes int8 layers of its layers, and ncnn runs them.

The script does with the table what ``ncnn2int8`` does, which is in no Python package: weights to int8 by ncnn's own
function, scales behind them, and integers between convolutions. ncnn loads what it writes, and pnnx names layers its
own way, so these files are also what a device is given. Layers that have no scales of their own in ncnn stay float.

Option ``files``: folder for ``<model>.param`` and ``<model>.bin``; without it they are not kept.
"""

from onnxq.runtimes.runtime import Runtime

RUNTIME = Runtime("ncnn", "ncnn", ("ncnn", "pnnx", "onnx"), options={"files": ""})
