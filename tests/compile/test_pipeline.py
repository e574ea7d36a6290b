"""The pipeline: its stages in order, each one printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.compiling import needs_compiler
from harness.op_examples import examples_for

from backends import gen_backend
from optree import Input, OpTreeNode, debugprint, function, settings
from optree.compile import pipeline
from optree.compile.fusion import LONGEST, Call
from optree.compile.pipeline import OF_BACKENDS, STAGES, Options, decompose, lower, rewrite
from optree.compile.program import flatten
from optree.errors import BackendError, DefinitionError, OperandError, ShapeError
from optree.registry import OPS
from optree.run import function as functions
from optree.testing.examples import inputs_for
from optree.tree.types import TensorType

ROOT = Path(__file__).resolve().parent.parent.parent


def assigned(be: Any) -> Any:
    """``z[:] = log(softmax(dot(a * b + sin(c), w)))``, not run."""
    a, b, c = (be.ones((64, 10), name=name) for name in "abc")
    w, z = be.ones((10, 10), name="w"), be.empty((64, 10), name="z")
    return OpTreeNode.build("assign", z, be.log(be.softmax(be.dot(a * b + be.sin(c), w), axis=1)))


def printed(what: Any, stage: str) -> list[str]:
    return debugprint(what, file="str", stage=stage).splitlines()


def test_the_settings_names_are_the_stages() -> None:
    assert (*(stage.name for stage in STAGES), *OF_BACKENDS) == settings.STAGES


def test_the_program_is_printed_as_it_was_written(be: Any) -> None:
    lines = printed(assigned(be), "program")
    assert lines[0] == "%0 = z" and lines[-1].startswith("return %")
    assert [line.split(" = ")[1].split("(")[0] for line in lines[5:-1]] == [
        *("mul", "sin", "add", "dot", "softmax{axis=1}", "log", "assign")
    ]
    assert all("built at test_pipeline.py" in line for line in lines[5:-1])


def test_passes_tell_what_each_rule_changed(be: Any) -> None:
    first, *rest = printed(assigned(be), "passes")
    assert first.startswith("stabilise, log_of_softmax: log becomes log_softmax{axis=1}  (64, 10) float32, built at")
    assert sum("log_softmax{axis=1}(" in line for line in rest) == 1 and "softmax{axis=1}(%8)" not in rest
    assert printed(be.ones(3) + 1, "passes") == ["nothing to rewrite"]


def test_passes_of_a_function_are_those_of_its_mode(be: Any) -> None:
    x = be.ones(3, name="x")
    assert any("times_one" in line for line in printed(function([], x * 1), "passes"))
    assert printed(function([], x * 1, mode="reference"), "passes") == ["nothing to rewrite"]


def test_copies_are_printed(be: Any) -> None:
    x = be.ones((2, 3), name="x")
    assert not any("copy(" in line for line in printed(be.transpose(x), "program"))
    assert any("copy(" in line for line in printed(be.transpose(x), "copies"))


def test_the_order_is_printed(be: Any) -> None:
    x, y = be.ones(3, name="x"), be.zeros(3, name="y")
    lines = printed(function([], x + 1, updates={x: y, y: x * 2}), "order")
    first = next(i for i, line in enumerate(lines) if "assign(" in line)
    assert all("assign(" not in line for line in lines[:first]) and any("mul(" in line for line in lines[:first])


def test_parts_are_printed(be: Any) -> None:
    lines = printed(assigned(be), "parts")
    assert any("max{axis=1" in line for line in lines) and not any("softmax" in line for line in lines)


def test_parts_are_of_the_options_whatever_was_lowered_before() -> None:
    be = gen_backend("cpu")
    program = lower([be.argmax(be.ones((2, 3)), axis=1)])

    def parts(further: bool) -> list[str | None]:
        lowered = lower(program, Options(further=further), "parts", "parts")
        return [instruction.op.name for instruction in lowered.instructions]

    assert "argmax" not in parts(further=True)
    assert parts(further=False) == ["argmax"]
    assert "argmax" not in parts(further=True)


def test_fusion_is_printed_with_domains_and_stages(be: Any) -> None:
    lines = printed(assigned(be), "fusion")
    kernels = [line for line in lines if not line.startswith(" ")]
    assert [line.split()[0] for line in kernels] == ["kernel,", "call", "kernel,", "call"]
    assert kernels[1].startswith("call %11 = dot(%10, %4)") and " = assign(%0, " in kernels[3]
    assert kernels[0] == "kernel, outer axes (64, 10), inner axes ()"
    assert kernels[2] == "kernel, outer axes (64), inner axes (10)"
    begin = lines.index(kernels[2])
    assert [line for line in lines[begin:] if line.startswith("  stage")] == [f"  stage {i}" for i in range(3)]
    inner = [line for line in lines[begin:] if line.startswith("    inner") and "exp(" in line]
    outer = [line for line in lines[begin:] if line.startswith("    outer") and "max{" in line]
    assert len(inner) == len(outer) == 1
    assert sum(line.startswith("  writes %") for line in lines) == 2
    x = TensorType("float32", (None, 3))("x")
    assert printed(be.sum(x * 2, axis=1), "fusion")[0] == "kernel, outer axes (?), inner axes (3)"


def test_source_is_printed(be: Any) -> None:
    text = debugprint(assigned(be), file="str", stage="source")
    assert len(re.findall(r"\bvoid (?:__launch_bounds__\(\d+\) )?kernel\(", text)) == 2 and "sin(v2)" in text


@pytest.mark.parametrize("jit", [True, "auto"])
def test_plans_are_printed_with_their_memory(jit: str | bool) -> None:
    try:
        be = gen_backend("cpu", jit=jit)
    except BackendError:
        pytest.skip("no C compiler")
    lines = printed(assigned(be), "plan")
    if jit is True:
        kernel, call, last, end = lines
        assert kernel == "kernel(%1, %2, %3) writes %10 in new memory"
        assert call == "call dot(%10, %4) gives %11 in new memory, frees %10"
        assert last.startswith("kernel(") and last.endswith(" in the memory of %0") and end.startswith("return %")
    else:
        assert lines[0] == "by NumPy:" and lines[1] == "call mul(%1, %2) gives %5 in new memory"
        assert lines[3] == "call add(%5, %6) gives %7 in the memory of %5, frees %5, %6"
        assert "by kernels, where they pay:" in lines
    view = be.transpose(be.sort(be.ones((2, 3), name="x")))
    assert any("(%1) gives %2 in the memory of %1" in line for line in printed(view, "plan"))


def test_a_stage_that_is_none_is_an_error(be: Any) -> None:
    with pytest.raises(
        OperandError, match="no stage 'fuse'; there are program, passes, copies, order, parts, fusion, "
    ):
        debugprint(be.ones(3) + 1, stage="fuse")


def test_without_a_backend_its_stages_are_an_error(monkeypatch: Any) -> None:
    monkeypatch.setattr(functions, "_backends", [])
    x = TensorType("float32", (3,))("x")
    with pytest.raises(BackendError, match="'plan' is a backend's, and there is none"):
        debugprint(x + 1, stage="plan")
    assert printed(x + 1, "fusion")[0] == "kernel, outer axes (3), inner axes ()"


def test_what_is_too_long_to_fuse_is_calls(be: Any) -> None:
    x = tree = be.ones(3, name="x")
    for _ in range(LONGEST // 2 + 1):
        tree = be.tanh(tree + x)
    fused = lower(lower([tree]), first="parts", last="fusion")
    assert fused.steps == [Call(place) for place in range(len(fused.program.instructions))]
    assert len(printed(tree, "fusion")) == len(fused.steps)
    assert printed(tree, "plan")[0].startswith("call add(")


def test_rewrites_may_be_left_out(be: Any) -> None:
    tree = be.log(be.softmax(be.ones((2, 3)), axis=1))
    plain, without = lower([tree]), lower([tree], Options(rewrites=False))
    assert [i.op.name for i in plain.instructions] == ["log_softmax"]
    assert [i.op.name for i in without.instructions] == ["softmax", "log"]


def test_the_setting_prints_stages_as_something_is_compiled(be: Any, capsys: Any) -> None:
    x = be.ones(3, name="x")
    with settings.override(show="passes, fusion, plan"):
        (be.log(x + 1) * 3).asnumpyarray()
        shown = capsys.readouterr()
        assert shown.out == ""
        is_fused = be.name == "gpu" and be.kernels is not None  # on a CPU, NumPy runs the plan: the work is small
        plan = "plan:\nkernel(" if is_fused else "plan:\ncall add("
        assert shown.err.startswith("passes (while ") and plan in shown.err
        assert ("fusion" in shown.err) == is_fused
        (be.log(x + 1) * 4).asnumpyarray()  # the same plan
        assert capsys.readouterr().err == ""
        function([], be.log(x + 1))
        assert "log1p" in capsys.readouterr().err
        function([], be.log(x + 1), mode="reference")()
        assert "plan" not in capsys.readouterr().err  # op by op, by no plan of the backend's


@needs_compiler
def test_what_is_printed_is_the_run_and_no_other(capsys: Any, monkeypatch: Any) -> None:
    ran: list[str] = []
    counted = [stage._replace(run=partial(_counted, ran, stage)) for stage in pipeline.STAGES]
    monkeypatch.setattr(pipeline, "STAGES", tuple(counted))
    be: Any = gen_backend("cpu", jit=True)
    x, z = be.ones(3, name="x"), be.empty(3, name="z")
    ran.clear()
    with settings.override(show="program, order, fusion, plan, parts, copies, passes"):
        z[:] = be.log(x + 1) * 3
    err = capsys.readouterr().err
    names = [stage.name for stage in pipeline.STAGES]
    assert ran == names, "each stage once"
    assert [line.split(" (")[0] for line in err.splitlines() if re.match(r"[a-z]+ \(.*:$", line)] == names
    assert "plan:\nkernel(%1" in err and " in the memory of %0" in err
    ran.clear()
    z[:] = be.log(x + 1) * 4
    assert not ran and not capsys.readouterr().err


def _counted(ran: list[str], stage: Any, given: Any, options: Any) -> Any:
    ran.append(stage.name)
    return stage.run(given, options)


def test_the_setting_is_read_from_the_environment() -> None:
    code = "from backends import gen_backend as g; be = g('cpu', jit=True); be.exp(be.ones(9)).asnumpyarray()"
    environment = {**os.environ, "OPTREE_SHOW": "program,fusion", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (
        ran.stdout == "" and "program (first: " in ran.stderr and "kernel, outer axes (9), inner axes ()" in ran.stderr
    )


def test_ops_are_lowered_alike_for_all_sizes_unless_these_are_in_plan_keys() -> None:
    """The plan of a tree serves operands of other sizes, too."""
    options, checked = Options(further=True, windows=True), 0

    def names(program: Any, given: int | None = None) -> list[str]:
        added = [] if given is None else program.leaves[given:]
        constants = [repr(getattr(x, "value", x)) for x in added]
        return [str(instruction.op) for instruction in program.instructions] + constants

    for name in OPS:
        try:
            examples = examples_for(name)
        except DefinitionError:  # it has tests of its own
            continue
        for example in examples:
            inputs = inputs_for(example.draw())
            try:
                opened = [Input(x.type.any_size) if isinstance(x, Input) else x for x in inputs]
                own, other = (flatten([example.tree(each)]) for each in (inputs, opened))
            except ShapeError:  # of a matrix, of which the sizes must be equal
                continue
            sizes = [x.op.plan_sizes(*[getattr(y, "shape", ()) for y in x.node.inputs]) for x in own.instructions]
            if names(own) == names(other) and not any(sizes):
                lowered = [names(decompose(rewrite(x), options), len(x.leaves)) for x in (own, other)]
                assert lowered[0] == lowered[1], f"{example.op}: {example.operands}"
                checked += 1
    assert checked > 900
