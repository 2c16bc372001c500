"""Training states and parameters on disk and on the wire. Nothing is pickled."""
