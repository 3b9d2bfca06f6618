"""Programs that run an engine or kernels without serving requests: tuning, batch invariance, the proof of kernels."""
