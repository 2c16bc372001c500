"""Torch modules, without losses."""
