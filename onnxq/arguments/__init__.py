"""What the command line takes: ``flags`` by group, ``parser`` by verb, ``settled`` with the configuration file.

Nothing here loads numpy or onnx, so that ``onnxq --help`` answers at once.
"""
