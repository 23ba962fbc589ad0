"""ncnn on the CPU: pnnx converts the float model, the table makes int8 layers of its layers, and ncnn runs them.

The script does with the table what ``ncnn2int8`` does, which is in no Python package: weights to int8 by ncnn's own
function, scales behind them, and integers between convolutions. ncnn loads what it writes, and pnnx names layers its
own way, so these files are also what a device is given. Layers that have no scales of their own in ncnn stay float.

Options of the script:

* ``files``: folder for ``<model>.param`` and ``<model>.bin``; without it they are not kept.
* ``packing``: ncnn's own default, layouts of several channels together. On x86 its depthwise kernels then multiply by
  approximate reciprocals of the scales, up to 4e-4 off, which moves integers near ties in the layers behind. Without it
  outputs are those of onnxruntime to the last bits of float32, values at ties aside.

Of pnnx the program alone is used: torch, which its package names, is not needed (``pip install --no-deps pnnx``).

Verified with ncnn 1.0.20261020 and pnnx 20261020 on x86-64 with AVX512-VNNI.
"""

from onnxq.runtimes.runtime import Runtime

RUNTIME = Runtime("ncnn", "ncnn", ("torch==2.13.0", "ncnn", "pnnx", "onnx"), options={"files": "", "packing": True})
