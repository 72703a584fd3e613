"""The shipped character GPT as ONNX models: one for the prompt, one for a letter at a time with the attention's state."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from .gpt_weights import HEADS, LAYERS, TOKENS, WIDTH, read_weights
from .shipped import GPT

__all__ = ["HEADS", "LAYERS", "TOKENS", "WIDTH", "distances", "gpt_model", "state_names"]

_EACH = WIDTH // HEADS


def distances(tokens):
    """Returns the bias of attention, float32 (heads, queries, keys): the negative distance times 2^-2h for head h from 1, and
    -inf for later keys. This is ALiBi (arXiv 2108.12409)."""
    back = np.arange(tokens)[:, None] - np.arange(tokens)
    slopes = 4.0 ** -np.arange(1, HEADS + 1)
    return np.where(back < 0, -np.inf, -slopes[:, None, None] * back).astype(np.float32)


def state_names():
    """Returns the names of the attention's keys and values, in the order of the models' outputs: `k_0`, `v_0`, `k_1`, ..."""
    return [f"{part}_{layer}" for layer in range(LAYERS) for part in "kv"]


class _Writer:
    """The nodes and constants of a model for `tokens` new letters.

    Parameters
    ----------
    tokens : int
        New letters in a run.
    past : int
        Letters whose keys and values are inputs.
    weights : dict of str to array
    """

    def __init__(self, tokens, past, weights):
        self.tokens, self.past = tokens, past
        self.nodes = []
        self.constants = {name: value.astype(np.float32) for name, value in weights.items()}

    def constant(self, name, value):
        self.constants[name] = np.asarray(value)
        return name

    def add(self, operator, inputs, output, **attributes):
        self.nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def linear(self, x, name, output):
        weights = self.constant(f"{name}.matrix", self.constants.pop(f"{name}.weight").T)
        product = self.add("MatMul", [x, weights], f"{output}.product")
        return self.add("Add", [product, f"{name}.bias"], output)

    def norm(self, x, name):
        return self.add("LayerNormalization", [x, f"{name}.weight", f"{name}.bias"], f"{name}.out")

    def heads(self, x, name, output):
        """Adds a projection, (batch, heads, tokens, channels of a head)."""
        rows = self.linear(x, name, f"{name}.rows")
        shape = self.constant("by_head", np.array([0, self.tokens, HEADS, _EACH]))
        return self.add("Transpose", [self.add("Reshape", [rows, shape], f"{name}.heads")], output, perm=(0, 2, 1, 3))

    def attention(self, normal, layer):
        block = f"blocks.{layer}"
        q = self.heads(normal, f"{block}.q", f"q_{layer}")
        k, v = (self.heads(normal, f"{block}.{part}", f"{part}_{layer}") for part in "kv")
        heads = self.attended_with_state(q, k, v, layer) if self.past else self.attended(q, k, v, layer)
        joined = self.constant("joined", np.array([0, self.tokens, WIDTH]))
        rows = self.add(
            "Reshape", [self.add("Transpose", [heads], f"{block}.rows", perm=(0, 2, 1, 3)), joined], f"{block}.joined"
        )
        return self.linear(rows, f"{block}.o", f"{block}.projected")

    def attended(self, q, k, v, layer):
        weights = self.softmax(self.products(q, k, f"products_{layer}"), layer)
        return self.add("MatMul", [weights, v], f"attended_{layer}")

    def attended_with_state(self, q, k, v, layer):
        """Adds the attention of one letter to itself and to the letters before. The state and the new letter have separate
        products, so that the state is not copied."""
        own = self.add("Mul", [q, k], f"own_products_{layer}")
        own = self.add("ReduceSum", [own, self.constant("last", np.array([-1]))], f"own_{layer}", keepdims=1)
        before = self.products(q, f"past_k_{layer}", f"products_{layer}")
        weights = self.softmax(self.add("Concat", [before, own], f"all_{layer}", axis=-1), layer)
        sizes = self.constant("sizes", np.array([self.past, 1]))
        parts = [f"weights_before_{layer}", f"weight_own_{layer}"]
        self.nodes.append(helper.make_node("Split", [weights, sizes], parts, axis=-1))
        before = self.add("MatMul", [parts[0], f"past_v_{layer}"], f"attended_before_{layer}")
        own = self.add("Mul", [parts[1], v], f"attended_own_{layer}")
        return self.add("Add", [before, own], f"attended_{layer}")

    def products(self, q, k, output):
        return self.add("MatMul", [q, self.add("Transpose", [k], f"{output}.keys", perm=(0, 1, 3, 2))], output)

    def softmax(self, products, layer):
        scores = self.add("Mul", [products, self.constant("scale", np.float32(_EACH**-0.5))], f"scores_{layer}")
        bias = self.constant("distances", distances(self.past + self.tokens)[:, self.past :])
        return self.add("Softmax", [self.add("Add", [scores, bias], f"biased_{layer}")], f"weights_{layer}", axis=-1)

    def block(self, x, layer):
        name = f"blocks.{layer}"
        x = self.add("Add", [x, self.attention(self.norm(x, f"{name}.norm_1"), layer)], f"{name}.residual")
        hidden = self.linear(self.norm(x, f"{name}.norm_2"), f"{name}.up", f"{name}.hidden")
        fed = self.linear(self.add("Gelu", [hidden], f"{name}.activated"), f"{name}.down", f"{name}.fed")
        return self.add("Add", [x, fed], f"{name}.out")


def gpt_model(tokens=TOKENS, past=0, weights=None, has_state=True, alphabet=None):
    """Returns the GPT as an onnx.ModelProto.

    Inputs are `ids`, int64 (batch, tokens), and with `past` the keys and values of the letters before, `past_k_0`, ..., float32
    (batch, heads, past, channels). Outputs are `logits`, float32 (batch, tokens, letters), and the keys and values of the new
    letters, `k_0`, ..., (batch, heads, tokens, channels).

    Parameters
    ----------
    tokens : int
        New letters in a run.
    past : int
        Letters before them.
    weights : dict of str to array or None
        As :func:`sim.models.gpt_weights.read_weights` returns them. Default: the shipped weights.
    has_state : bool
        False: `logits` is the only output, for training.
    alphabet : Alphabet or None
        Alphabet for the model's metadata, if it is not the shipped one.
    """
    weights = read_weights(GPT) if weights is None else weights
    letters, writer = len(weights["letters.weight"]), _Writer(tokens, past, weights)
    x = writer.add("Gather", ["letters.weight", "ids"], "embedded", axis=0)
    for layer in range(LAYERS):
        x = writer.block(x, layer)
    writer.linear(writer.norm(x, "norm"), "head", "logits")
    floats = TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ("batch", tokens))]
    if past:
        inputs += [helper.make_tensor_value_info(f"past_{name}", floats, ("batch", HEADS, past, _EACH)) for name in state_names()]
    outputs = [helper.make_tensor_value_info("logits", floats, ("batch", tokens, letters))]
    states = state_names() if has_state else ()
    outputs += [helper.make_tensor_value_info(name, floats, ("batch", HEADS, tokens, _EACH)) for name in states]
    constants = [numpy_helper.from_array(value, name) for name, value in writer.constants.items()]
    graph = helper.make_graph(writer.nodes, "gpt", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    helper.set_model_props(model, alphabet.entry if alphabet else {})
    return model
