"""Programs that drive an engine and serve no request: tuning, batch invariance, the proof of kernels."""
