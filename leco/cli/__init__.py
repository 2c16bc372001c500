"""The `leco` command."""
