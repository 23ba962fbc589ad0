"""What a result says of itself in words: why nodes stay float, what to be careful of, what to try next."""
