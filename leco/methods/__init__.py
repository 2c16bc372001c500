"""Methods of exploration."""
