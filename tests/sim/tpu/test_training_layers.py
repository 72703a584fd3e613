"""Tests of layers that act in training alone: `fit` refuses them by name, and trains the model once it is changed as it says."""

import os

import numpy as np
import pytest

from amaranth_tpu.sim import tpu

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks


@pytest.fixture
def data(rng):
    return rng.normal(0, 1, (64, 6, 4)).astype(np.float32), rng.integers(0, 3, 64)


def _check(data, refused, cause, remedy, accepted):
    with pytest.raises(tpu.ModelError, match=f"{cause}, which fit does not have; .*{remedy}"):
        refused.fit(*data, steps=1, verbose=False)
    assert accepted.fit(*data, steps=2, check_steps=1, core=tpu.Config(n=4), verbose=False).core["mismatched_bits"] == 0


#: Layers that are refused, the cause, the remedy and the layers that it leads to.
KERAS = {
    "SpatialDropout1D": (
        lambda layers: [layers.Conv1D(3, 2), layers.SpatialDropout1D(0.2)],
        r"spatial_dropout1d\w* \(SpatialDropout1D\) acts in training alone",
        "put a Dropout layer in its place",
        lambda layers: [layers.Conv1D(3, 2), layers.Dropout(0.2)],
    ),
    "GaussianNoise": (
        lambda layers: [layers.Conv1D(3, 2), layers.GaussianNoise(0.2)],
        r"\(GaussianNoise\) acts in training alone",
        "put a Dropout layer in its place",
        lambda layers: [layers.Conv1D(3, 2), layers.GaussianNoise(0.0), layers.Dropout(0.2)],
    ),
    "dropout": (
        lambda layers: [layers.LSTM(3, dropout=0.2)],
        r"\(LSTM\) has dropout",
        "put a Dropout layer before it",
        lambda layers: [layers.Dropout(0.2), layers.LSTM(3)],
    ),
    "recurrent_dropout": (
        lambda layers: [layers.GRU(3, recurrent_dropout=0.2)],
        r"\(GRU\) has recurrent_dropout",
        "put a Dropout layer after it",
        lambda layers: [layers.GRU(3), layers.Dropout(0.2)],
    ),
    "Attention": (
        lambda layers: [layers.Attention(dropout=0.2)],
        r"\(Attention\) has dropout",
        "put a Dropout layer before it",
        lambda layers: [layers.Dropout(0.2), layers.Attention()],
    ),
    "noise_shape": (
        lambda layers: [layers.Conv1D(3, 2), layers.Dropout(0.2, noise_shape=(None, 1, 3))],
        r"\(Dropout\) has noise_shape",
        "leave noise_shape out",
        lambda layers: [layers.Conv1D(3, 2), layers.Dropout(0.2)],
    ),
    "SpectralNormalization": (
        lambda layers: [layers.SpectralNormalization(layers.Conv1D(3, 2))],
        r"\(SpectralNormalization\) changes its weights beside the optimizer",
        "leave it out",
        lambda layers: [layers.Conv1D(3, 2)],
    ),
    "ActivityRegularization": (
        lambda layers: [layers.Conv1D(3, 2), layers.ActivityRegularization(0.1)],
        r"\(ActivityRegularization\) acts in training alone",
        "leave it out, and give fit the optimizer",
        lambda layers: [layers.Conv1D(3, 2)],
    ),
    "regularizer": (
        lambda layers: [layers.Conv1D(3, 2, kernel_regularizer="l2")],
        r"\(Conv1D\) has a regularizer",
        "leave it out, and give fit the optimizer",
        lambda layers: [layers.Conv1D(3, 2)],
    ),
}


@pytest.mark.parametrize("name", KERAS)
def test_keras(name, data):
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="needs the packages keras and torch")
    pytest.importorskip("onnxscript", reason="needs the packages keras, torch and onnxscript")
    refused, cause, remedy, accepted = KERAS[name]

    def model(made):
        x = given = keras.layers.Input((6, 4))
        for layer in [*made(keras.layers), keras.layers.Flatten(), keras.layers.Dense(3)]:
            x = layer([x, x] if isinstance(layer, keras.layers.Attention) else x)
        return tpu.from_keras(keras.Model(given, x))

    _check(data, model(refused), cause, remedy, model(accepted))


def test_a_mask_of_the_loss():
    """Keras leaves masked positions out of the loss. Here their label is -100."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="needs the packages keras and torch")
    pytest.importorskip("onnxscript", reason="needs the packages keras, torch and onnxscript")
    layers, ids = keras.layers, np.random.default_rng(3).integers(0, 7, (64, 6))
    embedded = (layers.Embedding(7, 4, mask_zero=is_masked) for is_masked in (True, False))
    refused, accepted = (keras.Sequential([layers.Input((6,), dtype="int32"), one, layers.Dense(3)]) for one in embedded)
    cause, remedy = r"dense\w* \(Dense\) has a mask, by which Keras leaves out positions", "and give the label -100 to positions"
    labelled = ids, np.where(ids > 0, ids % 3, -100)
    _check(labelled, tpu.from_keras(refused), cause, remedy, tpu.from_keras(accepted))


def test_dropout_inside_a_layer_of_keras(data):
    """A layer of Dropout inside a layer drops values, as the only one of the model. Attention of Keras has other operators with
    dropout: it runs, and `fit` asks for a rate."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="needs the packages keras and torch")
    pytest.importorskip("onnxscript", reason="needs the packages keras, torch and onnxscript")

    class Attention(keras.layers.Layer):  # not the layer of this name
        def __init__(self):
            super().__init__()
            self.dense, self.drop = keras.layers.Dense(4), keras.layers.Dropout(0.5)

        def call(self, x):
            return self.drop(self.dense(x))

    given = keras.layers.Input((6, 4))
    x = keras.layers.Flatten()(keras.layers.MultiHeadAttention(2, 4, dropout=0.5)(given, given))
    net = keras.Model(given, keras.layers.Dense(3)(x))
    model = tpu.from_keras(net)
    assert np.abs(model.predict(data[0]) - net.predict(data[0], verbose=0)).max() < 0.05
    with pytest.raises(
        tpu.ModelError, match="the tensors that it drops are not found in its export; give fit the argument `dropout`"
    ):
        model.fit(*data, verbose=False)
    assert model.fit(*data, dropout=0.25, check_steps=1, core=tpu.Config(n=4), verbose=False).core["mismatched_bits"] == 0
    made = [keras.layers.Input((6, 4)), Attention(), keras.layers.Flatten(), keras.layers.Dense(3)]
    _check_dropped(data, tpu.from_keras(keras.Sequential(made)))


def _check_dropped(data, model):
    """Checks that a step drops values, in the same way as a core."""
    loss = model.evaluate(*data)["loss"]
    done = model.fit(*data, steps=1, batch_size=64, check_steps=1, core=tpu.Config(n=4), verbose=False)
    assert done.core["mismatched_bits"] == 0 and abs(done.step_losses[0] - loss) > 1e-4


def test_torch(data):
    torch = pytest.importorskip("torch", reason="needs the packages torch and onnxscript")
    pytest.importorskip("onnxscript", reason="needs the packages torch and onnxscript")
    nn = torch.nn

    def model(*layers):
        return tpu.from_torch(nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, 3)).eval(), torch.zeros(1, 6, 4))

    class RNN(nn.Module):  # not the layer of this name
        def forward(self, x):
            return nn.functional.dropout(x, 0.25, self.training)

    class Attention(nn.MultiheadAttention):
        def forward(self, x):
            return super().forward(x, x, x, need_weights=False)[0]

    for first in (RNN(), Attention(4, 2, dropout=0.5, batch_first=True)):
        _check_dropped(data, model(first))

    assert model(Attention(4, 2, batch_first=True))._source.dropout == 0  # it does not look for dropped tensors

    class Embedding(nn.Linear):  # not the layer of this name
        def forward(self, x):
            if self.training:
                self.steps = self.steps + 1
            return super().forward(x) * (2 if self.training and self.is_other else 1)

    models, steps = [], torch.zeros(1, dtype=torch.int64)
    for Embedding.is_other in (True, False):
        layer = Embedding(4, 4)
        layer.register_buffer("steps", steps)
        models.append(model(layer))
        assert layer.steps is steps and not steps
    _check(data, models[0], "Sequential: it computes other results in training", "let forward return the same", models[1])

    class Noise(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x) if self.training else x

    with pytest.raises(tpu.ModelError, match="computes other results in training"):
        model(Noise()).fit(*data, dropout=0.1)
    layer = nn.Linear(4, 4)
    hook = layer.weight.register_hook(lambda gradient: gradient * 0)
    hooked = model(layer)
    hook.remove()
    _check(data, hooked, r"0 \(Linear\) has a hook that changes a gradient", "remove the hook", model(layer))
    cause, remedy = r"0 \(Dropout1d\) acts in training alone", "put a Dropout layer in its place"
    _check(data, model(nn.Dropout1d(0.2)), cause, remedy, model(nn.Dropout(0.2)))


def test_weights_without_a_gradient(data):
    """PyTorch does not train weights before `detach` or in `no_grad`, and weights that are not used. They keep all bits."""
    torch = pytest.importorskip("torch", reason="needs the packages torch and onnxscript")
    pytest.importorskip("onnxscript", reason="needs the packages torch and onnxscript")
    nn = torch.nn

    class Stopped(nn.Module):
        def __init__(self, is_detached):
            super().__init__()
            self.first, self.last, self.unused = nn.Linear(24, 5), nn.Linear(5, 3), nn.Linear(2, 2)
            self.is_detached = is_detached

        def forward(self, x):
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.is_detached):
                x = torch.relu(self.first(x.flatten(1)))
            return self.last(x.detach() if self.is_detached else x)

    for is_detached in (True, False):
        module = Stopped(is_detached).eval()
        before = {name: one.clone() for name, one in module.named_parameters()}
        done = tpu.from_torch(module, torch.zeros(1, 6, 4)).fit(*data, check_steps=1, core=tpu.Config(n=4), verbose=False)
        changed = [name for name, one in module.named_parameters() if (one != before[name]).any()]
        assert changed == ["last.weight", "last.bias"] and done.core["mismatched_bits"] == 0


def test_weights_before_stop_gradient(data):
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="needs the packages keras and torch")
    pytest.importorskip("onnxscript", reason="needs the packages keras, torch and onnxscript")
    given = keras.layers.Input((6, 4))
    hidden = keras.layers.Flatten()(keras.layers.Dense(4, activation="relu")(given))
    net = keras.Model(given, keras.layers.Dense(3)(keras.ops.stop_gradient(hidden)))
    before = [np.array(one) for one in net.get_weights()]
    tpu.from_keras(net).fit(*data, verbose=False)
    changed = [bool((one != other).any()) for one, other in zip(before, net.get_weights())]
    assert changed == [False, False, True, True]


def test_rows_that_pytorch_does_not_train():
    torch = pytest.importorskip("torch", reason="needs the packages torch and onnxscript")
    pytest.importorskip("onnxscript", reason="needs the packages torch and onnxscript")
    nn, ids = torch.nn, np.random.default_rng(3).integers(0, 7, (64, 6))
    for option in ({"padding_idx": 0}, {"scale_grad_by_freq": True}):
        made = (nn.Sequential(nn.Embedding(7, 4, **given), nn.Flatten(), nn.Linear(24, 3)) for given in (option, {}))
        models = (tpu.from_torch(one.eval(), torch.zeros(1, 6, dtype=torch.int64)) for one in made)
        (name,) = option
        refused, accepted = models
        _check((ids, ids[:, 0] % 3), refused, rf"0 \(Embedding\) has {name}", f"leave {name} out", accepted)


def test_dropout_before_a_convolution(data):
    torch = pytest.importorskip("torch", reason="needs the packages torch and onnxscript")
    pytest.importorskip("onnxscript", reason="needs the packages torch and onnxscript")
    nn = torch.nn
    layers = nn.Dropout(0.2), nn.Conv1d(6, 3, 2), nn.Flatten(), nn.Linear(9, 3)
    for order, given in (((0, 1, 2, 3), {"dropout": 0.2}), ((1, 0, 2, 3), {})):
        model = tpu.from_torch(nn.Sequential(*(layers[place] for place in order)).eval(), torch.zeros(1, 6, 4))
        if given:
            with pytest.raises(
                tpu.ModelError, match="before a convolution, .*; put this layer after the convolution, or give fit"
            ):
                model.fit(*data, steps=1, verbose=False)
        model.fit(*data, steps=1, verbose=False, **given)
