"""The page of `leco watch`: what is read of a run, how an episode comes into being, and the server in front of both."""
