"""Training of the shipped networks a, b, c, d and vit, on MNIST without the 5,000 digits of the default data set.

    python -m amaranth_tpu.scripts.train.cnn c --data DIR

On one CPU core, training takes about 10 minutes for a, 14 for b, 6 for c, 13 for vit and 10 seconds for d. It needs PyTorch and
onnxruntime, which the product does not: `pip install -e '.[retrain,data]'`. The optimizer is AdamW with a cosine schedule.
Digits are randomly shifted, rotated, stretched and bent a little. Batch normalization is folded into the weights afterwards. The
final weights are a running average over the steps, rounded to bfloat16. The same seed on the same machine gives the same file.

There is no selection of an epoch: the last one counts. The design of c was chosen with the 5,000 digits of the validation split,
which the seed draws from the training images: removing the padding of its last two convolutions costs no accuracy, halving their
channels does. The test images are only used for the final result.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from ml_dtypes import bfloat16
from onnx import TensorProto, helper, numpy_helper

from amaranth_tpu.sim.check.onnxruntime_import import import_onnxruntime
from amaranth_tpu.sim.data.digits import preprocess
from amaranth_tpu.sim.models.shipped import SHIPPED

from .recipe import BATCH, PREPROCESS, Data, Seed, digits_for, kept_at, model_of, rate_at, shown_training, write_model
from .vit import VisionTransformer, export_transformer

try:
    onnxruntime = import_onnxruntime()
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.nn.utils import fusion
except ImportError as error:
    raise SystemExit(f"error: {error}; training needs: pip install -e '.[retrain,data]'") from None

__all__ = ["NETWORKS", "Recipe", "train", "fold_batch_norm", "accuracy", "multiply_accumulates", "export"]

_HELD_OUT = 5_000


@dataclass(frozen=True)
class Recipe:
    """The architecture and the training settings of one network.

    Parameters
    ----------
    layers : callable
        Returns the list of the network's modules, not yet trained.
    epochs : int
        Number of epochs.
    strength : float
        Strength of the random distortions of images; 0 disables them.
    rate : float
        Highest learning rate of AdamW.
    softmax : bool
        True if the exported network ends in Softmax. False: its outputs are logits.
    """

    layers: Callable[[], list]
    epochs: int
    strength: float = 1.0
    rate: float = 4e-3
    softmax: bool = False


def _convolution(inputs, outputs, size, padding):
    return [nn.Conv2d(inputs, outputs, size, padding=padding, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]


def _dense(inputs, outputs):
    return [nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU()]


#: The networks, by name; all take (batch, 1, 28, 28).
NETWORKS = {
    "a": Recipe(
        lambda: [
            *_convolution(1, 32, 3, "valid"),
            *_convolution(32, 64, 3, "valid"),
            nn.Flatten(),
            *_dense(1600, 128),
            nn.Dropout(0.5),
            nn.Linear(128, 10),
        ],
        epochs=20,
        softmax=True,
    ),
    "b": Recipe(
        lambda: [
            *_convolution(1, 32, 5, "same"),
            *_convolution(32, 64, 5, "same"),
            nn.Flatten(),
            *_dense(3136, 128),
            nn.Dropout(0.4),
            nn.Linear(128, 10),
        ],
        epochs=16,
    ),
    "c": Recipe(
        lambda: [
            *_convolution(1, 16, 3, "same"),
            *_convolution(16, 32, 3, "valid"),
            *_convolution(32, 64, 3, "valid"),
            nn.Flatten(),
            *_dense(256, 64),
            nn.Linear(64, 10),
        ],
        epochs=30,
    ),
    "d": Recipe(lambda: [nn.Flatten(), nn.Linear(784, 10)], epochs=20, strength=0, rate=2e-3, softmax=True),
    "vit": Recipe(lambda: [VisionTransformer()], epochs=30, rate=2e-3),
}


def _tensors(images, labels):
    pixels = preprocess(images, PREPROCESS).reshape(len(images), 1, *images.shape[1:])
    return torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64))


def _distort(images, strength):
    count, _, rows, columns = images.shape
    turn, slant = torch.randn(2, count) * 0.12 * strength
    stretch = torch.exp(torch.randn(2, count) * 0.09 * strength)
    shift = torch.randn(2, count) * 0.9 * 2 / rows * strength
    cos, sin = torch.cos(turn), torch.sin(turn)
    maps = torch.stack(
        [
            torch.stack([(cos + slant * sin) * stretch[0], (slant * cos - sin) * stretch[0], shift[0]], 1),
            torch.stack([sin * stretch[1], cos * stretch[1], shift[1]], 1),
        ],
        1,
    )
    grid = functional.affine_grid(maps, images.shape, align_corners=False)
    bend = torch.randn(count, 2, 5, 5) * 0.05 * strength
    bend = functional.interpolate(bend, (rows, columns), mode="bicubic", align_corners=True)
    return functional.grid_sample(images, grid + bend.permute(0, 2, 3, 1), align_corners=False)


def train(recipe, images, labels, *, seed=1, epochs=None, smoothing=0.02, report=None, validate=None):
    """Trains a network. Returns it as a `nn.Sequential` with bfloat16 weights.

    Its modules are `Conv2d`, `ReLU`, `MaxPool2d`, `Flatten` and `Linear`.

    `report(step, steps, loss)` is called after every step, `validate(epoch, network)` after every epoch.
    """
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # makes sums independent of the number of CPU cores
    epochs = epochs or recipe.epochs
    network = nn.Sequential(*recipe.layers()).to(memory_format=torch.channels_last)
    average = copy.deepcopy(network)
    optimizer = torch.optim.AdamW(network.parameters(), recipe.rate, weight_decay=0.02)
    pixels, classes = _tensors(images, labels)
    per_epoch = len(images) // BATCH
    steps, step = epochs * per_epoch, 0
    for epoch in range(epochs):
        network.train()
        order = torch.randperm(len(images))
        # The last epochs use almost undistorted digits.
        strength = recipe.strength * (1 if epoch < 0.85 * epochs else 0.5)
        for chosen in order[: per_epoch * BATCH].split(BATCH):
            x = _distort(pixels[chosen], strength) if strength else pixels[chosen]
            loss = functional.cross_entropy(network(x), classes[chosen], label_smoothing=smoothing)
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = rate_at(step, steps, recipe.rate)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            _follow(average, network, kept_at(step))
            if report:
                report(step, steps, loss.item())
        if validate:
            validate(epoch + 1, fold_batch_norm(average))
    return fold_batch_norm(average)


@torch.no_grad()
def _follow(average, network, kept):
    now = network.state_dict()
    for name, value in average.state_dict().items():
        if value.is_floating_point():
            value.lerp_(now[name], 1 - kept)


def fold_batch_norm(network):
    """Returns the network for inference: batch normalization is folded into the weights, and Dropout is removed. Weights are
    rounded to bfloat16; biases remain binary32."""
    layers = []
    for module in copy.deepcopy(network).eval():
        if isinstance(module, nn.BatchNorm2d):
            layers[-1] = fusion.fuse_conv_bn_eval(layers[-1], module)
        elif isinstance(module, nn.BatchNorm1d):
            layers[-1] = fusion.fuse_linear_bn_eval(layers[-1], module)
        elif not isinstance(module, nn.Dropout):
            layers.append(module)
    network = nn.Sequential(*layers)
    for module in _products(network):
        module.weight.data = _rounded(module.weight.data)
    return network.eval()


def _products(network):
    return [module for module in network.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]


def _rounded(values):
    return values.to(torch.bfloat16).float()


@torch.no_grad()
def accuracy(network, images, labels):
    """Returns the accuracy of a folded network on labelled images. Weights multiply bfloat16 operands; sums are binary32."""
    pixels, classes = _tensors(images, labels)
    # ReLU, max pooling and reshapes commute with rounding.
    hooks = [module.register_forward_pre_hook(lambda _, inputs: (_rounded(inputs[0]),)) for module in _products(network)]
    right = sum(int((network(x).argmax(1) == wanted).sum()) for x, wanted in zip(pixels.split(500), classes.split(500)))
    for hook in hooks:
        hook.remove()
    return right / len(images)


@torch.no_grad()
def multiply_accumulates(network, shape=(1, 28, 28)):
    """Returns the number of multiply-accumulates with weights per image, including products with padding."""
    counts = []
    hooks = [
        module.register_forward_hook(lambda one, _, y: counts.append(y.numel() * one.weight[0].numel()))
        for module in _products(network)
    ]
    network(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return sum(counts)


def export(network, name, seed, *, softmax=False):
    """Returns the ONNX model of a folded network. Cast nodes convert its bfloat16 weights to binary32; biases are binary32."""
    nodes, tensors, count = [], [], {}

    def append(operator, stem, *operands, output=None, **attributes):
        count[stem] = count.get(stem, 0) + 1
        title = f"{stem}{count[stem]}"
        output = output or f"{title}_values"
        nodes.append(helper.make_node(operator, operands, [output], title, **attributes))
        return output

    def linear(operator, stem, value, module, **attributes):
        title = f"{stem}{count.get(stem, 0) + 1}"
        weight = module.weight.detach().contiguous().numpy()
        tensors.append(numpy_helper.from_array(weight.astype(bfloat16), f"{title}.weight"))
        tensors.append(numpy_helper.from_array(module.bias.detach().numpy(), f"{title}.bias"))
        wide = append("Cast", f"{title}_weight", f"{title}.weight", to=TensorProto.FLOAT)
        return append(operator, stem, value, wide, f"{title}.bias", **attributes)

    value = "image"
    for module in network:
        match module:
            case nn.Conv2d():
                rows, columns = module.kernel_size
                rows_around, columns_around = (rows // 2, columns // 2) if module.padding == "same" else (0, 0)
                value = linear(
                    "Conv",
                    "convolution",
                    value,
                    module,
                    kernel_shape=[rows, columns],
                    strides=[1, 1],
                    pads=[rows_around, columns_around] * 2,
                )
            case nn.Linear():
                value = linear("Gemm", "dense", value, module, transB=1)
            case nn.MaxPool2d():
                value = append("MaxPool", "pool", value, kernel_shape=[module.kernel_size] * 2, strides=[module.stride] * 2)
            case nn.ReLU():
                value = append("Relu", "relu", value)
            case nn.Flatten():
                value = append("Flatten", "flatten", value, axis=1)
            case _:
                raise TypeError(f"no ONNX operator known for {module}")
    if softmax:
        value = append("Softmax", "softmax", value, axis=1)
    output = "probabilities" if softmax else "logits"
    nodes[-1].output[0] = output
    return model_of(nodes, tensors, name, output, network[-1].out_features, seed)


def _onnx_accuracy(content, images, labels):
    """Returns the accuracy of an ONNX model (`content` is its bytes) on labelled images, computed by onnxruntime in binary32."""
    session = onnxruntime.InferenceSession(content)
    pixels = _tensors(images, labels)[0].numpy()
    found = np.concatenate([session.run(None, {"image": pixels[at : at + 500]})[0] for at in range(0, len(pixels), 500)])
    return float((found.argmax(1) == labels).mean())


def _split(images, labels, seed):
    """Splits digits into `(training, validation)`, each (images, labels). `seed` draws the validation digits."""
    order = np.random.default_rng(seed).permutation(len(images))
    kept, held = np.sort(order[_HELD_OUT:]), np.sort(order[:_HELD_OUT])
    return (images[kept], labels[kept]), (images[held], labels[held])


def main(
    name: Annotated[str, typer.Argument(help="a, b, c, d or vit.")],
    data: Data,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="ONNX file to write. Default: the shipped file.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Number of epochs. Default: by the network's recipe.")] = None,
    seed: Seed = 1,
):
    """Train a network, print its accuracy, write it as ONNX."""
    if name not in NETWORKS:
        raise typer.BadParameter(f"must be one of {', '.join(NETWORKS)}, not {name!r}")
    recipe, output = NETWORKS[name], output or SHIPPED[name]
    (images, labels), (tests, test_labels), (default, default_labels) = digits_for(data, output, _HELD_OUT + BATCH)
    (images, labels), (held, held_labels) = _split(images, labels, seed)
    network = fold_batch_norm(nn.Sequential(*recipe.layers()))
    typer.echo(
        f"{len(images)} digits to train on, {len(held)} to validate, {len(default)} of the default data set left out; "
        f"{multiply_accumulates(network):,} multiply-accumulates an image"
    )
    with shown_training(epochs or recipe.epochs) as (report, console):

        def validate(epoch, network):
            console.print(f"epoch {epoch}: {accuracy(network, held, held_labels):.2%} of the validation digits")

        network = train(recipe, images, labels, seed=seed, epochs=epochs, report=report, validate=validate)
    if name == "vit":
        model = export_transformer(network, SHIPPED[name].stem, seed)
    else:
        model = export(network, SHIPPED[name].stem, seed, softmax=recipe.softmax)
    content = write_model(output, model)
    for what, pixels, wanted in (("test", tests, test_labels), ("default", default, default_labels)):
        typer.echo(
            f"{len(pixels)} {what} digits: {accuracy(network, pixels, wanted):.2%} right with bfloat16 operands, "
            f"{_onnx_accuracy(content, pixels, wanted):.2%} by onnxruntime in binary32"
        )
    typer.echo(f"wrote {output}, {len(content):,} bytes")


if __name__ == "__main__":
    typer.run(main)
