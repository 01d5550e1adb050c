"""llama.cpp as a contender, through llama-cpp-python."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import Contender

from selfspec_calibrate.measurement import MeasuredPrompt, RunMeasurement, collected_garbage
from selfspec_runtime.machine import has_amx
from selfspec_runtime.stats import AcceptanceStats, PhaseSeconds

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.rows import Row

    from selfspec_runtime.generation import GenerationSettings

LLAMA = "llama.cpp"


@dataclass(frozen=True)
class LlamaArm:
    """llama.cpp, greedily, on the same ids.

    Attributes:
        model: A ``llama_cpp.Llama``.
        name: Name of the arm.
    """

    model: Any
    name: str = LLAMA

    def measure(self, prompt: MeasuredPrompt, settings: GenerationSettings) -> RunMeasurement:
        """Decodes one prompt once, from an empty cache."""
        self.model.reset()
        ids, times = [], []
        with collected_garbage():
            started = perf_counter()
            stream = self.model.generate(list(prompt.token_ids), top_k=1, top_p=1.0, min_p=0.0, temp=0.0)
            for token_id in stream:
                times.append(perf_counter())
                ids.append(int(token_id))
                if len(ids) == settings.max_new_tokens or ids[-1] in settings.eos_token_ids:
                    break
        decode = times[-1] - times[0]
        return RunMeasurement(
            arm=self.name,
            prompt_id=prompt.prompt_id,
            kind=prompt.kind,
            num_tokens=len(ids) - 1,
            decode_s=decode,
            time_to_first_token_s=times[0] - started,
            stats=AcceptanceStats(num_rounds=len(ids) - 1, num_emitted_tokens=len(ids) - 1),
            seconds=PhaseSeconds(prefill=times[0] - started, verify=decode),
            token_ids=tuple(ids),
        )


def llama_contender(gguf: Path | None, row: Row, *, threads: int, capacity: int) -> Contender:
    """llama.cpp on the file that the demo model was made of."""
    if not row.has_gguf:
        return Contender(name=LLAMA, reason="there is no GGUF file of this model", holder="llama")
    if importlib.util.find_spec("llama_cpp") is None:
        return Contender(name=LLAMA, reason="not installed: pip install 'selfspec[bench]'", holder="llama")
    if gguf is None or not gguf.is_file():
        return Contender(name=LLAMA, reason="no GGUF file was found: pass --gguf", holder="llama")
    with _weights_as_stored():
        from llama_cpp import Llama

        model = Llama(str(gguf), n_ctx=capacity, n_threads=threads, n_threads_batch=threads, verbose=False)
    note = f"{gguf.name}, weights not laid out for AMX" if has_amx() else gguf.name
    return Contender(name=LLAMA, arm=LlamaArm(model), note=note, holder="llama")


@contextmanager
def _weights_as_stored() -> Iterator[None]:
    """Where the CPU has AMX, keeps llama.cpp from laying weights out for it: with 0.3.36, decoding then crashes."""
    from llama_cpp import llama_cpp

    defaults = llama_cpp.llama_model_default_params

    def chosen() -> Any:
        params = defaults()
        params.use_extra_bufts = not has_amx()
        return params

    llama_cpp.llama_model_default_params = chosen
    try:
        yield
    finally:
        llama_cpp.llama_model_default_params = defaults
