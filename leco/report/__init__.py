"""Figures and pages from run folders."""
