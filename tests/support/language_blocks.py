"""A block of a language model of the SmolLM2 family as an ONNX model: RMSNorm, grouped query attention with rotary embedding, and
SwiGLU."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

WIDTH, _HEADS, _GROUPS, _EACH, _HIDDEN = 576, 9, 3, 64, 1536
_SHAPES = {
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (_GROUPS * _EACH, WIDTH),
    "attn_v": (_GROUPS * _EACH, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_gate": (_HIDDEN, WIDTH),
    "ffn_up": (_HIDDEN, WIDTH),
    "ffn_down": (WIDTH, _HIDDEN),
    "attn_norm": (WIDTH,),
    "ffn_norm": (WIDTH,),
}


def random_block(rng):
    """Returns random weights by name, (outputs, inputs)."""
    return {
        name: (np.ones(shape) if len(shape) == 1 else rng.normal(0, shape[1] ** -0.5, shape)).astype(np.float32)
        for name, shape in _SHAPES.items()
    }


class _Block:
    def __init__(self, weights, positions, past):
        self.weights, self.positions, self.past, self.nodes, self.constants = weights, positions, past, [], []

    def add(self, operator, *inputs, name="", outputs=1, **attributes):
        names = [name or f"t{len(self.nodes)}"] + [f"t{len(self.nodes)}.{more}" for more in range(1, outputs)]
        inputs = [self.constant(one) if isinstance(one, np.ndarray) else one for one in inputs]
        self.nodes.append(helper.make_node(operator, inputs, names, name=names[0], **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, values):
        self.constants.append(numpy_helper.from_array(values, f"c{len(self.constants)}"))
        return self.constants[-1].name

    def dense(self, x, name):
        return self.add("MatMul", x, np.ascontiguousarray(self.weights[name].T))

    def heads(self, x, count):
        split = self.add("Reshape", x, np.array([0, self.positions, count, _EACH]))
        return self.add("Transpose", split, perm=[0, 2, 1, 3])

    def rotated(self, x, name=""):
        """Rotates pairs of neighbours."""
        angles = np.arange(self.past, self.past + self.positions)[:, None] * 1e5 ** (-2 * (np.arange(_EACH) // 2) / _EACH)
        turn = np.kron(np.eye(_EACH // 2), [[0, 1], [-1, 0]]).astype(np.float32)
        own = self.add("Mul", x, np.cos(angles).astype(np.float32))
        other = self.add("Mul", self.add("MatMul", x, turn), np.sin(angles).astype(np.float32))
        return self.add("Add", own, other, name=name)

    def attention(self, x):
        """Returns the heads side by side, with a row of scores for each head of a group and each position."""
        q, k = self.rotated(self.heads(self.dense(x, "attn_q"), _HEADS)), self.heads(self.dense(x, "attn_k"), _GROUPS)
        k, v = self.rotated(k, "key"), self.heads(self.dense(x, "attn_v"), _GROUPS)
        v = self.add("Identity", v, name="value")
        rows = _HEADS // _GROUPS * self.positions
        q = self.add("Reshape", self.add("Mul", q, np.array(_EACH**-0.5, np.float32)), np.array([0, _GROUPS, rows, _EACH]))
        keys = self.add("Concat", "past_keys", k, axis=2) if self.past else k
        values = self.add("Concat", "past_values", v, axis=2) if self.past else v
        scores = self.add("MatMul", q, self.add("Transpose", keys, perm=[0, 1, 3, 2]))
        if not self.past:
            mask = np.where(np.tri(self.positions), 0, -np.inf).astype(np.float32)
            scores = self.add("Add", scores, np.tile(mask, (_HEADS // _GROUPS, 1)))
        made = self.add("MatMul", self.add("Softmax", scores, axis=-1), values)
        made = self.add("Reshape", made, np.array([0, _HEADS, self.positions, _EACH]))
        return self.add("Reshape", self.add("Transpose", made, perm=[0, 2, 1, 3]), np.array([0, self.positions, WIDTH]))

    def norm(self, x, name):
        return self.add("RMSNormalization", x, self.weights[name], axis=-1, epsilon=1e-5)


def language_block(weights, positions, past=0):
    """Returns the model of `positions` tokens, after `past` tokens whose keys and values are inputs. Outputs are the hidden
    states "y", and with a past the token's "key" and "value"."""
    block = _Block(weights, positions, past)
    attended = block.dense(block.attention(block.norm("x", "attn_norm")), "attn_output")
    x = block.add("Add", "x", attended)
    h = block.norm(x, "ffn_norm")
    gate = block.dense(h, "ffn_gate")
    gated = block.add("Mul", block.add("Mul", gate, block.add("Sigmoid", gate)), block.dense(h, "ffn_up"))
    block.add("Add", x, block.dense(gated, "ffn_down"), name="y")
    shapes = {"x": (positions, WIDTH)}
    outputs = {"y": (positions, WIDTH)}
    if past:
        shapes |= dict.fromkeys(("past_keys", "past_values"), (_GROUPS, past, _EACH))
        outputs |= dict.fromkeys(("key", "value"), (_GROUPS, positions, _EACH))
    infos = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("batch", *shape)) for name, shape in some.items()]
        for some in (shapes, outputs)
    )
    graph = helper.make_graph(block.nodes, "block", *infos, block.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
