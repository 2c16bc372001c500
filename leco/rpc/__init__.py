"""The wire: codec, server and channel set-up. The messages themselves are in `leco.v1`."""
