"""From logits to tokens, inside the step: sampler, penalties, exact sums."""
