"""What `tools/benchmark.py` is made of: child processes under limits, the jobs they do, the table."""
