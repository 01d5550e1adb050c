"""The compiled kernels as Python functions over addresses."""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass

import torch

from selfspec_runtime.native.toolchain import ToolchainError, compiled_kernels

#: Dtypes that the kernels compute, with their suffixes.
SUFFIXES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}

#: Rows up to which the kernels are the faster way; a longer block is torch's.
MAX_ROWS = 32

SWITCH = "SELFSPEC_NATIVE"


class MatrixStruct(ctypes.Structure):
    """``Matrix`` of weights.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("levels", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("halved", ctypes.c_int64),
    )


class NormStruct(ctypes.Structure):
    """``Norm`` of kernels.cpp."""

    _fields_ = (("weight", ctypes.c_void_p), ("eps", ctypes.c_float))


class HeadsStruct(ctypes.Structure):
    """``Heads`` of kernels.cpp."""

    _fields_ = (
        ("norm", NormStruct),
        ("query_norm", NormStruct),
        ("key_norm", NormStruct),
        ("queries", ctypes.c_int64),
        ("keys", ctypes.c_int64),
        ("dim", ctypes.c_int64),
    )


class AttentionStruct(ctypes.Structure):
    """``Attention`` of attention.h."""

    _fields_ = (
        ("q", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("k_stride", ctypes.c_int64),
        ("v_stride", ctypes.c_int64),
        ("mask", ctypes.c_void_p),
        ("mask_stride", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("live", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )


class LayerStruct(ctypes.Structure):
    """``Layer`` of kernels.cpp."""

    _fields_ = (
        ("heads", HeadsStruct),
        ("mlp_norm", NormStruct),
        ("qkv", ctypes.c_void_p),
        ("o", ctypes.c_void_p),
        ("gate_up", ctypes.c_void_p),
        ("down", ctypes.c_void_p),
        ("scale", ctypes.c_float),
        ("index", ctypes.c_int64),
    )


class PassStruct(ctypes.Structure):
    """``Pass`` of kernels.cpp."""

    _fields_ = (
        ("cosine", ctypes.c_void_p),
        ("sine", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("k_stride", ctypes.c_int64),
        ("v_stride", ctypes.c_int64),
        ("mask", ctypes.c_void_p),
        ("mask_stride", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("start", ctypes.c_int64),
        ("live", ctypes.c_int64),
    )


_POINTER, _COUNT, _THREADS = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_ARGUMENTS = {
    "linear": (_POINTER, _POINTER, _POINTER, _COUNT, _POINTER, _THREADS),
    "gated_mlp": (_POINTER, _POINTER, _POINTER, _POINTER, _COUNT, _POINTER, _THREADS),
    "project": (*(_POINTER,) * 5, _COUNT, *(_POINTER,) * 3, _THREADS),
    "attention": (_POINTER, _POINTER, _THREADS),
    "layers": (_POINTER, _POINTER, _COUNT, _POINTER, _POINTER, _THREADS),
}


class Kernels:
    """The operations of kernels.cpp, for each dtype.

    Args:
        library: The shared library.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions = {
            (name, dtype): _function(library, name, suffix) for name in _ARGUMENTS for dtype, suffix in SUFFIXES.items()
        }

    def call(self, name: str, dtype: torch.dtype, *arguments: object) -> None:
        """Runs one operation on torch's number of threads; the arguments are those of kernels.cpp."""
        self._functions[name, dtype](*arguments, torch.get_num_threads())


@dataclass(frozen=True)
class NativeStatus:
    """Whether the kernels are at hand.

    Attributes:
        kernels: The kernels, or None.
        reason: Why there are none.
    """

    kernels: Kernels | None
    reason: str = ""


@functools.cache
def native_status() -> NativeStatus:
    """Loads the kernels, compiling them at the first call on a machine, which takes ten to thirty seconds."""
    if os.environ.get(SWITCH, "") == "0":
        return NativeStatus(None, f"{SWITCH}=0 is set")
    try:
        return NativeStatus(Kernels(ctypes.CDLL(str(compiled_kernels()))))
    except (ToolchainError, OSError, AttributeError) as error:
        return NativeStatus(None, str(error))


def _function(library: ctypes.CDLL, name: str, suffix: str) -> ctypes._NamedFuncPointer:
    function = getattr(library, f"selfspec_{name}_{suffix}")
    function.argtypes = _ARGUMENTS[name]
    function.restype = None
    return function  # type: ignore[no-any-return]
