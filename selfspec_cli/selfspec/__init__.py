"""Make your own language model faster without changing what it says."""
