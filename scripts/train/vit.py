"""The module of the shipped vision transformer: 16 patches of 7 x 7 pixels, two blocks of width 64 with four heads."""

import io

import onnx
from onnx import helper

from .recipe import PREPROCESS

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError as error:
    raise SystemExit(f"error: {error}; training needs: pip install -e '.[retrain,data]'") from None

__all__ = ["VisionTransformer", "export_transformer"]

_WIDTH, _HEADS, _LAYERS, _PATCH = 64, 4, 2, 7


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        for name in "qkvo":
            setattr(self, name, nn.Linear(_WIDTH, _WIDTH))
        self.up, self.down = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)

    def forward(self, x):
        normal = self.norm_1(x)
        q, k, v = (getattr(self, name)(normal).unflatten(-1, (_HEADS, -1)).transpose(1, 2) for name in "qkv")
        x = x + self.o(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class VisionTransformer(nn.Module):
    """A vision transformer of images (batch, 1, 28, 28) to logits (batch, 10). It averages the patches at the end, in place of
    a class token."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, _WIDTH, _PATCH, stride=_PATCH)
        self.positions = nn.Parameter(torch.randn(16, _WIDTH) * 0.02)
        self.blocks = nn.ModuleList(_Block() for _ in range(_LAYERS))
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 10)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def export_transformer(network, name, seed):
    """Returns the ONNX model of a trained network, as PyTorch's exporter writes it, with its metadata.

    Parameters
    ----------
    network : nn.Sequential
        A single :class:`VisionTransformer`, in evaluation mode.
    name : str
        Name of the graph.
    seed : int
        Seed of the training.
    """
    file = io.BytesIO()
    torch.onnx.export(
        network[0],
        (torch.zeros(1, 1, 28, 28),),
        file,
        input_names=["image"],
        output_names=["logits"],
        dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        opset_version=17,
        dynamo=False,
    )
    model = onnx.load_from_string(file.getvalue())
    model.graph.name, model.producer_name = name, "amaranth-tpu"
    model.producer_version = ""
    helper.set_model_props(model, {"preprocess": PREPROCESS, "seed": str(seed)})
    onnx.checker.check_model(model, full_check=True)
    return model
