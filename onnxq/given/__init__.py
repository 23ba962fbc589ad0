"""Models that carry quantizers already: told apart, their numbers made to fit, normalizations folded into integers."""
