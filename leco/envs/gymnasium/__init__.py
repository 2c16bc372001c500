"""Any environment that Gymnasium registers."""
