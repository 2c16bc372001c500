"""DeepMind Lab, each environment in a process of its own."""
