"""What several algorithms work with: layers as matrices, trying changes, the words of their parameters."""
