"""`leco watch`: a run as a live page."""
