"""Text and tokens: tokenizer, detokenizer, stop strings, grammars. Host only, no jax."""
