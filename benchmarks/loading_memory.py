"""Peak memory of opening a model, repacking included, against the size of its weights.

    python benchmarks/loading_memory.py --model FOLDER --dtype bfloat16

prints JSON. Only memory that the process owns is counted (``RssAnon``): weights are read from files that are mapped,
and the system takes those pages back when it needs them.
"""

from __future__ import annotations

import argparse
import gc
import json
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

STATUS = Path("/proc/self/status")
INTERVAL_S = 0.002


@dataclass(frozen=True)
class LoadingMemory:
    """What opening took.

    Attributes:
        weight_bytes: Size of the weights in the dtype that they are used in.
        peak_bytes: Most memory that was owned while opening, beyond what was owned before.
        kept_bytes: The same when it was done.
    """

    weight_bytes: int
    peak_bytes: int
    kept_bytes: int


def owned_bytes() -> int:
    """Resident memory of this process that no file stands behind."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def measure(model: str, warm_up: str, dtype: str) -> LoadingMemory:
    """Opens a small model first, so that what libraries allocate once is not counted, then the model."""
    from selfspec_runtime.loading import load_model
    from selfspec_runtime.model_spec import ModelSpec

    load_model(ModelSpec.model_validate({"model": warm_up, "dtype": dtype}))
    gc.collect()
    before, peak, done = owned_bytes(), [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            peak[0] = max(peak[0], owned_bytes())
            time.sleep(INTERVAL_S)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    loaded = load_model(ModelSpec.model_validate({"model": model, "dtype": dtype}))
    done.set()
    watcher.join()
    gc.collect()
    kept = owned_bytes() - before
    stored = sum(file.stat().st_size for file in Path(model).glob("*.safetensors"))
    scale = {"float32": 2, "bfloat16": 1}[dtype]
    del loaded
    return LoadingMemory(stored * scale, peak[0] - before, kept)


def main() -> None:
    """Prints what one model takes; its files hold bfloat16."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--warm-up", required=True, help="Folder of a small model of the same family.")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    arguments = parser.parse_args()
    print(json.dumps(asdict(measure(arguments.model, arguments.warm_up, arguments.dtype))))


if __name__ == "__main__":
    main()
