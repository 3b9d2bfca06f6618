"""Conversion of checkpoints to converted directories: the command, and the process that converts a served GGUF file."""
