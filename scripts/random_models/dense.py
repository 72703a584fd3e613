"""Products with constant matrices."""

import numpy as np

from .drawing import block

__all__ = []


@block(1, 2, 3, share=2)
def matrix_product(g, x):
    """MatMul along the last axis, with or without a bias."""
    inputs, outputs = x.shape[-1], g.width()
    made = g.value("MatMul", (*x.shape[:-1], outputs), x, g.weights(inputs, outputs, inputs=inputs))
    return g.value("Add", made.shape, *g.either_order(made, g.normal(outputs))) if g.chance(0.6) else made


@block(1)
def gemm(g, x):
    """Gemm with scale factors, a transposed matrix and a bias, or without them."""
    (inputs,), outputs = x.shape, g.width()
    turned = g.chance(0.5)
    weights = g.weights(*((outputs, inputs) if turned else (inputs, outputs)), inputs=inputs)
    bias = [g.normal(*g.choose((outputs,), (1, outputs), (1,)))] if g.chance(0.7) else []
    factors = {"alpha": g.choose(0.5, 1.0, -1.5)} if g.chance(0.3) else {}
    factors |= {"beta": g.choose(0.5, 2.0)} if bias and g.chance(0.3) else {}
    if not factors and g.chance(0.2):
        activation = g.choose("Relu", "Sigmoid", "Tanh", "LeakyRelu")
        more = {"activation_alpha": 0.25} if activation == "LeakyRelu" else {}
        bias = bias or [g.normal(outputs)]
        return g.value(
            "FusedGemm", (outputs,), x, weights, *bias, domain="com.microsoft", transB=int(turned), activation=activation, **more
        )
    return g.value("Gemm", (outputs,), x, weights, *bias, transB=int(turned), **factors)


@block(2)
def einsum(g, x):
    """Einsum with a constant matrix along either axis."""
    rows, columns = x.shape
    outputs = g.width()
    if g.chance(0.5):
        return g.value("Einsum", (rows, outputs), x, g.weights(columns, outputs, inputs=columns), equation="bti,io->bto")
    return g.value("Einsum", (outputs, columns), g.weights(outputs, rows, inputs=rows), x, equation="ot,bti->boi")


@block(2, 3)
def matrix_on_the_left(g, x):
    """MatMul of a constant matrix with the last two axes."""
    rows, outputs = x.shape[-2], g.integer(1, 6)
    return g.value("MatMul", (*x.shape[:-2], outputs, x.shape[-1]), g.weights(outputs, rows, inputs=rows), x)


@block(1, 2)
def written_dense(g, x):
    """Two dense layers with a function between them, and a residual sum around both."""
    inputs, hidden = x.shape[-1], g.width()
    made = g.value("MatMul", (*x.shape[:-1], hidden), x, g.weights(inputs, hidden, inputs=inputs))
    made = g.grow(made, "activation", "written_function")
    made = g.value("MatMul", x.shape, made, g.weights(hidden, inputs, inputs=hidden))
    return g.value("Add", x.shape, *g.either_order(x, made))


@block(1, 2, share=0.7)
def quantised_weights(g, x):
    """MatMul with weights of 8 bits: DequantizeLinear with one scale, or one for each output."""
    inputs, outputs = x.shape[-1], g.width()
    kind = g.choose(np.int8, np.uint8)
    numbers = g.rng.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, (inputs, outputs)).astype(kind)
    shape, axis = g.choose(((), {}), ((outputs,), {"axis": 1}))
    scale = (np.abs(g.normal(*shape)) + np.float32(0.1)) / np.float32(100)
    zero = [g.rng.integers(0, 100, shape).astype(kind)] if kind == np.uint8 or g.chance(0.5) else []
    weights = g.node("DequantizeLinear", numbers, np.asarray(scale, np.float32), *(np.asarray(one) for one in zero), **axis)
    return g.value("MatMul", (*x.shape[:-1], outputs), x, weights)


@block(1, share=0.3)
def scaler(g, x):
    """Scaler of scikit-learn."""
    scale = np.where(g.rng.random(x.shape) < 0.5, 0.5, 1.5)
    return g.value("Scaler", x.shape, x, domain="ai.onnx.ml", offset=g.normal(*x.shape).tolist(), scale=scale.tolist())
