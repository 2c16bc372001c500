"""One training step: state, policy_pass, intrinsic_pass, modulator, update."""
