"""A trained system as a file that needs no l2d: ONNX, or a program of torch.export; checked before it is there."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch.export import Dim, ExportedProgram

import l2d
from l2d.atomic import atomic_write
from l2d.config import plain
from l2d.errors import UserError
from l2d.evaluation.rules import method_of
from l2d.inference.decide import Decider
from l2d.inference.served import ServedSystem, refuse_rule
from l2d.inference.system import TrainedSystem
from l2d.inference.verify import Agreement, Exported, open_onnx, open_pt2, random_inputs, real_inputs, verify

INPUT, OUTPUTS = "inputs", ("scores", "beliefs", "decision")
FACTS = "l2d.json"  # of a .pt2, what the metadata are of an .onnx
MOST_BYTES = 2**31 - 2**24  # of weights: protobuf, which ONNX is written in, ends at 2 GB


class Choices(NamedTuple):
    """What a user may choose about the file."""

    opset: int  # of an ONNX file
    batch: int | None  # inputs at a time; None: any number


class Format(NamedTuple):
    """How a captured system is written, and how the file is run to check it."""

    pack: Callable[[ExportedProgram, dict[str, Any], Choices], bytes]
    open: Callable[[Path], Exported]


def export_system(
    trained: TrainedSystem, decider: Decider, out: Path, choices: Choices, check: list[str]
) -> dict[str, Agreement]:
    """Write the system to a file that ends in .onnx or .pt2, which is there only when it says what the system says. Returns how
    close they are on `random` inputs and, where `check` names some or the run's data are generated, on `real` ones."""
    refuse_rule(trained, decider)
    examples = {"random": [random_inputs(trained)], "real": list(real_inputs(trained, check))}
    kind = FORMATS[out.suffix.lower()]
    content = kind.pack(captured(trained, decider, choices.batch), facts_of(trained, decider, choices), choices)
    checked: dict[str, Agreement] = {}

    def write_and_check(file: BinaryIO) -> None:
        file.write(content)
        file.flush()
        try:
            exported = kind.open(Path(file.name))
        except Exception as error:
            raise UserError(f"{out.name} cannot be run ({_first_line(error)}); nothing was written.") from error
        for name, values in examples.items():
            if values:
                checked[name] = verify(trained, decider, exported, choices.batch, values)

    atomic_write(out, write_and_check, hint="nothing was written")
    return checked


def captured(trained: TrainedSystem, decider: Decider, batch: int | None) -> ExportedProgram:
    """The graph of a system for inputs of this batch; UserError where torch cannot follow it."""
    served, cfg = ServedSystem(trained, decider).eval(), trained.cfg
    example = random_inputs(trained, batch or 2)  # an example of one input would fix the batch at 1
    try:
        with torch.no_grad(), _quiet():
            program = torch.export.export(served, (example,), dynamic_shapes=_shapes(batch), strict=False)
    except Exception as error:
        raise UserError(
            f"torch.export cannot follow {method_of(cfg)}, backbone={cfg.backbone.get('name')} and rule={cfg.rule.get('name')} "
            f"({_first_line(error)}); their code may branch on shapes, not on values."
        ) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def pack_onnx(program: ExportedProgram, facts: dict[str, Any], choices: Choices) -> bytes:
    """An ONNX file, with the facts as metadata: JSON by name."""
    import onnx

    size = sum(tensor.numel() * tensor.element_size() for tensor in program.state_dict.values())
    if size > MOST_BYTES:
        raise UserError(
            f"The weights have {size / 2**30:.1f} GB, and an ONNX file ends at 2 GB; export to a .pt2 file."
        )
    with _quiet():
        made = torch.onnx.export(
            program,
            input_names=[INPUT],
            output_names=OUTPUTS,
            opset_version=choices.opset,
            dynamic_shapes=_shapes(choices.batch),
            dynamo=True,
            verbose=False,
        )
    assert made is not None
    model = made.model_proto
    if [(one.domain, one.version) for one in model.opset_import] != [("", choices.opset)]:
        have = ", ".join(f"{one.domain or 'ONNX'} {one.version}" for one in model.opset_import)
        raise UserError(
            f"--opset {choices.opset}: this system cannot be converted to it (it needs {have}); use another."
        )
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]  # where in the code of this machine each comes from
        part.doc_string = ""
    onnx.helper.set_model_props(
        model, {name: json.dumps(value) for name, value in {**facts, "opset": choices.opset}.items()}
    )
    return bytes(model.SerializeToString(deterministic=True))


def pack_pt2(program: ExportedProgram, facts: dict[str, Any], choices: Choices) -> bytes:
    """A file of torch.export, with the facts beside it as FACTS."""
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={FACTS: json.dumps(facts)})
    return file.getvalue()


FORMATS = {".onnx": Format(pack_onnx, open_onnx), ".pt2": Format(pack_pt2, open_pt2)}


def facts_of(trained: TrainedSystem, decider: Decider, choices: Choices) -> dict[str, Any]:
    """What a user of the file has to know: names, how inputs are prepared, under which rule and costs it decides."""
    rule, costs = plain(trained.cfg.rule), decider.deployment.costs
    settings = {name: value for name, value in rule.items() if name != "_target_" and value is not None}
    return {
        "l2d_version": l2d.__version__,
        "run": trained.run.folder.resolve().name,
        "method": method_of(trained.cfg),
        "vouches_for": trained.vouches_for,
        "class_names": trained.class_names,
        "expert_names": trained.expert_names,
        "costs": [0.0] * len(trained.expert_names) if costs is None else costs.tolist(),
        "rule": settings,
        "preprocessing": preparation(trained),
        "batch": choices.batch or "dynamic",
    }


def preparation(trained: TrainedSystem) -> dict[str, Any]:
    """How an input is prepared: `outside`, before it is given to the file, and `inside`, by the file itself."""
    given = trained.preprocessing
    floats, images = given.stored == "floats", len(given.shape) == 3
    array: dict[str, Any] = {"dtype": "float32" if floats else "uint8", "shape": list(given.shape)}
    if images:
        array |= {"layout": "CHW"}
    if not floats:
        array |= {"channels": "RGB" if given.shape[0] == 3 else None, "range": [0, 255]}
    size, outside = list(given.shape[1:]), None
    if given.stored == "files":
        outside = {"resize": given.resize or min(size), "crop": [size], "resized_by": "torch"}
    elif given.stored == "bytes" and given.resize is not None:
        outside = {"resize": given.resize, "crop": [[given.resize, given.resize], size], "resized_by": "Pillow"}
    normalised = "(x / 255 - mean) / std" if not floats else "(x - mean) / std" if trained.sizes.statistics else None
    inside = {"normalised": normalised, "mean": list(given.mean), "std": list(given.std)} if normalised else None
    return {"input": array, "outside": outside, "inside": inside, "columns": list(given.columns)}


def _shapes(batch: int | None) -> tuple[dict[int, Any]]:
    return ({0: Dim("batch")} if batch is None else {},)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch's exporters log and print to stderr: graphs and advice."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
