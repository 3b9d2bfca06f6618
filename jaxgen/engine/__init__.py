"""The loop that plans, runs and reads steps, and the thread that drives it; ``start`` makes what the loop needs."""
