"""l2d export: the file says and decides what `l2d predict` does, for every backbone, loss, system and rule; else it is not there."""

import json
import os
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import refused
from omegaconf import OmegaConf

import l2d
from l2d.completion import candidates
from l2d.conf_files import config_dir
from l2d.config import bind
from l2d.decisions import Decision, decide, needs
from l2d.errors import UserError
from l2d.inference import TrainedSystem, write
from l2d.inference.export import FACTS, Choices, captured, export_system
from l2d.inference.served import ServedSystem
from l2d.inference.verify import compared, random_inputs
from l2d.place import Place
from l2d.systems import make_system
from l2d.systems.build import uses_a_loss
from l2d.tracking.trained import changed, find_run

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")

# A loss is in the file by what its scores mean: those of a row share their beliefs, and so the file.
LOSSES = [
    ("ce", "balanced_ce", "picce_ce", "pice_ce", "soft_picce_ce"),
    ("ova", "balanced_ova", "picce_ova", "pice_ova", "soft_picce_ova"),
    ("gce", "picce_gce"),
    ("rs", "rs_gce", "mae"),
    *((name,) for name in ("asm", "css", "decoupled", "liu", "moe")),
]
SYSTEMS = ["compare_confidence", "population", "score", "selective", "two_stage"]


def with_parts(run: Path, *words: str) -> TrainedSystem:
    """The system of a run with other parts, untrained: weights and buffers are random."""
    trained = l2d.load(run)
    trained.cfg, _ = changed(trained.run, [word for word in words if not word.startswith("+")], ())
    for word in words:
        if word.startswith("+"):
            key, value = word[1:].split("=")
            OmegaConf.update(trained.cfg, key, int(value), force_add=True)
    torch.manual_seed(0)
    trained.system = make_system(trained.cfg, trained.sizes).eval().requires_grad_(False)
    for name, buffer in trained.system.named_buffers():
        if "." not in name and buffer.is_floating_point():  # of the system itself, not of its networks
            buffer.uniform_()
    trained._move(Place())
    return trained


def exported(trained: TrainedSystem, out: Path, opset: int = 18, batch: int | None = None) -> Path:
    export_system(trained, trained.decider(trained.cfg), out, Choices(opset, batch), [])
    return out


def run_file(file: Path, inputs: np.ndarray) -> list[np.ndarray]:
    """Scores, beliefs and decision."""
    if file.suffix == ".pt2":
        return [output.numpy() for output in torch.export.load(file).module()(torch.from_numpy(inputs))]
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session.run(["scores", "beliefs", "decision"], {"inputs": inputs})


def check_same(trained: TrainedSystem, file: Path, given, inputs: np.ndarray) -> None:
    """The file, which sees `inputs`, agrees with `predict`, which is given `given`."""
    (scores, beliefs, decision), table = run_file(file, inputs), trained.predict(given)
    names = [*trained.class_names, *trained.expert_names]
    assert [names[i] for i in decision] == table["decision"]
    np.testing.assert_allclose(beliefs, trained.beliefs(given), atol=1e-4)
    assert scores.dtype == beliefs.dtype == np.float32 and decision.dtype == np.int64


# Every part


@pytest.mark.parametrize(
    "words",
    [
        ("backbone=linear",),
        ("backbone=mlp", "backbone.hidden=9"),
        ("backbone=wrn28", "backbone.depth=10", "backbone.width=1"),
        pytest.param(("backbone=resnet18",), marks=pytest.mark.slow),
        pytest.param(("backbone=mobilenet_v2",), marks=pytest.mark.slow),
        pytest.param(("backbone=timm", "backbone.name=test_vit", "+backbone.img_size=32"), marks=pytest.mark.slow),
    ],
    ids=lambda words: words[-1] if "timm" in words[0] else words[0],
)
def test_every_backbone(photo_run, tmp_path, words):
    """On images in bytes: the graph normalises them, and takes the part that the model sees."""
    trained = with_parts(photo_run("loss=ova"), *words)
    batch = 5 if words == ("backbone=mobilenet_v2",) else None  # three times as fast as a dynamic one there
    file = exported(trained, tmp_path / "model.onnx", batch=batch)
    images = np.random.default_rng(1).integers(0, 256, (5, 3, 36, 36), dtype=np.uint8)  # as the run keeps them
    check_same(trained, file, images, images[:, :, 2:34, 2:34])


def test_no_loss_and_no_system_is_left_out():
    names = {group: {path.stem for path in Path(config_dir(), group).glob("*.yaml")} for group in ("loss", "system")}
    assert sorted(name for row in LOSSES for name in row) == sorted(names["loss"] - {"none"})
    assert sorted(names["system"]) == SYSTEMS


@pytest.mark.parametrize("losses", LOSSES, ids=" ".join)
def test_every_loss(embedded_run, tmp_path, losses):
    file, graphs = tmp_path / "model.onnx", set()
    inputs = np.random.default_rng(1).normal(size=(200, 3, 8, 8), scale=3).astype(np.float32)
    for loss in losses:
        costs = ("experts.costs=0.2",) if loss in ("css", "liu") else ()
        trained = with_parts(embedded_run("loss=balanced_ova"), f"loss={loss}", *costs)
        graphs.add(captured(trained, trained.decider(trained.cfg), None).graph_module.code)
        assert len(graphs) == 1
        check_same(trained, file if file.exists() else exported(trained, file), inputs, inputs)
    assert len(set(trained.predict(inputs)["decision"])) > 2


@pytest.mark.parametrize(
    "words",
    [
        ("system=compare_confidence", "loss=none"),
        ("system=population", "loss=none", "system.form=posterior"),
        ("system=population", "loss=none", "system.form=pooled", "system.hidden=8"),
        ("system=selective", "loss=none"),
        ("system=two_stage", "loss=ova"),
        ("system=two_stage", "loss=ce"),
    ],
    ids=" ".join,
)
def test_every_system(embedded_run, tmp_path, words):
    trained = with_parts(embedded_run("loss=balanced_ova"), *words)
    assert uses_a_loss(trained.cfg) == ("loss=none" not in words)
    file = exported(trained, tmp_path / "model.onnx")
    inputs = np.random.default_rng(1).normal(size=(200, 3, 8, 8), scale=3).astype(np.float32)
    check_same(trained, file, inputs, inputs)


def own_price(beliefs, num_classes, available, order):
    """A rule of one's own: asking anybody costs 0.1."""
    return decide(beliefs, num_classes, beliefs.new_full((available.shape[1],), 0.1), available=available, order=order)


own_price = needs("top", casewise=True)(own_price)
MATRIX = [[0 if y == k else 1 + (y > k) for k in range(6)] for y in range(6)]
RULES = [
    ("experts.costs=[0,0.1,0.3]",),
    ("rule.available=[expert_2,expert_0]",),
    ("rule=budget", "rule.defer_at_most=20"),
    ("rule=caps", "rule.caps={expert_0: 5, expert_1: 0}", f"rule.loss_matrix={MATRIX}"),
    ("rule=committee", "rule.k=1"),
    ("own_price",),
]


@pytest.mark.parametrize("changes", RULES, ids=lambda changes: changes[0])
def test_rules_and_costs_are_in_the_graph(embedded_run, tmp_path, changes):
    run = find_run(str(embedded_run("loss=balanced_ova")))
    cfg, _ = changed(run, [word for word in changes if "=" in word], ())
    if changes == ("own_price",):
        cfg.rule = {"_target_": f"{__name__}.own_price", "name": "own"}
    trained = TrainedSystem(run, cfg, Place())
    file = exported(trained, tmp_path / ("model.onnx" if "rule=caps" in changes else "model.pt2"))
    inputs = np.random.default_rng(1).normal(size=(200, 3, 8, 8), scale=2).astype(np.float32)
    check_same(trained, file, inputs, inputs)
    free = l2d.load(run.folder).predict(inputs)["decision"]
    assert (trained.predict(inputs)["decision"] == free) == (changes[0] == "rule=committee")


# The command


@pytest.fixture
def cli(command, tmp_path, monkeypatch):
    """`cli(*arguments)` runs l2d export in an empty folder and returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    return partial(command, "export")


def facts_of(file: str) -> dict:
    if file.endswith(".pt2"):
        extra = {FACTS: ""}
        torch.export.load(file, extra_files=extra)
        return json.loads(extra[FACTS])
    return {one.key: json.loads(one.value) for one in onnx.load(file).metadata_props}


def test_the_file_of_the_embedded_run_and_what_it_says_about_itself(embedded_run, cli):
    run = shutil.copytree(embedded_run("loss=balanced_ova"), Path("run"))
    code, out, err = cli(run, "experts.costs=[0,0.1,0.3]")
    assert (code, err) == (0, ""), err
    first, *checks = out.splitlines()
    assert first.startswith(f"{run / 'model.onnx'}: ") and "opset 18, batch dynamic" in first
    assert ["64 random" in line or "90 real" in line for line in checks] == [True, True]
    model = onnx.load("run/model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [(one.domain, one.version) for one in model.opset_import] == [("", 18)]
    shapes = {
        one.name: [axis.dim_param or axis.dim_value for axis in one.type.tensor_type.shape.dim]
        for one in (*model.graph.input, *model.graph.output)
    }
    assert shapes == {
        "inputs": ["batch", 3, 8, 8], "scores": ["batch", 9], "beliefs": ["batch", 9], "decision": ["batch"]
    }  # fmt: skip
    facts = facts_of("run/model.onnx")
    assert facts["class_names"] == [f"class_{k}" for k in range(6)]
    assert facts["expert_names"] == ["expert_0", "expert_1", "expert_2"] and facts["costs"] == [0, 0.1, 0.3]
    assert facts["rule"] == {"name": "best"} and facts["vouches_for"] == "all"
    assert (facts["opset"], facts["batch"]) == (18, "dynamic")
    assert facts["preprocessing"]["input"] == {"dtype": "float32", "shape": [3, 8, 8], "layout": "CHW"}
    assert os.getcwd().encode() not in Path("run/model.onnx").read_bytes()
    assert str(Path(l2d.__file__).parent).encode() not in Path("run/model.onnx").read_bytes()


def test_the_same_system_gives_the_same_bytes(embedded_run, cli):
    for out in ("a.onnx", "b.onnx"):
        assert cli(embedded_run("loss=balanced_ova"), "--out", out)[0] == 0
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    assert sorted(os.listdir()) == ["a.onnx", "b.onnx"]


@pytest.mark.parametrize("opset", [19, 20, 21, 22, 23])
def test_another_opset_and_a_fixed_batch(embedded_run, cli, opset):
    run = embedded_run("loss=balanced_ova")
    assert cli(run, "--out", "model.onnx", "--opset", str(opset), "--batch", "7")[0] == 0
    model, facts = onnx.load("model.onnx"), facts_of("model.onnx")
    assert model.opset_import[0].version == facts["opset"] == opset and facts["batch"] == 7
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 7
    trained, inputs = l2d.load(run), random_inputs(l2d.load(run), 7).numpy()
    check_same(trained, Path("model.onnx"), inputs, inputs)


def test_a_program_of_torch_export(photo_run, cli):
    run = photo_run("loss=ova")
    code, out, _ = cli(run, "--out", "model.pt2", "--check", run.parents[3] / "images")
    assert code == 0 and "33 real" in out and "opset" not in out
    program, facts = torch.export.load("model.pt2").module(), facts_of("model.pt2")
    assert facts["expert_names"] == ["ada", "bob", "eve"] and "opset" not in facts
    assert str(Path(l2d.__file__).parent).encode() not in Path("model.pt2").read_bytes()
    trained, images = l2d.load(run), torch.randint(256, (9, 3, 36, 36), dtype=torch.uint8)
    scores, beliefs, decision = program(images[:, :, 2:34, 2:34])
    torch.testing.assert_close(beliefs.double(), trained.beliefs(images), rtol=0, atol=1e-4)
    names = [*trained.class_names, *trained.expert_names]
    assert [names[i] for i in decision] == trained.predict(images)["decision"] and scores.shape == (9, 6)


@pytest.mark.parametrize(
    ("feed", "outside"),
    [
        ("resident", {"resize": 36, "crop": [[36, 36], [32, 32]], "resized_by": "Pillow"}),
        ("stream", {"resize": 36, "crop": [[32, 32]], "resized_by": "torch"}),
    ],
)
def test_how_images_are_prepared_is_in_the_metadata(photo_run, cli, feed, outside):
    run = photo_run("loss=ova", f"dataset.feed={feed}")
    code, out, err = cli(run, "--out", "model.pt2")
    assert code == 0 and "real" not in out and "--check" in err
    prepared = facts_of("model.pt2")["preprocessing"]
    assert prepared["outside"] == outside
    assert prepared["input"] == {
        "dtype": "uint8", "shape": [3, 32, 32], "layout": "CHW", "channels": "RGB", "range": [0, 255]
    }  # fmt: skip
    assert prepared["inside"]["mean"] == [0.485, 0.456, 0.406] and prepared["inside"]["std"] == [0.229, 0.224, 0.225]


def test_vectors_are_standardised_inside(features_run, cli):
    """Raw features of very different scales go in; the names of their columns, in order, are in the metadata."""
    table = features_run.parents[2] / "all.csv"
    code, out, err = cli(features_run, "--out", "model.onnx", "--check", table)
    assert (code, err) == (0, "") and "120 real" in out
    prepared = facts_of("model.onnx")["preprocessing"]
    assert prepared["input"] == {"dtype": "float32", "shape": [3]} and prepared["columns"] == ["x_a", "x_b", "x_c"]
    assert prepared["inside"]["normalised"] == "(x - mean) / std" and prepared["inside"]["std"][1] > 10
    inputs = (np.random.default_rng(0).normal(size=(40, 3)) * [1, 100, 1e-3]).astype(np.float32)
    check_same(l2d.load(features_run), Path("model.onnx"), inputs, inputs)


# What the check finds


@pytest.mark.parametrize(
    ("out", "wrong", "named"),
    [
        ("model.pt2", lambda s, b, d: (s + 2e-4, b, d), r"scores.*0\.0002"),
        ("model.pt2", lambda s, b, d: (s, b - 2e-4, d), r"beliefs.*0\.0002"),
        ("model.onnx", lambda s, b, d: (s, b, (d + 1) % 9), "decision"),
        ("model.pt2", lambda s, b, d: (s * torch.nan, b, d), "scores.*nan"),
    ],
)
def test_a_file_that_says_something_else_is_not_there(embedded_run, cli, monkeypatch, out, wrong, named):
    before = ServedSystem.forward
    monkeypatch.setattr(ServedSystem, "forward", lambda self, inputs: wrong(*before(self, inputs)))
    Path(out).write_text("what was there")
    err = refused(cli(embedded_run("loss=balanced_ova"), "--out", out))
    assert re.search(named, err) and "nothing was written" in err
    assert os.listdir() == [out] and Path(out).read_text() == "what was there"


def test_decisions_may_differ_only_where_two_actions_are_worth_the_same(embedded_run):
    """Both actions are within twice the difference of the beliefs, or within a millionth."""
    trained = l2d.load(embedded_run("loss=balanced_ova"))
    decider, values = trained.decider(trained.cfg), random_inputs(trained, 1)
    scores, beliefs, decision = ServedSystem(trained, decider)(values)
    first, second = beliefs[0].topk(2).indices.tolist()
    assert decision.tolist() == [first]
    gap = float(beliefs[0, first] - beliefs[0, second])
    assert gap > 1e-3
    with pytest.raises(UserError, match="decision"):
        compared(trained, decider, values, (scores, beliefs, torch.tensor([second])))

    class Level(type(trained.system)):
        """The two actions are as good as equal."""

        def beliefs(self, outputs):
            return super().beliefs(outputs).index_fill(1, torch.tensor([second]), float(beliefs[0, first]) - self.apart)

    trained.system.__class__ = Level
    for apart, off, ties in ((5e-7, 0, 1), (5e-6, 0, None), (5e-6, 4e-6, 1), (5e-5, 4e-6, None)):
        Level.apart = apart
        theirs = (scores, trained.system.beliefs(scores) + off, torch.tensor([second]))
        if ties is None:
            with pytest.raises(UserError, match="decision"):
                compared(trained, decider, values, theirs)
        else:
            assert compared(trained, decider, values, theirs).ties == ties


# What is refused


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--out", "model.bin"], r"model\.bin must end in \.onnx, \.pt2"),
        (["--out", "nowhere/model.onnx"], "nowhere is not a folder"),
        (["--out", "folder.onnx"], r"folder\.onnx .*a folder"),
        (["--opset", "17"], "--opset 17 .*18 to 23"),
        (["--batch", "0"], "--batch 0"),
        (["--batch", "many"], "--batch many"),
        (["loss=ce"], "loss=ce cannot be changed"),
        (["trust=maybe"], "trust=maybe"),
        (["--check", "nowhere"], "nowhere does not exist"),
        (["rule=assign", "rule.capacities=3"], "rule=assign .*several inputs"),
        (["rule=committee", "rule.k=2"], "rule=committee .*several experts"),
        (["rule=conformal", "rule.alpha=0.4"], "rule=conformal .*several experts"),
        (["rule=combine"], "rule=combine .*several experts"),
        (["rule.absence=0.5"], r"rule\.absence=0\.5"),
        (["rule.available=rota.csv"], r"rule\.available=rota\.csv .*row per input"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_a_sentence(embedded_run, cli, words, named):
    Path("folder.onnx").mkdir()
    Path("rota.csv").write_text("expert_0,expert_1,expert_2\n1,1,0\n")
    before = sorted(os.listdir())
    words = words if "--out" in words else [*words, "--out", "model.onnx"]
    err = refused(cli(embedded_run("loss=balanced_ova"), *words))
    assert re.search(named, err), err
    assert sorted(os.listdir()) == before


def test_weights_that_do_not_fit_into_an_onnx_file_are_refused(embedded_run, cli, monkeypatch):
    monkeypatch.setattr("l2d.inference.export.MOST_BYTES", 1000)
    err = refused(cli(embedded_run("loss=balanced_ova"), "--out", "model.onnx"))
    assert re.search(r"GB.*\.pt2", err) and not Path("model.onnx").exists()


def test_an_unfinished_run_is_refused(embedded_run, cli):
    run = shutil.copytree(embedded_run("loss=balanced_ova"), Path("run"))
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "status": "interrupted"}))
    assert "not a finished run" in refused(cli(run)) and not (run / "model.onnx").exists()
    assert "nowhere" in refused(cli("nowhere"))


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_without_the_extra_a_sentence_says_how_to_install_it(embedded_run, cli, monkeypatch, package):
    there = write.find_spec
    monkeypatch.setattr(write, "find_spec", lambda name: None if name == package else there(name))
    err = refused(cli(embedded_run("loss=balanced_ova"), "--out", "model.onnx"))
    assert f"needs {package}," in err and "l2d[onnx]" in err


def test_a_folder_without_permission(embedded_run, cli, monkeypatch):
    Path("locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "locked")  # root may write anywhere
    assert "permission" in refused(cli(embedded_run("loss=balanced_ova"), "--out", "locked/model.onnx"))


def by_value(beliefs, num_classes, available, order) -> Decision:
    """A rule that branches on numbers: nobody is asked where all are sure."""
    decision = decide(beliefs, num_classes, available=available, order=order)
    return decision.at_price(1.0) if beliefs.max() < 0.9 else decision


by_value = needs("none", casewise=True)(by_value)


def test_a_rule_that_branches_on_numbers_is_refused(embedded_run, tmp_path, capfd):
    run = find_run(str(embedded_run("loss=balanced_ova")))
    cfg, _ = changed(run, [], ())
    cfg.rule = {"_target_": f"{__name__}.by_value", "name": "by_value"}
    assert bind(cfg, "rule", dict.fromkeys(["beliefs", "num_classes", "available", "order"]))
    trained = TrainedSystem(run, cfg, Place())
    capfd.readouterr()  # of the training
    with pytest.raises(UserError, match=r"torch\.export cannot follow .*rule=by_value") as error:
        exported(trained, tmp_path / "model.onnx")
    assert "\n" not in str(error.value) and capfd.readouterr() == ("", "") and not os.listdir(tmp_path)


# Around it


def test_the_next_lower_number_of_a_probability():
    """What the two-stage system gives to the other classes at most; ONNX has no nextafter."""
    p = torch.cat([torch.rand(1000), torch.tensor([1.0, 0.5, 0.25, 1e-300, 2**-1022])]).double()
    p = torch.cat([p, torch.linspace(-700, 40, 500, dtype=torch.float64).sigmoid()])
    assert torch.equal(p * (1 - 2**-53), p.nextafter(torch.zeros_like(p)))


def test_options_and_settings_are_completed():
    assert candidates(["l2d", "ex"]) == ["export"]
    assert candidates(["l2d", "export", "RUN", "--"]) == [
        "--batch",
        "--check",
        "--config-dir",
        "--help",
        "--opset",
        "--out",
    ]
    assert "rule=budget" in candidates(["l2d", "export", "RUN", "rule=b"])
    assert candidates(["l2d", "export", "RUN", "loss"]) == []
