"""The task registry and the environment adapters."""
