"""Small models of torch, and their export as ONNX: ``PYTHONPATH=tests python -m harness.torch_models FOLDER``.

The files in tests/onnx_models are these, by torch 2.13.
"""

import sys
from pathlib import Path

import onnx
import torch
from torch import nn

#: Models by name: how to make one, the shape of its input, and the axes of open sizes.
MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)), (4, 6), {0: "batch"}),
    "resnet": (lambda: ResNet(), (2, 3, 12, 12), {0: "batch"}),
    "lstm": (lambda: Tagger(), (5, 2, 4), {1: "batch"}),
    "gpt": (lambda: Block(), (2, 5, 16), {0: "batch", 1: "tokens"}),
}


class ResNet(nn.Module):
    """Two residual blocks, with batch norms whose statistics are trained."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.first = self._block(6, 6, 1)
        self.second = self._block(6, 8, 2)
        self.across = nn.Conv2d(6, 8, 1, stride=2)
        self.head = nn.Linear(8, 4)

    def _block(self, before, after, stride):
        return nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )

    def forward(self, x):
        x = self.pool(self.stem(x))
        x = torch.relu(x + self.first(x))
        x = torch.relu(self.across(x) + self.second(x))
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Tagger(nn.Module):
    """A bidirectional LSTM, and classes of each step."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, bidirectional=True)
        self.head = nn.Linear(10, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


class Block(nn.Module):
    """A block of a GPT: causal attention of two heads, and a layer of hidden units."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(16), nn.LayerNorm(16)])
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(approximate="tanh"), nn.Linear(32, 16))

    def forward(self, x):
        batch, tokens, size = x.shape
        heads = self.qkv(self.norms[0](x)).view(batch, tokens, 3, 2, size // 2).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(batch, tokens, size))
        return x + self.mlp(self.norms[1](x))


def export(name, path, dynamo):
    """Write a model by one of torch's two exporters; the model."""
    make, shape, axes = MODELS[name]
    torch.manual_seed(0)
    model = make()
    model.train()
    for _ in range(3):  # running statistics that are not 0 and 1
        model(torch.randn(shape))
    model.eval()
    options = {"dynamic_shapes": ({axis: torch.export.Dim(text, min=2) for axis, text in axes.items()},)}
    if not dynamo:
        options = {"dynamic_axes": {"x": axes, "y": axes if name != "resnet" else {0: "batch"}}}
    arguments = {"input_names": ["x"], "output_names": ["y"], "dynamo": dynamo, **options}
    # By default, batch norms become parts of the convolutions before them.
    further = {"external_data": False} if dynamo else {"training": torch.onnx.TrainingMode.PRESERVE}
    torch.onnx.export(model, (torch.randn(shape),), str(path), **arguments, **further)
    made = onnx.load(path)
    for each in (made, made.graph, *made.graph.node, *made.graph.input, *made.graph.output):
        each.ClearField("metadata_props")
        each.doc_string = ""
    made.graph.ClearField("value_info")
    onnx.save(made, path)
    return model


if __name__ == "__main__":
    for name in MODELS:
        for kind, dynamo in (("script", False), ("dynamo", True)):
            export(name, Path(sys.argv[1]) / f"{name}_{kind}.onnx", dynamo)
