"""Training of the shipped character GPT on Python's help topics.

    python -m amaranth_tpu.scripts.train.gpt

Needs PyTorch: `pip install -e '.[retrain]'`. Two layers of width 64 with four heads see 32 letters. The optimizer is AdamW
with a cosine schedule; weights are rounded to bfloat16 at the end. There are no positions: attention has a bias that falls with
the distance between letters (ALiBi, arXiv 2108.12409). The last tenth of the text is the validation set.
"""

from pathlib import Path
from typing import Annotated

import typer
from safetensors.numpy import save

from amaranth_tpu.sim.data.whole_files import write_file
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.models.gpt import HEADS, LAYERS, TOKENS, WIDTH, distances
from amaranth_tpu.sim.models.gpt_text import ALPHABET, encoded, training_text
from amaranth_tpu.sim.models.shipped import GPT

from .recipe import Seed, rate_at

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError as error:
    raise SystemExit(f"error: {error}; training needs: pip install -e '.[retrain]'") from None

__all__ = ["GPTModule", "train"]

_BATCH = 16


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        for name in "qkvo":
            setattr(self, name, nn.Linear(WIDTH, WIDTH))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        normal = self.norm_1(x)
        q, k, v = (getattr(self, name)(normal).unflatten(-1, (HEADS, -1)).transpose(1, 2) for name in "qkv")
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=torch.from_numpy(distances(TOKENS)))
        x = x + self.o(attended.transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class GPTModule(nn.Module):
    """The GPT: ids (batch, tokens) to logits (batch, tokens, letters)."""

    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(len(ALPHABET), WIDTH)
        self.blocks = nn.ModuleList(_Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(ALPHABET))

    def forward(self, ids):
        x = self.letters(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _batch(ids, generator):
    at = torch.randint(len(ids) - TOKENS, (_BATCH,), generator=generator)
    rows = ids[at[:, None] + torch.arange(TOKENS + 1)]
    return rows[:, :-1], rows[:, 1:]


def _loss(module, rows, wanted):
    return functional.cross_entropy(module(rows).flatten(0, 1), wanted.flatten())


def train(steps, seed=1, report=print):
    """Trains a GPT; returns the module, and its validation loss in nats a letter."""
    torch.manual_seed(seed)
    ids = torch.from_numpy(encoded(training_text()))
    split = len(ids) * 9 // 10
    module, generator = GPTModule(), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(module.parameters(), weight_decay=0.01)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, steps, 4e-3)
        loss = _loss(module, *_batch(ids[:split], generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 250 == 0:
            report(f"step {step} of {steps}: loss {loss.item():.3f}")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.bfloat16())
        losses = [_loss(module, *_batch(ids[split:], generator)).item() for _ in range(50)]
    return module, sum(losses) / len(losses)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    output: Annotated[Path, typer.Option("-o", "--output", help="File of weights.")] = GPT,
    steps: Annotated[int, typer.Option(min=1)] = 3000,
    seed: Seed = 1,
):
    """Train the shipped GPT and write its weights."""
    module, loss = train(steps, seed)
    weights = {name: value.numpy().astype(bfloat16) for name, value in module.state_dict().items()}
    write_file(output, save(weights))
    print(f"{output}: {sum(value.size for value in weights.values()):,} parameters, validation loss {loss:.3f} nats a letter")


if __name__ == "__main__":
    app()
