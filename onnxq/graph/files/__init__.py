"""A file in, a sound model; a model in, a file: loading, saving, and the checks of both."""
