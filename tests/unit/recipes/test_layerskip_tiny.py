from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recipes.layerskip_tiny import train as training_script
from recipes.layerskip_tiny.corpus import is_held_out, read_corpus
from recipes.layerskip_tiny.layerskip import CONTROL, LayerSkip
from recipes.layerskip_tiny.model import agreement_by_exit, exit_losses, new_model
from recipes.layerskip_tiny.snippets import cut_prompts, windows
from recipes.layerskip_tiny.tokens import encode, train_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from selfspec_calibrate.prompts.reader import read_prompts

LAYERS = 4


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Twenty files that look like a library, and some that are to be left out."""
    root = tmp_path / "lib"
    for index in range(20):
        body = "".join(f"def name_{index}_{line}(value):\n    return value + {line}\n\n\n" for line in range(60))
        _write(root / f"package/module_{index}.py", body)
    _write(root / "test/test_it.py", "assert True\n" * 500)
    _write(root / "package/small.py", "pass\n")
    return root


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def tiny_model(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return new_model(vocabulary=320, num_layers=LAYERS, hidden=64, end_token=0).eval()


def some_ids(rows: int = 3, length: int = 9) -> torch.Tensor:
    return torch.randint(0, 320, (rows, length), generator=torch.Generator().manual_seed(1))


def test_files_are_split_by_name_and_what_is_no_text_is_left_out(library: Path) -> None:
    corpus = read_corpus(library, seed=3, held_out_share=0.3)
    names = {source.name for source in (*corpus.train, *corpus.held_out)}
    assert names == {f"package/module_{index}.py" for index in range(20)}
    assert not {source.name for source in corpus.train} & {source.name for source in corpus.held_out}
    assert all(is_held_out(source.name, seed=3, share=0.3) for source in corpus.held_out)
    assert read_corpus(library, seed=3, held_out_share=0.3) == corpus
    assert read_corpus(library, seed=4, held_out_share=0.3) != corpus


def test_a_file_more_moves_no_other(library: Path) -> None:
    before = read_corpus(library, held_out_share=0.3)
    _write(library / "package/a_new_one.py", "value = 1\n" * 400)
    after = read_corpus(library, held_out_share=0.3)
    assert set(before.train) <= set(after.train)
    assert set(before.held_out) <= set(after.held_out)


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too few Python files: 0"):
        read_corpus(tmp_path)


def test_dropout_rises_with_depth_and_with_time() -> None:
    recipe = LayerSkip(max_dropout=0.2)
    at_end = [recipe.dropout(layer, num_layers=LAYERS, progress=1.0) for layer in range(LAYERS)]
    assert at_end[0] == 0.0
    assert at_end == sorted(at_end)
    assert at_end[-1] == pytest.approx(0.2)
    assert recipe.dropout(LAYERS - 1, num_layers=LAYERS, progress=0.0) == 0.0
    middle = recipe.dropout(LAYERS - 1, num_layers=LAYERS, progress=0.5)
    assert 0.0 < middle < 0.1


@given(step=st.integers(0, 1000), num_layers=st.integers(1, 40), rotation=st.integers(1, 8))
def test_each_step_s_weights_add_up_to_one_and_the_last_layer_is_always_in(
    step: int, num_layers: int, rotation: int
) -> None:
    weights = LayerSkip(rotation=rotation).loss_weights(num_layers, step=step)
    assert sum(weights.values()) == pytest.approx(1.0)
    assert max(weights) == num_layers
    assert weights[num_layers] == max(weights.values())


def test_every_exit_has_its_turn_within_a_rotation() -> None:
    recipe = LayerSkip(rotation=3)
    seen = [set(recipe.loss_weights(10, step=step)) for step in range(3)]
    assert set.union(*seen) == set(range(1, 11))
    assert seen[0] & seen[1] == {10}
    assert set(recipe.loss_weights(10, step=3)) == seen[0]


def test_the_control_trains_the_last_layer_alone() -> None:
    weights = CONTROL.loss_weights(10, step=2)
    assert {layers for layers, weight in weights.items() if weight} == {10}
    assert CONTROL.dropout(9, num_layers=10, progress=1.0) == 0.0


def test_exits_and_the_whole_model_give_transformers_own_loss() -> None:
    model, ids = tiny_model(), some_ids()
    losses = exit_losses(model, ids, weights=dict.fromkeys(range(1, LAYERS + 1), 1.0), dropout=[0.0] * LAYERS)
    logits = model(ids[:, :-1]).logits
    own = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    assert set(losses) == {1, 2, 3, 4}
    torch.testing.assert_close(losses[LAYERS], own)
    model.model.layers = model.model.layers[:2]
    early = torch.nn.functional.cross_entropy(model(ids[:, :-1]).logits.flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(losses[2], early)


def test_a_dropped_layer_is_passed_by_for_the_sequences_that_drop_it() -> None:
    model, ids = tiny_model(), some_ids()
    every = dict.fromkeys(range(1, LAYERS + 1), 1.0)
    model.requires_grad_(False)
    dropped = exit_losses(model, ids, weights=every, dropout=[0.0, 1.0, 0.0, 1.0])
    assert float(dropped[1]) == float(dropped[2])
    assert float(dropped[3]) == float(dropped[4])
    assert float(dropped[2]) != float(dropped[3])
    torch.manual_seed(0)
    some = exit_losses(model, ids, weights=every, dropout=[0.0, 0.5, 0.0, 0.0])
    whole = exit_losses(model, ids, weights=every, dropout=[0.0] * LAYERS)
    assert float(some[1]) == float(whole[1])
    assert float(some[2]) not in (float(whole[2]), float(whole[1]))


def test_gradients_of_an_early_exit_reach_its_layers_and_the_head_alone() -> None:
    model = tiny_model().train()
    exit_losses(model, some_ids(), weights={2: 1.0}, dropout=[0.0] * LAYERS)[2].backward()
    reached = [layer.mlp.down_proj.weight.grad is not None for layer in model.model.layers]
    assert reached == [True, True, False, False]
    assert model.lm_head.weight.grad is not None


def test_agreement_is_that_of_the_models_own_logits() -> None:
    model, ids = tiny_model(), some_ids(rows=2, length=20)
    curve = agreement_by_exit(model, ids)
    chosen = model(ids).logits.argmax(-1)
    whole, model.model.layers = model.model.layers, model.model.layers[:3]
    early = model(ids).logits.argmax(-1)
    model.model.layers = whole
    assert len(curve) == LAYERS - 1
    assert curve[2] == pytest.approx(float((early == chosen).float().mean()))


def test_prompts_come_from_held_out_files(library: Path) -> None:
    corpus = read_corpus(library, held_out_share=0.3)
    tokenizer = train_tokenizer((source.text for source in corpus.train), vocabulary=320)
    prompts = cut_prompts(corpus.held_out, tokenizer, number=9, seed=0)
    texts = [source.text for source in corpus.held_out]
    assert len(prompts) == 9
    assert all(any(prompt in text for text in texts) for prompt in prompts)
    assert all(prompt.endswith("\n") for prompt in prompts)
    assert prompts == cut_prompts(corpus.held_out, tokenizer, number=9, seed=0)


def test_windows_lie_within_the_tokens() -> None:
    tokens = torch.arange(50)
    found = windows(tokens, number=40, length=10, generator=torch.Generator().manual_seed(0))
    assert found.shape == (40, 10)
    assert bool((found[:, 1:] - found[:, :-1] == 1).all())
    assert int(found.max()) <= 49


@pytest.mark.parametrize("control", [False, True])
def test_the_script_writes_a_folder_that_loads(library: Path, tmp_path: Path, control: bool) -> None:
    output = tmp_path / "model"
    sizes = "--num-layers 4 --hidden 64 --steps 3 --sequences 2 --length 24 --threads 1".split()
    options = ["--output", str(output), "--source", str(library), *sizes, *["--control"] * control]
    assert training_script.main(options) == 0
    model = AutoModelForCausalLM.from_pretrained(output)
    tokenizer = AutoTokenizer.from_pretrained(output)
    assert model.config.num_hidden_layers == 4
    text = "def name(value):\n    return value\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(read_prompts(output / "prompts.jsonl").prompts) > 0
    rows = [json.loads(line) for line in (output / "training.jsonl").read_text().splitlines()]
    assert (rows[0]["recipe"]["max_dropout"] == 0.0) == control
    assert [row["step"] for row in rows[1:-1]] == [0, 1, 2]
    assert all(set(row["losses"]) == {"4"} for row in rows[1:-1]) == control
    assert len(rows[-1]["agreement_by_exit"]) == 3


def test_training_brings_the_loss_down(library: Path, tmp_path: Path) -> None:
    corpus = read_corpus(library)
    training = training_script.Training(num_layers=4, hidden=64, steps=25, sequences=4, length=32)
    training_script.train(corpus, tmp_path / "model", recipe=LayerSkip(), training=training)
    rows = [json.loads(line) for line in (tmp_path / "model/training.jsonl").read_text().splitlines()]
    losses = [row["losses"]["4"] for row in rows[1:-1]]
    assert losses[-1] < losses[0] - 1.0


def test_the_rate_rises_and_falls() -> None:
    training = training_script.Training(steps=100, learning_rate=1.0, warmup=0.1)
    rates = [training.rate(step) for step in range(100)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[9] == pytest.approx(1.0)
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)


def test_a_row_of_tokens_holds_an_end_behind_each_text() -> None:
    tokenizer = train_tokenizer(["some text " * 20], vocabulary=300)
    row = encode(tokenizer, ["some", "text"])
    assert int((row == tokenizer.eos_token_id).sum()) == 2
    assert int(row[-1]) == tokenizer.eos_token_id
