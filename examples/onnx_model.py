"""An ONNX model: what it takes and gives, as op-tree reads it. ``python examples/onnx_model.py model.onnx``."""

import argparse

import optree
from backends import gen_backend


def main() -> None:
    """Print the inputs, parameters and outputs of a model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="an .onnx file")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=NUMBER", help="fix a named dimension")
    arguments = parser.parse_args()
    sizes = {name: int(number) for name, number in (text.split("=") for text in arguments.size)}
    model = optree.onnx.load(arguments.model, gen_backend("cpu"), sizes=sizes)
    for title, found in (("input", model.inputs), ("weight", model.parameters.values()), ("output", model.outputs)):
        for x in found:
            print(f"{title} {x.label}: {x.type}")


if __name__ == "__main__":
    main()
