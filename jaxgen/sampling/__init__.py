"""Choose tokens from logits, inside the step: sampler, penalties, exact sums."""
