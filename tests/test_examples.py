"""The examples do what their options say, and learn; the benchmarks run."""

import importlib
import json
import re
import runpy
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from harness.compiling import forget
from matplotlib.image import imsave

import optree
from backends import gen_backend
from backends.cpu.compiler import find_compiler
from optree import train
from optree.errors import BackendError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "examples" / "digits.py"


@pytest.fixture(scope="module", autouse=True)
def found_by_name():
    """Examples and benchmarks import their neighbours as scripts do."""
    with pytest.MonkeyPatch.context() as patch:
        for folder in ("examples", "benchmarks"):
            patch.syspath_prepend(str(ROOT / folder))
        yield


@pytest.fixture(scope="module")
def digits(found_by_name):
    return importlib.import_module("digits")


@pytest.fixture
def charlm(found_by_name, monkeypatch):
    """The language model on a text of 40 words, not Python's reference, whose size each version changes."""
    module = importlib.import_module("charlm")
    rng = np.random.RandomState(0)
    words = ["".join(map(chr, rng.randint(97, 123, size))) for size in rng.randint(1, 9, 40)]
    monkeypatch.setattr(module, "topics", {"words": " ".join(words[i] for i in rng.randint(40, size=20_000))})
    return module


@pytest.fixture(scope="module")
def convnet(found_by_name):
    return importlib.import_module("convnet")


def accuracy_of(printed):
    return float(re.search(r"test accuracy ([\d.]+)", printed)[1])


def compiled_later(printed):
    return int(re.search(r"first step, (\d+) after it", printed)[1])


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("seed", range(3))
def test_the_demo_learns_and_says_where_its_pictures_are(digits, tmp_path, capsys, monkeypatch, seed):
    monkeypatch.chdir(tmp_path)
    digits.main(["--seed", str(seed)])
    out, err = capsys.readouterr()
    assert accuracy_of(out) >= 0.97
    assert compiled_later(out) == 0
    assert "loss=" in err
    assert "accuracy=" in err
    assert "\r" not in err and len(err.splitlines()) <= 50, "a bar floods a log"
    for picture in ("output/loss.png", "output/loss_tree.svg"):
        assert picture in out
        assert (tmp_path / picture).stat().st_size > 1000
    ElementTree.parse(tmp_path / "output" / "loss_tree.svg")


@pytest.mark.matrix(least=0)
def test_the_same_seed_gives_the_same_network(digits, tmp_path, capsys):
    outputs = []
    for run in ("one", "two"):
        digits.main(["--seed", "7", "--epochs", "2", "--output", str(tmp_path / run)])
        outputs.append((accuracy_of(capsys.readouterr().out), (tmp_path / run / "loss_tree.svg").read_bytes()))
    assert outputs[0] == outputs[1]


def test_a_demo_that_is_stopped_goes_on_to_the_same_end(digits, tmp_path, capsys, monkeypatch):
    options = ["--epochs", "6", "--batch-size", "100", "--output"]
    digits.main([*options, str(tmp_path / "whole")])
    whole = accuracy_of(capsys.readouterr().out)
    save = train.save

    def stops(folder, state, step, **options):
        save(folder, state, step, **options)
        if step == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train, "save", stops)
        digits.main([*options, str(tmp_path / "stopped")])
    digits.main([*options, str(tmp_path / "stopped"), "--resume"])
    assert accuracy_of(capsys.readouterr().out) == whole
    last = [train.read(tmp_path / run / "checkpoints") for run in ("whole", "stopped")]
    assert all((last[0][name] == last[1][name]).all() for name in last[0] if not name.startswith("random"))
    with pytest.raises(SystemExit):
        digits.main(["--batch-size", "50", "--output", str(tmp_path / "stopped"), "--resume"])
    assert "size is 50, and was 100" in capsys.readouterr().err


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("size", [1000, 1437])
def test_a_last_smaller_batch_compiles_nothing(digits, tmp_path, capsys, size):
    digits.main(["--batch-size", str(size), "--epochs", "2", "--output", str(tmp_path)])
    assert compiled_later(capsys.readouterr().out) == 0


def test_each_step_lowers_the_loss_of_its_batch(digits):
    be = gen_backend("cpu", rng_seed=0)
    training, test = digits.load(be)
    assert (training.images.shape, test.images.shape) == ((1437, 64), (360, 64))
    batch = digits.Data(*(values[:32] for values in training))
    network = digits.Network(be, 100)
    network.optimizer = train.SGD(network.weights, 0.1)
    loss = network.loss(batch)
    step = optree.function([], loss, updates=network.optimizer.updates(loss))
    losses = [step().item() for _ in range(10)]
    assert losses == sorted(losses, reverse=True)


def test_a_step_of_the_demo_is_captured_on_a_gpu(digits, folder, tmp_path, gpu):
    curves = []
    for be in (gen_backend("cpu", rng_seed=0), gpu):
        training, _ = digits.load(be)
        network = digits.Network(be, 15)
        data = digits.Data(*(values[:96] for values in training))
        curves.append(digits.fit(network, data, 5, 32, tmp_path / be.name))
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-4)
    assert be.stats()["host_calls"] == 0 and be.stats()["graphs"]["replays"] > 0
    assert "captured as a CUDA graph of" in optree.debugprint(network.step, file="str")


def test_help_lists_the_options(digits, capsys):
    with pytest.raises(SystemExit) as exit:
        digits.main(["--help"])
    assert exit.value.code == 0
    printed = capsys.readouterr().out
    assert all(
        option in printed for option in ("--backend", "--epochs", "--seed", "--batch-size", "--output", "--resume")
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "argument --epochs: 0 is not 1 or more"),
        (["--epochs", "many"], "argument --epochs: 'many' is not a whole number"),
        (["--batch-size", "-3"], "argument --batch-size: -3 is not 1 or more"),
        (["--batch-size", "1438"], "argument --batch-size: 1438 is more than the 1437 images"),
        (["--seed", "-1"], "argument --seed: -1 is not from 0 to 4294967295"),
        (["--backend", "tpu"], "argument --backend: invalid choice: 'tpu'"),
        (["--output", str(SCRIPT)], str(SCRIPT)),
        (["digits"], "unrecognized arguments: digits"),
    ],
)
def test_bad_options_are_errors_that_say_which(digits, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit:
        digits.main(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["digits", "charlm"])
def test_a_missing_backend_is_an_error_that_says_what_is_missing(name, capsys):
    try:
        gen_backend("gpu")
    except BackendError as error:
        missing = str(error)
    else:
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit) as exit:
        importlib.import_module(name).main(["--backend", "gpu"])
    assert exit.value.code == 2
    assert missing in capsys.readouterr().err


@pytest.mark.matrix(least=0)
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("window", ["--steps", "400", "--width", "64"]),
        ("lstm", ["--steps", "300", "--width", "64", "--batch-size", "64"]),
        ("transformer", ["--steps", "80", "--width", "32", "--batch-size", "64"]),
    ],
)
def test_the_language_models_learn_and_write(charlm, capsys, model, options):
    given, found = ["--model", model, *options, "--context", "8", "--seed", "3"], []
    for steps in ([], ["--steps", "20"], ["--steps", "20"]):
        charlm.main([*given, *steps])
        found.append(capsys.readouterr().out)
    assert found[1] == found[2], "the same seed gives the same network"
    curve = [float(bits) for bits in re.findall(r"steps .*: ([\d.]+) bits", found[0])]
    assert len(curve) == 20 and np.mean(curve[-5:]) < np.mean(curve[:5]) - (1 if model == "window" else 0.5)
    test, baseline = map(float, re.search(r"([\d.]+) bits .* not trained on, ([\d.]+) by", found[0]).groups())
    assert test < baseline - (1 if model == "window" else 0.5)
    assert len(found[0].split("alone\n\n")[1]) == 8 + charlm.WRITTEN + 1


@pytest.mark.matrix(least=0)
def test_a_language_model_that_is_stopped_goes_on_to_the_same_end(charlm, tmp_path, capsys, monkeypatch):
    options = ["--steps", "60", "--width", "16", "--context", "4"]
    charlm.main(options)
    whole = capsys.readouterr().out
    save = train.save

    def stops(folder, state, step, **options):
        save(folder, state, step, **options)
        if step == 30:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train, "save", stops)
        charlm.main([*options, "--save", str(tmp_path)])
    capsys.readouterr()
    charlm.main([*options, "--save", str(tmp_path), "--resume"])
    rest = capsys.readouterr().out
    assert rest.splitlines()[1:] == [
        line for line in whole.splitlines()[1:] if not re.match(r"steps +([1-9]|1\d|2\d) ", line)
    ]
    with pytest.raises(SystemExit):
        charlm.main([*options, "--width", "8", "--save", str(tmp_path), "--resume"])
    assert "weights.w1 is" in capsys.readouterr().err
    charlm.main([*options, "--save", str(tmp_path), "--resume", "--steps", "75"])  # more than before, all of them
    found = [tuple(map(int, pair)) for pair in re.findall(r"steps +(\d+) to +(\d+)", capsys.readouterr().out)]
    assert found[0][0] == 61 and found[-1][1] == 75
    assert all(first == last + 1 for (_, last), (first, _) in pairwise(found))


def test_the_language_models_baseline_is_the_entropy_of_single_characters(charlm):
    text = charlm.Text("ab", np.array([0] * 30 + [1]), np.array([0, 1, 0, 0]))
    assert charlm.by_frequency(text) == pytest.approx(-(3 * np.log2(31 / 33) + np.log2(2 / 33)) / 4)


def test_the_language_models_text_is_the_reference_that_python_ships(found_by_name):
    text = importlib.import_module("charlm").load()
    assert 'The "assert" statement' in "".join(text.characters[number] for number in text.training)
    assert len(text.training) == pytest.approx(9 * len(text.test), rel=1e-3)


@pytest.mark.matrix(least=0)
@pytest.mark.parametrize("model", ["window", "lstm", "transformer"])
def test_the_language_models_train_alike_on_a_gpu(charlm, folder, model, gpu):
    curves, text = [], charlm.load()
    for be in (gen_backend("cpu", rng_seed=0), gpu):
        network = charlm.MODELS[model](be, len(text.characters), 4, 32)
        curves.append(charlm.train(network, text, steps=40 if model == "window" else 10, batch=32))
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-4)
    stats = be.stats()
    assert stats["host_calls"] == 0 and stats["kernels"]["launches"] > 0 and stats["graphs"]["replays"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--width", "0"], "argument --width: 0 is not 1 or more"),
        (["--context", str(10**9)], "argument --context: 1000000000 is as much as the test's"),
    ],
)
def test_bad_sizes_of_the_language_model_are_errors(charlm, capsys, arguments, message):
    with pytest.raises(SystemExit):
        charlm.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.matrix(least=0)
def test_the_convolutional_network_learns_and_draws_its_filters_and_errors(convnet, tmp_path, capsys):
    convnet.main(["--epochs", "4", "--output", str(tmp_path)])
    assert accuracy_of(capsys.readouterr().out) >= 0.95
    for name in ("filters.png", "errors.png"):
        assert (tmp_path / name).stat().st_size > 1000
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert rows[0] == "step,loss,accuracy" and len(rows) == 1 + 4 * (1437 // 64)


@pytest.mark.matrix(least=0)
@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
def test_a_convolutional_network_that_is_stopped_goes_on_to_the_same_end(convnet, tmp_path, capsys, monkeypatch):
    images, labels = _stripes(60)
    np.savez(tmp_path / "stripes.npz", images=images, labels=labels)
    options = ["--epochs", "4", "--batch-size", "12", "--shift", "1", "--dataset", str(tmp_path / "stripes.npz")]
    convnet.main([*options, "--output", str(tmp_path / "whole")])
    whole = capsys.readouterr().out.replace(str(tmp_path / "whole"), "")
    save = train.save

    def stops(folder, state, step, **options):
        save(folder, state, step, **options)
        if step == 2:
            raise KeyboardInterrupt

    stopped = ["--output", str(tmp_path / "stopped")]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train, "save", stops)
        convnet.main([*options, *stopped])
    convnet.main([*options, *stopped, "--resume"])
    assert capsys.readouterr().out.replace(str(tmp_path / "stopped"), "") == whole
    last = [train.read(tmp_path / run / "checkpoints") for run in ("whole", "stopped")]
    assert last[0].keys() == last[1].keys() >= {"running.conv1_mean", "weights.conv1", "optimizer.momentum.w"}
    assert all((last[0][name] == last[1][name]).all() for name in last[0] if not name.startswith("random"))
    logs = [(tmp_path / run / "log.csv").read_text() for run in ("whole", "stopped")]
    assert logs[0] == logs[1]
    with pytest.raises(SystemExit):
        convnet.main([*options, *stopped, "--batch-size", "10", "--resume"])
    assert "size is 10, and was 12" in capsys.readouterr().err


def _stripes(count):
    """Images of rows and of columns, by which two classes are easily told apart."""
    rng = np.random.RandomState(0)
    labels = np.arange(count) % 2
    images = np.stack([np.indices((12, 12))[label] // 2 % 2 for label in labels])
    return np.clip(images + rng.uniform(0, 0.3, images.shape), 0, 1), labels


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize(("path", "size"), [("stripes.npz", "12"), ("stripes", "8")])
def test_the_convolutional_network_takes_folders_and_arrays(convnet, tmp_path, capsys, path, size):
    images, labels = _stripes(60)
    np.savez(tmp_path / "stripes.npz", images=images, labels=labels)
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = tmp_path / "stripes" / ("columns" if label else "rows")
        folder.mkdir(parents=True, exist_ok=True)
        imsave(folder / f"{i}.png", image, cmap="gray")
    options = ["--epochs", "8", "--batch-size", "12", "--dataset", str(tmp_path / path), "--size", size, "--shift", "1"]
    convnet.main([*options, "--output", str(tmp_path / "output")])
    assert accuracy_of(capsys.readouterr().out) >= 0.9


def test_the_hologram_becomes_the_photograph(found_by_name, tmp_path, capsys):
    picture = tmp_path / "hologram.png"
    importlib.import_module("hologram").main(["--size", "64", "--steps", "60", "--output", str(picture)])
    assert float(re.search(r"photograph ([\d.]+)", capsys.readouterr().out)[1]) > 0.97
    assert picture.stat().st_size > 1000


def test_the_wave_keeps_its_norm_and_energy_or_says_that_it_does_not(found_by_name, tmp_path, capsys):
    schrodinger, picture = importlib.import_module("schrodinger"), tmp_path / "wave.png"
    schrodinger.main(["--size", "64", "--steps", "100", "--output", str(picture)])
    norm, energy = map(float, re.search(r"norm changed by (\S+),.* by (\S+) of it", capsys.readouterr().out).groups())
    assert norm < 1e-10 and energy < 1e-3 and picture.stat().st_size > 1000
    with pytest.raises(SystemExit, match="not conserved: take more steps"):
        schrodinger.main(["--size", "64", "--steps", "20", "--output", str(picture)])


@pytest.mark.parametrize("name", ["none.npz", "empty"])
def test_a_dataset_that_is_none_is_an_error(convnet, tmp_path, capsys, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as exit:
        convnet.main(["--dataset", str(tmp_path / name), "--output", str(tmp_path)])
    assert exit.value.code == 2
    assert name in capsys.readouterr().err


#: Libraries that a benchmark compares with, and that compile each workload for longer than it runs: with --all alone.
COMPILING = ("torch.compile", "jax", "JAX")


@pytest.mark.matrix(least=0)
@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
def test_the_benchmark_of_networks_prints_times_and_memory(capsys, monkeypatch, request):
    convolutions = importlib.import_module("convolutions")
    if not request.config.getoption("--all"):
        others = [library for library in convolutions.LIBRARIES if library.name not in COMPILING]
        monkeypatch.setattr(convolutions, "LIBRARIES", others)
    convolutions.main(["--rounds", "2", "--only", "depthwise"])
    printed = capsys.readouterr().out
    assert "training step: optree" in printed
    assert float(re.search(r"([\d.]+) of its operands", printed)[1]) < 1.3


def test_the_simulation_of_many_gpus_says_what_its_document_says(capsys):
    scaling = runpy.run_path(str(ROOT / "benchmarks" / "scaling.py"))
    scaling["main"]([])
    assert "1.3e9 weights: 333.0 ms on one GPU" in capsys.readouterr().out
    machine, (transformer, resnet) = scaling["Machine"](), scaling["MODELS"].values()
    found = scaling["table"](transformer, machine)
    assert all(abs(values[0] - 1) < 1e-12 and min(values) > 0 for values in found.values())
    assert round(found["op-tree's buckets"][-1], 2) == 0.97 and round(found["buckets of 4 MiB"][-1], 2) == 0.70
    assert round(found["the same, state sharded"][1], 2) == 1.01 and round(found["the same, state sharded"][-1], 2) == 1
    # By hand: one bucket, no latency, no jitter: what is sent, after what is computed.
    machine = machine._replace(hop_inside=0, hop_outside=0, launch=0, jitter=0)
    step = scaling["simulate"](resnet, 8, 1e12, machine)
    sent, alone = 2 * 7 / 8 * resnet.weights * 4 / machine.inside, 3 * resnet.flops / machine.flops
    assert step.operations == 1 and abs(step.seconds - alone - sent - resnet.weights * 28 / machine.memory) < 1e-12
    assert abs(step.waiting - sent) < 1e-12
    # Of a sharded state half of it, and new weights, in half the bytes, which are copied.
    step = scaling["simulate"](resnet, 8, 1e12, machine, shards=True)
    assert abs(step.seconds - alone - sent * 3 / 4 - resnet.weights * (28 / 8 + 4) / machine.memory) < 1e-12


@pytest.mark.matrix(least=0)
@pytest.mark.parametrize("name", ["overhead", "training_step"])
def test_benchmarks_find_the_results_equal_and_print_ratios(name, capsys):
    importlib.import_module(name).main(["--rounds", "2", "--calls", "1"])
    assert "ratio" in capsys.readouterr().out


@pytest.mark.matrix(least=0)
def test_the_benchmark_of_training_finds_the_losses_equal(tmp_path, monkeypatch, capsys, request):
    training = importlib.import_module("training")
    if not request.config.getoption("--all"):
        others = {name: way for name, way in training.WAYS.items() if name not in COMPILING}
        monkeypatch.setattr(training, "WAYS", others)
    monkeypatch.chdir(tmp_path)  # where the checkpoint is
    for only, said in (
        ("64 x", "op-tree, not packed"),
        ("first", "op-tree, not packed"),
        ("checkpoint", "GB/s, ratio"),
    ):
        training.main(["--rounds", "2", "--calls", "1", "--megabytes", "8", "--only", only])
        printed = capsys.readouterr().out
        assert said in printed and "failed" not in printed


@pytest.mark.matrix(least=0)
@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
def test_the_benchmark_of_kernels_finds_every_workload_right_and_writes_what_it_found(tmp_path):
    forget()  # its kernels are counted
    importlib.import_module("cpu").main(["--quick", "--peers", "--rounds", "1", "--output", str(tmp_path)])
    (written,) = tmp_path.glob("*.json")
    result = json.loads(written.read_text())
    assert {row["workload"] for row in result["rows"]} >= {"copy", "softmax of rows", "training step"}
    assert result["compilations"] == {"plans": 1, "kernels": 1}
    assert written.with_suffix(".png").exists()
