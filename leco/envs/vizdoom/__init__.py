"""ViZDoom, each environment in a process of its own."""
