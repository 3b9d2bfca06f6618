"""Ragged paged attention for NVIDIA GPUs in Pallas Mosaic GPU."""
