"""MiniGrid: its own levels, stepped by a compiled kernel."""
