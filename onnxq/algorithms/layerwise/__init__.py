"""Weights of one layer after the other rounded for the error of its output, from second moments of its inputs."""
