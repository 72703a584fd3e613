"""Tests of models from PyTorch and Keras: the same results, training, and trained weights in the framework's own object.

They run where the packages are installed: `pip install -e '.[torch,keras]'`.
"""

import os
import re
import warnings
from contextlib import nullcontext

import numpy as np
import pytest

from amaranth_tpu.scripts.docs import site
from amaranth_tpu.sim import tpu
from onnx_models import close
from training_runs import FIXED

CORE = tpu.Config(n=4)

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks


def samples(rng, *shape):
    """Returns 256 samples of 4 classes: noise around a centre for each class."""
    labels = rng.integers(0, 4, 256)
    centres = np.random.default_rng(7).normal(0, 1, (4, *shape))
    return (centres[labels] + rng.normal(0, 1, (256, *shape))).astype(np.float32), labels


@pytest.fixture
def torch(seed):
    pytest.importorskip("onnxscript", reason="needs the packages torch and onnxscript")
    torch = pytest.importorskip("torch", reason="needs the packages torch and onnxscript")
    torch.manual_seed(seed)
    return torch


@pytest.fixture
def keras(seed):
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="needs the packages keras and torch")
    keras.utils.set_random_seed(seed % (1 << 31))
    return keras


def convolutional(torch):
    nn = torch.nn
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Dropout(0.25), nn.Linear(64, 4))
    for number in (0, 3):  # equal biases: the exporter may merge them
        nn.init.zeros_(net[number].bias)
    return net


def test_torch(torch):
    torch.manual_seed(FIXED)
    net, (x, y) = convolutional(torch), samples(np.random.default_rng(FIXED), 1, 8, 8)
    net[0].eval()
    before = {name: one.clone() for name, one in net.state_dict().items()}
    model = tpu.from_torch(net, torch.zeros(1, 1, 8, 8))
    assert all((one == before[name]).all() for name, one in net.state_dict().items())
    assert net.training and not net[0].training and model.network.name == "Sequential"
    done = model.fit(x, y, epochs=5, learning_rate=0.01, check_steps=2, on="model", core=CORE)
    assert done.core["mismatched_bits"] == 0
    assert all((one != before[name]).any() for name, one in net.state_dict().items())
    with torch.no_grad():
        found = net.eval()(torch.tensor(x)).numpy()
    np.testing.assert_allclose(model.predict(x, "onnx"), found, atol=1e-4)
    assert abs((found.argmax(axis=1) == y).mean() - model.evaluate(x, y)["accuracy"]) <= 0.01
    assert model.evaluate(x, y)["accuracy"] > 0.8


def test_torch_with_combined_weights_is_refused(torch, rng):
    nn = torch.nn

    class Normalized(nn.BatchNorm1d):
        """A normalization with a forward function of its own."""

        def forward(self, x):
            return super().forward(x)

    net = nn.Sequential(nn.Linear(8, 8), Normalized(8), nn.ReLU(), nn.Linear(8, 4))
    with pytest.warns(UserWarning, match=r"trained weights cannot be stored.*; call module.eval\(\) before"):
        tpu.from_torch(net, np.zeros((1, 8), np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = tpu.from_torch(net.eval(), np.zeros((1, 8), np.float32))
    x, y = samples(rng, 8)
    assert model.predict(x).shape == (256, 4)
    with pytest.raises(tpu.ModelError, match="trained weights cannot be stored"):
        model.fit(x, y)


def test_torch_with_batch_normalization(torch, rng):
    """A residual block with normalizations, without biases in its convolutions: the layers stay, and get the trained weights."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4, momentum=0.8), nn.ReLU(), nn.MaxPool2d(2)
            )
            self.more = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.BatchNorm2d(4, affine=False))
            self.last, self.head = nn.BatchNorm2d(4), nn.Linear(4, 4)

        def forward(self, x):
            x = self.layers(x)
            return self.head(torch.relu(self.last(x + self.more(x))).mean((2, 3)))

    net, (x, y) = Block(), samples(rng, 1, 8, 8)
    nn.init.zeros_(net.layers[1].weight[:1])
    names = [*net.state_dict()]
    model = tpu.from_torch(net, x[:1])
    done = model.fit(x, y, check_steps=2, on="model", core=CORE)
    assert done.core["mismatched_bits"] == 0 and [*net.state_dict()] == names and net.training
    with torch.no_grad():
        moved = 0.2 * net.layers[1].running_mean + 0.8 * net.layers[0](torch.tensor(x)).mean((0, 2, 3))
    model.fit(x, y, batch_size=len(x), steps=1)
    np.testing.assert_allclose(net.layers[1].running_mean, moved, atol=5e-3)
    with torch.no_grad():
        found = net.eval()(torch.tensor(x)).numpy()
    np.testing.assert_allclose(model.predict(x, "onnx"), found, atol=1e-3)


def test_torch_with_added_layers(torch, rng):
    """Two layers that are added have one bias on the core. The module computes the core's results with it."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(2, 6, 3, padding=1, stride=2), nn.Conv2d(6, 6, 3, padding=1)
            self.shortcut, self.last = nn.Conv2d(2, 6, 1, stride=2), nn.Linear(6, 4)

        def forward(self, x):
            x = torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))
            return self.last(x.mean((2, 3)))

    net, (x, y) = Block(), samples(rng, 2, 5, 5)
    model = tpu.from_torch(net, torch.zeros(1, 2, 5, 5))
    done = model.fit(x, y, epochs=2, learning_rate=0.01, check_steps=1, on="model", core=CORE)
    assert done.core["mismatched_bits"] == 0
    with torch.no_grad():
        np.testing.assert_allclose(model.predict(x, "onnx"), net.eval()(torch.tensor(x)).numpy(), atol=1e-4)


@pytest.mark.parametrize("is_tied", [False, True])
def test_torch_language_model(torch, rng, is_tied):
    """The module keeps the factors of attention, which PyTorch splits into two roots, its mask, and a factor that it learns."""
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.places = nn.Embedding(7, 8), nn.Parameter(torch.randn(5, 8))
            self.layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True)
            self.norm, self.last = nn.LayerNorm(8), nn.Linear(8, 7, bias=False)
            if is_tied:
                self.last.weight, self.factor = self.table.weight, 1
            else:
                self.factor = nn.Parameter(torch.tensor(0.3))
            self.register_buffer("mask", torch.triu(torch.full((5, 5), float("-inf")), 1))

        def forward(self, x):
            x = self.layer(self.table(x) + self.places, src_mask=self.mask, is_causal=True)
            return self.last(self.norm(x) * self.factor)

    net, ids = Net().eval(), rng.integers(0, 7, (32, 5))
    model = tpu.from_torch(net, torch.zeros(1, 5, dtype=torch.int64))
    for _ in range(2):
        done = model.fit(ids, np.roll(ids, -1, 1), batch_size=4, dropout=0, check_steps=1, on="model", core=CORE)
        assert done.core["mismatched_bits"] == 0
        with torch.no_grad():
            np.testing.assert_allclose(model.predict(ids, "onnx"), net(torch.tensor(ids)).numpy(), atol=1e-4)


@pytest.mark.parametrize("kind", ["float64", "bfloat16"])
def test_torch_modules_of_other_types(torch, rng, kind):
    dtype, (x, y) = getattr(torch, kind), samples(rng, 8)
    net = torch.nn.Linear(8, 4).to(dtype).eval()
    model = tpu.from_torch(net, torch.zeros(1, 8, dtype=dtype))
    with torch.no_grad():
        np.testing.assert_allclose(model.predict(x), net(torch.tensor(x, dtype=dtype)).float().numpy(), atol=0.1)
    with pytest.raises(tpu.ModelError, match=f"its weights are {kind}; convert it to float32 first"):
        model.fit(x, y)


def _shared(nn):
    shared = nn.Linear(8, 8)
    return nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(8, 4))


def _recurrent(nn, kind):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.end = getattr(nn, kind)(2, 6, batch_first=True), nn.Linear(6, 4)

        def forward(self, x):
            return self.end(self.layer(x.reshape(-1, 4, 2))[0][:, -1])

    return Net()


def _token(nn):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            import torch

            self.rows, self.norm, self.end = nn.Linear(2, 6), nn.LayerNorm(6), nn.Linear(6, 4)
            self.token, self.places = (nn.Parameter(torch.randn(1, count, 6) / 4) for count in (1, 5))
            self.shares, self.values = nn.Linear(6, 5), nn.Linear(6, 6)

        def forward(self, x):
            import torch

            x = torch.cat([self.token.expand(x.shape[0], -1, -1), self.rows(x.reshape(-1, 4, 2))], 1) + self.places
            y = self.norm(x)
            return self.end((x + self.shares(y).softmax(-1) @ self.values(y))[:, 0])

    return Net()


def _encoder(nn):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    return nn.Sequential(nn.Unflatten(1, (4, 2)), nn.Linear(2, 8), nn.Dropout(0.2), encoder, nn.Flatten(), nn.Linear(32, 4))


def _upsampled(nn):
    inner = nn.Conv2d(1, 4, 3, padding=1), nn.PReLU(), nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 4)), *inner, nn.BatchNorm2d(3), nn.PReLU(3), nn.Flatten(), nn.Linear(96, 4))


REPEATED = {
    "upsampled": _upsampled,
    "encoder with dropout": _encoder,
    "shared layer": _shared,
    "LSTM": lambda nn: _recurrent(nn, "LSTM"),
    "GRU": lambda nn: _recurrent(nn, "GRU"),
    "class token": _token,
}


@pytest.mark.parametrize("name", REPEATED)
def test_torch_with_weights_that_are_used_several_times(torch, rng, name):
    torch.manual_seed(FIXED)
    net, (x, y) = REPEATED[name](torch.nn).eval(), samples(rng, 8)
    before = {key: one.detach().clone() for key, one in net.named_parameters()}
    model = tpu.from_torch(net, torch.zeros(1, 8))
    done = model.fit(x, y, epochs=2, learning_rate=0.01, check_steps=2, core=tpu.Config(n=4), verbose=False)
    assert done.core["mismatched_bits"] == 0
    kept = [key for key, one in net.named_parameters() if torch.equal(one, before[key])]
    # The layer after a LayerNorm has its scale and shift, and a BatchNorm the bias of the layer before it.
    assert all("norm" in key or (name, key) == ("upsampled", "3.bias") for key in kept), kept
    with torch.no_grad():
        close(model.predict(x), net(torch.tensor(x)).numpy())


def test_torch_without_running_statistics(torch, rng):
    """The remedy in the message, followed, ends in training."""

    def net(**options):
        return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8, **options), torch.nn.Linear(8, 4)).eval()

    with pytest.raises(tpu.ModelError, match="its layer 1 has no running statistics.*; give it track_running_stats=True$"):
        tpu.from_torch(net(track_running_stats=False), torch.zeros(1, 8))
    tpu.from_torch(net(track_running_stats=True), torch.zeros(1, 8)).fit(*samples(rng, 8), verbose=False)


def test_torch_exporter_errors(torch, capfd):
    class Net(torch.nn.Module):
        def forward(self, x):
            raise RuntimeError("never")

    class Branch(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    for given, error, words in (
        ((Net(), torch.zeros(1, 8)), tpu.ModelError, r"Net: its forward fails on the example, .* \(2, 8\): never; give an"),
        ((Branch(), torch.zeros(1, 8)), tpu.ModelError, "Branch: PyTorch cannot export it: GuardOn.*; its code branches on val"),
        ((torch.nn.Linear(8, 4), 1.0), tpu.ArgumentError, "`example` must have samples along its first axis"),
        ((torch.nn.Linear(8, 4), "x"), tpu.ArgumentError, "`example` must be a tensor or array, .*, not 'x'"),
        ((3, torch.zeros(1, 8)), tpu.ArgumentError, "`module` must be a torch.nn.Module, not an object of int"),
    ):
        with pytest.raises(error, match=words) as caught:
            tpu.from_torch(*given)
        assert "\n" not in str(caught.value) and capfd.readouterr() == ("", "")


def test_keras(keras):
    keras.utils.set_random_seed(FIXED)
    layers = keras.layers
    net = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(4, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(4, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(8, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(4, activation="softmax"),
        ]
    )
    net.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    x, y = samples(np.random.default_rng(FIXED), 8, 8, 1)
    before = [np.array(one) for one in net.get_weights()]
    model = tpu.from_keras(net)
    assert all((one == other).all() for one, other in zip(net.get_weights(), before))
    np.testing.assert_allclose(model.predict(x, "onnx"), net.predict(x, verbose=0), atol=1e-5)
    done = model.fit(x, y, epochs=8, learning_rate=0.01, check_steps=2, on="model", core=CORE)
    assert done.core["mismatched_bits"] == 0
    assert all((one != other).any() for one, other in zip(net.get_weights(), before))
    loss, accuracy = net.evaluate(x, y, verbose=0)
    assert abs(accuracy - model.evaluate(x, y)["accuracy"]) <= 0.01 and loss == pytest.approx(
        model.evaluate(x, y)["loss"], rel=0.05
    )


def test_keras_with_batch_normalization(keras, rng):
    layers = keras.layers
    start = layers.Input((8, 8, 1))
    first = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same", use_bias=False)(start)))
    more = layers.BatchNormalization(scale=False)(layers.Conv2D(4, 3, padding="same")(first))
    both = layers.ReLU()(layers.BatchNormalization(center=False)(layers.Add()([first, more])))
    hidden = layers.BatchNormalization()(layers.Dense(6)(layers.GlobalAveragePooling2D()(both)))
    net, (x, y) = keras.Model(start, layers.Dense(4)(layers.ReLU()(hidden))), samples(rng, 8, 8, 1)
    model = tpu.from_keras(net)
    done = model.fit(x, y, check_steps=2, on="model", core=CORE)
    assert done.core["mismatched_bits"] == 0
    np.testing.assert_allclose(model.predict(x, "onnx"), net.predict(x, verbose=0), atol=1e-3)


def test_as_torch(torch, rng):
    x = rng.random((3, 784), np.float32)
    model = tpu.load("d")
    np.testing.assert_array_equal(tpu.as_torch(model)(torch.tensor(x, requires_grad=True)).numpy(), model.predict(x))


@pytest.mark.slow
def test_tutorial_runs(torch, keras, tmp_path, monkeypatch):
    page, own = (site.FOLDER / "tutorials" / "keras-and-pytorch.md").read_text(), "run by tests/sim/tpu/test_frameworks.py"
    blocks = re.findall(r'^```python title="([^"]*)"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {}
    for title, code in blocks:
        if title == own:
            exec(code, names)
    assert {"run", "logs", "trained.keras", "trained.onnx"} <= {path.name for path in tmp_path.iterdir()}
    assert names["history"].core["mismatched_bits"] == 0


KERAS_OPERATORS = {
    "LSTM": lambda layers: layers.LSTM(5),
    "LSTM without biases": lambda layers: layers.LSTM(5, use_bias=False, return_sequences=True),
    "GRU": lambda layers: layers.GRU(5),
    "GRU with the reset before": lambda layers: layers.GRU(5, reset_after=False, go_backwards=True),
    "RNN": lambda layers: layers.SimpleRNN(5, activation="relu"),
    "both ways": lambda layers: layers.Bidirectional(layers.GRU(3, return_sequences=True)),
    "PReLU": lambda layers: layers.PReLU(shared_axes=[1]),
}


@pytest.mark.parametrize("name", KERAS_OPERATORS)
def test_keras_layers_as_operators(keras, rng, name):
    """Recurrent layers and PReLU of Keras are trained, with random weights, and dropout after them."""
    layers, (x, y) = keras.layers, samples(rng, 3, 4)
    layer = KERAS_OPERATORS[name](layers)
    net = keras.Sequential([layers.Input((3, 4)), layer, layers.Dropout(0.2), layers.Flatten(), layers.Dense(4)])
    for one in layer.weights:
        one.assign(rng.normal(0, 0.5, one.shape))
    before = [np.array(keras.ops.convert_to_numpy(one)) for one in layer.weights]
    model = tpu.from_keras(net)
    close(model.predict(x), net.predict(x, verbose=0))
    done = model.fit(x, y, learning_rate=0.01, check_steps=1, core=CORE, verbose=False)
    assert done.core["mismatched_bits"] == 0
    assert all((keras.ops.convert_to_numpy(one) != other).any() for one, other in zip(layer.weights, before))
    close(model.predict(x), net.predict(x, verbose=0))


def test_keras_functions_of_recurrent_layers(keras, rng):
    """A GRU with other functions is refused. The remedy in the message is followed."""
    layers, (x, y) = keras.layers, samples(rng, 3, 4)
    for function, words in (("hard_sigmoid", "give .* recurrent_activation='sigmoid'"), ("sigmoid", None)):
        net = keras.Sequential([layers.Input((3, 4)), layers.GRU(5, recurrent_activation=function), layers.Dense(4)])
        with pytest.raises(tpu.ModelError, match=words) if words else nullcontext():
            tpu.from_keras(net).fit(x, y, verbose=False)


@pytest.mark.slow
def test_keras_attention(keras, rng):
    layers, (x, y) = keras.layers, samples(rng, 5, 8)
    start = layers.Input((5, 8))
    for options in ({}, {"use_causal_mask": True}):
        hidden = layers.Add()([start, layers.MultiHeadAttention(num_heads=2, key_dim=4)(start, start, **options)])
        net = keras.Model(start, layers.Dense(4)(layers.GlobalAveragePooling1D()(hidden)))
        model = tpu.from_keras(net)
        assert np.abs(model.predict(x) - net.predict(x, verbose=0)).max() < 0.05
        assert model.fit(x, y, check_steps=1, core=CORE, verbose=False).core["mismatched_bits"] == 0
