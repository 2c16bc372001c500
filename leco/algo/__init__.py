"""Pure mathematics on tensors: arrays in, arrays out; no configuration, no input or output."""
