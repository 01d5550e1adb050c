"""Trains a small LayerSkip model on the standard library's source, or its control without the recipe.

    python -m recipes.layerskip_tiny.train --output models/layerskip-tiny
    python -m recipes.layerskip_tiny.train --output models/layerskip-tiny-control --control

Nothing is downloaded. The folder is a normal Hugging Face folder, with ``prompts.jsonl`` from held-out files and
``training.jsonl`` with the losses beside it.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .corpus import Corpus, read_corpus, standard_library
from .layerskip import CONTROL, LayerSkip
from .model import agreement_by_exit, exit_losses, new_model
from .snippets import cut_prompts, windows, write_prompts
from .tokens import encode, train_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from transformers import LlamaForCausalLM

logger = logging.getLogger("layerskip_tiny")

#: Numbers from which the training, its windows and its checks draw.
WINDOW_STREAM, CHECK_STREAM = 1, 2

#: Steps between two lines of progress, and between two checkpoints.
LOGGED_EVERY, SAVED_EVERY = 25, 100


@dataclass(frozen=True)
class Training:
    """What is trained, and for how long.

    Attributes:
        num_layers: Layers.
        hidden: Width.
        steps: Optimizer steps.
        sequences: Sequences of a step.
        length: Tokens of a sequence.
        learning_rate: Highest, after the warm-up.
        warmup: Share of the steps in which it rises.
        seed: Of weights, windows, dropped layers and held-out files.
        num_prompts: Prompts that are written.
    """

    num_layers: int = 20
    hidden: int = 192
    steps: int = 500
    sequences: int = 4
    length: int = 256
    learning_rate: float = 1.5e-3
    warmup: float = 0.05
    seed: int = 0
    num_prompts: int = 120

    def rate(self, step: int) -> float:
        """Learning rate of a step: a linear rise, then a cosine down to a tenth."""
        progress = (step + 1) / self.steps
        if progress <= self.warmup:
            return self.learning_rate * progress / self.warmup
        down = (progress - self.warmup) / (1 - self.warmup)
        return self.learning_rate * (0.55 + 0.45 * math.cos(math.pi * down))


def train(corpus: Corpus, output: Path, *, recipe: LayerSkip, training: Training) -> LlamaForCausalLM:
    """Trains and saves a model with its tokenizer, prompts and losses.

    Args:
        corpus: Train and held-out files.
        output: The folder to write.
        recipe: LayerSkip's settings, or the control's.
        training: Sizes and length.
    """
    output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(training.seed)
    tokenizer = train_tokenizer(source.text for source in corpus.train)
    tokens = encode(tokenizer, [source.text for source in corpus.train])
    unseen = encode(tokenizer, [source.text for source in corpus.held_out])
    logger.info("%d tokens to train on, %d held out", len(tokens), len(unseen))
    model = new_model(
        vocabulary=len(tokenizer),
        num_layers=training.num_layers,
        hidden=training.hidden,
        end_token=tokenizer.eos_token_id,
    )
    tokenizer.save_pretrained(output)
    prompts = cut_prompts(corpus.held_out, tokenizer, number=training.num_prompts, seed=training.seed)
    write_prompts(output / "prompts.jsonl", prompts)
    with (output / "training.jsonl").open("w", encoding="utf-8") as log:
        log.write(json.dumps({"recipe": asdict(recipe), "training": asdict(training)}) + "\n")
        for step, losses in _steps(model, tokens, recipe, training):
            log.write(json.dumps({"step": step, "losses": losses}) + "\n")
            if step % SAVED_EVERY == 0:
                log.flush()
                model.save_pretrained(output)
        record = check(model, unseen, training)
        log.write(json.dumps(record) + "\n")
    model.save_pretrained(output)
    logger.info("held out: %s", record)
    return model


def _steps(
    model: LlamaForCausalLM, tokens: Tensor, recipe: LayerSkip, training: Training
) -> Iterator[tuple[int, dict[int, float]]]:
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=training.learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    generator = torch.Generator().manual_seed(training.seed + WINDOW_STREAM)
    model.train()
    started = time.monotonic()
    for step in range(training.steps):
        for group in optimizer.param_groups:
            group["lr"] = training.rate(step)
        batch = windows(tokens, number=training.sequences, length=training.length + 1, generator=generator)
        losses = _step(model, batch, recipe, step=step, training=training)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % LOGGED_EVERY == 0:
            logger.info("step %d, loss %.3f, %.0f s", step, losses[training.num_layers], time.monotonic() - started)
        yield step, losses
    model.eval()


def _step(
    model: LlamaForCausalLM, batch: Tensor, recipe: LayerSkip, *, step: int, training: Training
) -> dict[int, float]:
    """Adds up the gradients of one step."""
    depth = training.num_layers
    weights = recipe.loss_weights(depth, step=step)
    progress = step / training.steps
    dropout = [recipe.dropout(layer, num_layers=depth, progress=progress) for layer in range(depth)]
    with torch.autocast("cpu", torch.bfloat16):
        losses = exit_losses(model, batch, weights=weights, dropout=dropout)
    torch.autograd.backward([weights[layers] * loss for layers, loss in losses.items()])
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return {layers: round(float(loss.detach()), 4) for layers, loss in losses.items()}


def check(model: LlamaForCausalLM, unseen: Tensor, training: Training) -> dict[str, object]:
    """Loss and agreement by exit on held-out files."""
    generator = torch.Generator().manual_seed(training.seed + CHECK_STREAM)
    rows = windows(unseen, number=16, length=training.length + 1, generator=generator)
    depth = training.num_layers
    with torch.no_grad():
        losses = exit_losses(model, rows, weights={depth: 1.0}, dropout=[0.0] * depth)
    curve = agreement_by_exit(model, rows[:, :-1])
    return {"held_out_loss": float(losses[depth]), "agreement_by_exit": [round(share, 4) for share in curve]}


def main(arguments: list[str] | None = None) -> int:
    """Runs the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--control", action="store_true", help="train without the recipe")
    parser.add_argument("--source", type=Path, default=standard_library(), help="folder of Python files")
    parser.add_argument("--threads", type=int, default=2)
    for name in ("num_layers", "hidden", "steps", "sequences", "length", "seed"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Training, name))
    given = vars(parser.parse_args(arguments))
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    torch.set_num_threads(given.pop("threads"))
    recipe = CONTROL if given.pop("control") else LayerSkip()
    output, source = given.pop("output"), given.pop("source")
    training = Training(**given)
    train(read_corpus(source, seed=training.seed), output, recipe=recipe, training=training)
    return 0


if __name__ == "__main__":
    sys.exit(main())
