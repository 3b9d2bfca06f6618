"""Put an engine together from weights, tokenizer and device: the composition root."""
