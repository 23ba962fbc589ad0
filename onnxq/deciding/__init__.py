"""What stays float beyond what a plan alone knows: found in the data's statistics, or by measuring."""
