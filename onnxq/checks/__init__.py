"""What is looked at before any work, a question a file: data, weights, random numbers. Each answers with findings."""
