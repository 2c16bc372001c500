"""The kinds of observations: a file with the networks of each, and a row in `table`."""
