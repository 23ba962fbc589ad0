"""Built-in targets, found by entry point like those of any other package."""
