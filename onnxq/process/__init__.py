"""The process that onnxq runs in: its memory, its threads, its parts in C."""
