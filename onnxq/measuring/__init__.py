"""How far a model is from another: measures of numbers, and the runs that they are taken from."""
