"""The small-batch kernels of decoding on a CPU, compiled for the machine at hand."""
