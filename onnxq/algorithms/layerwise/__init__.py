"""Weights of one layer after the other rounded for its output's error, by known or assumed moments of its inputs."""
