"""Stands in for the package dm-env, which the real `deepmind_lab` imports. Nothing here uses it."""
