"""Triton kernels for drafting and acceptance on CUDA, and the custom operators that wrap them.

Nothing here imports Triton until a kernel is launched, so that machines without it can import every module
but those named ``*_kernels``, ``tiles``, ``philox`` and ``jit``.
"""
