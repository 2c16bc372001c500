"""Generated from proto/leco/v1 by `make proto`. Never edited."""
