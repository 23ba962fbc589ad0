"""Algorithms that change weights, biases or ranges of a quantized model, a small file each.

Every module here is one that ``--algorithm`` takes by its name (:mod:`onnxq.algorithm` says what it has to offer); the
packages beside them hold what they are made of. No algorithm imports another. Those that are pipelines of their own
are elsewhere: :mod:`onnxq.weight_only.algorithm` and :mod:`onnxq.dynamic`.
"""
