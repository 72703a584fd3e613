"""Weights of the character GPT: sizes, new random weights, and files."""

import numpy as np

from ..data.digits import DataError
from ..data.printable import printable
from .gpt_text import ALPHABET, Alphabet

__all__ = ["HEADS", "LAYERS", "TOKENS", "WIDTH", "alphabet_of", "new_weights", "read_alphabet", "read_weights", "weights_of"]

#: Letters that attention reaches, channels of a letter, heads, and blocks.
TOKENS, WIDTH, HEADS, LAYERS = 32, 64, 4, 2


def _linear_shapes(letters):
    """Returns {name: (outputs, inputs)} of the dense layers."""
    shapes = {}
    for block in (f"blocks.{layer}" for layer in range(LAYERS)):
        shapes |= {f"{block}.{part}": (WIDTH, WIDTH) for part in "qkvo"}
        shapes |= {f"{block}.up": (4 * WIDTH, WIDTH), f"{block}.down": (WIDTH, 4 * WIDTH)}
    return shapes | {"head": (letters, WIDTH)}


def _norms():
    return [*(f"blocks.{layer}.norm_{number}" for layer in range(LAYERS) for number in (1, 2)), "norm"]


def new_weights(seed, letters=None):
    """Returns random weights, {name: float32 array}, for a number of letters; default: the shipped alphabet's.

    Embeddings are normally distributed with deviation 1, as in PyTorch. Weights of a dense layer of K inputs are uniform between
    -1 / sqrt(K) and 1 / sqrt(K); biases are 0.
    """
    letters = len(ALPHABET) if letters is None else letters
    weights = {"letters.weight": np.random.default_rng([seed, 0]).normal(0, 1, (letters, WIDTH))}
    for number, (name, shape) in enumerate(_linear_shapes(letters).items(), 1):
        most = shape[1] ** -0.5
        weights[f"{name}.weight"] = np.random.default_rng([seed, number]).uniform(-most, most, shape)
        weights[f"{name}.bias"] = np.zeros(shape[0])
    for name in _norms():
        weights |= {f"{name}.weight": np.ones(WIDTH), f"{name}.bias": np.zeros(WIDTH)}
    return {name: value.astype(np.float32) for name, value in weights.items()}


def read_weights(path):
    """Reads weights, {name: array}, from a safetensors file, or from an ONNX file of this GPT, as `tpu train --model gpt`
    writes it. Raises DataError, one line, for other files."""
    try:
        weights = _from_onnx(path) if str(path).endswith(".onnx") else _from_safetensors(path)
    except FileNotFoundError:
        raise DataError(f"{printable(path)}: No such file; give a file of tpu train --model gpt") from None
    except OSError as error:
        raise DataError(f"{printable(path)}: {error.strerror or error}") from None
    except Exception as error:  # onnx and safetensors raise many types of exceptions for damaged files
        raise DataError(
            f"{printable(path)}: cannot be read ({printable(error, 100)}); give a file of tpu train --model gpt"
        ) from None
    wanted = new_weights(0, len(weights.get("letters.weight", ALPHABET)))
    for name, value in wanted.items():
        if name not in weights or weights[name].shape != value.shape:
            raise DataError(f"{printable(path)}: has no {name} of shape {value.shape}; give a file of tpu train --model gpt")
    return {name: weights[name] for name in wanted}


def read_alphabet(path):
    """Returns the :class:`.Alphabet` of a file that :func:`read_weights` reads: of its metadata, or the shipped one."""
    if not str(path).endswith(".onnx"):
        return Alphabet()
    import onnx

    return alphabet_of(onnx.load(path))


def alphabet_of(model):
    """Returns the :class:`.Alphabet` in the metadata of an onnx.ModelProto, or the shipped one."""
    return Alphabet.read({entry.key: entry.value for entry in model.metadata_props}.get("alphabet"))


def _from_safetensors(path):
    from safetensors.numpy import load_file

    return load_file(path)


def _from_onnx(path):
    import onnx

    return weights_of(onnx.load(path))


def weights_of(model):
    """Returns the weights in an onnx.ModelProto of this GPT."""
    from onnx import numpy_helper

    arrays = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    matrices = {name: values for name, values in arrays.items() if name.endswith(".matrix")}
    return arrays | {f"{name.removesuffix('.matrix')}.weight": values.T for name, values in matrices.items()}
