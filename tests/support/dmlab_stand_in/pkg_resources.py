"""Stands in for pkg_resources of setuptools before 81, which the real `deepmind_lab` imports. Nothing here uses it."""
