"""What `deploy` does to a model before it is written: the form that a target wants, with the numbers given."""
