"""Self-speculative decoding on any Hugging Face causal language model."""
