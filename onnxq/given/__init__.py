"""Models that carry quantizers already: told apart, read, and made to fit another target."""
