from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import selfspec
from selfspec_runtime.architecture import find_parts
from selfspec_runtime.layer_readings import read_layers

if TYPE_CHECKING:
    from pathlib import Path


def test_a_trace_costs_one_pass_and_one_head_per_layer_in_blocks(tiny_folder: Path) -> None:
    model = selfspec.load(str(tiny_folder))
    result = model.generate("abc", max_new_tokens=40, temperature=0)
    prompt, tokens = len(result.prompt_token_ids), len(result.token_ids)
    rows: Counter[str] = Counter()
    calls: Counter[str] = Counter()

    def count(name: str) -> Any:
        def hook(_module: Any, inputs: tuple[Any, ...], _output: Any) -> None:
            rows[name] += inputs[0].shape[-2]
            calls[name] += 1

        return hook

    layers = list(find_parts(model.model).layers)
    watched = {"head": model.model.get_output_embeddings(), "first": layers[0].mlp, "last": layers[-1].mlp}
    hooks = [module.register_forward_hook(count(name)) for name, module in watched.items()]
    try:
        read_layers(model.engine.target, result.prompt_token_ids, result.token_ids, questioned={})
    finally:
        for each in hooks:
            each.remove()
    assert tokens <= rows["first"] == rows["last"] < prompt + tokens, "no row goes through a layer twice"
    assert rows["head"] == len(layers) * tokens
    assert calls["last"] <= 2, "the prompt's rows at most, then all others in one block"
    assert calls["head"] == len(layers)
