"""The step as one compiled program, and the device that runs it."""
