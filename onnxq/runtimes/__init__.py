"""Real runtimes that can load an artifact: what they take, and how to ask them in a process of their own."""
