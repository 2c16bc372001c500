"""An experiment: its settings, presets, and TOML."""
