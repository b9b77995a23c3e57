"""l2d.load: a finished run on new inputs says and decides what its evaluation did on the same ones, whatever they come as."""

import json
import shutil
import subprocess
import sys
from itertools import count, islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from conftest import EMBEDDED, trained_in
from PIL import Image

import l2d
from l2d.data import Preprocessing
from l2d.data.incoming import from_files
from l2d.decisions import allocate
from l2d.errors import UserError
from l2d.evaluation.again import evaluate_kept
from l2d.evaluation.kept import read_kept
from l2d.inference import TrainedSystem
from l2d.place import Place
from l2d.systems import read_weights
from l2d.systems.weights import NAME
from l2d.task import load_task
from l2d.tensors import pack, unpack
from l2d.tracking.trained import changed, find_run
from l2d.training.loop import forward


@pytest.fixture
def photos(photo_run) -> TrainedSystem:
    return l2d.load(photo_run("loss=ova"))


def photo_files(run: Path) -> list[str]:
    """The paths of the images of the test split."""
    place = run.parents[3]
    return [str(place / line) for line in (place / "test.txt").read_text().split()]


def kept_test(system: TrainedSystem):
    return read_kept(system.run.folder, system.run.result["fingerprint"])["test"]


def evaluated(system: TrainedSystem, *changes: str):
    """The outcome on the test split under other settings, from what the run kept."""
    cfg, _ = changed(system.run, list(changes), ())
    return evaluate_kept(cfg, system.run.folder, system.run.result).outcomes["test"]


def embedded_inputs(system: TrainedSystem) -> torch.Tensor:
    """The test split of the embedded data."""
    return load_task(system.cfg).test.inputs.pixels


def check_same(system: TrainedSystem, inputs) -> None:
    """Beliefs, classes and decisions are those of the evaluation."""
    outcome, table = evaluated(system), system.predict(inputs)
    torch.testing.assert_close(system.beliefs(inputs), outcome.beliefs, rtol=0, atol=1e-6)
    names, decision = [*system.class_names, *system.expert_names], outcome.decision
    action = torch.where(decision.deferred, len(system.class_names) + decision.expert, decision.predicted)
    assert table["decision"] == [names[i] for i in action.tolist()]
    assert table["asked"] == decision.deferred.tolist()
    assert table["predicted"] == [names[i] for i in decision.predicted.tolist()]
    assert table["expert"] == [system.expert_names[j] for j in decision.expert.tolist()]
    np.testing.assert_allclose(table["gain"], decision.margin, atol=1e-6)
    assert table["error"] == [None] * len(table)


# The same numbers as evaluation


@pytest.mark.parametrize(("feed", "stored"), [("resident", "bytes"), ("stream", "files")])
def test_image_files_are_decided_as_in_the_evaluation(photo_run, feed, stored):
    """Files that were kept in memory are decoded by Pillow, streamed ones by torch, and the pixels differ a little."""
    system = l2d.load(photo_run("loss=ova", f"dataset.feed={feed}"))
    assert system.preprocessing.stored == stored
    assert (system.class_names, system.expert_names) == (["cat", "dog", "owl"], ["ada", "bob", "eve"])
    check_same(system, photo_files(system.run.folder))
    pixels = next(system.intake.batches(photo_files(system.run.folder), 9)).values
    kept = load_task(system.cfg).test.inputs
    if feed == "resident":
        assert torch.equal(pixels, kept.pixels)
    assert {"bytes": 36, "files": 32}[stored] == pixels.shape[-1]


@pytest.mark.parametrize(
    "words",
    [
        ("loss=picce_ce",),
        ("loss=rs",),
        ("system=selective",),
        ("system=population", "experts.population=3"),
        ("system=population", "system.form=pooled", "system.hidden=8"),
        ("system=two_stage", "loss=ova"),
        ("system=compare_confidence",),
    ],
    ids=" ".join,
)
def test_every_system_works_from_its_stored_weights(embedded_run, words):
    system = l2d.load(embedded_run(*words))
    check_same(system, embedded_inputs(system))
    check_same(system, embedded_inputs(system).numpy().astype(np.float64))
    assert not [name for name in system.system.state_dict() if name.startswith("folds.")]  # for training alone


RULES = [
    ("experts.costs=0.2",),
    ("experts.costs=[0,0.1,0.3]",),
    ("rule.available=[expert_2,expert_0]",),
    ("rule=budget", "rule.defer_at_most=20"),
    ("rule=budget", "rule.defer_at_most=20", "rule.loss_matrix=[[0,1,1,1,1,1],[2,0,1,1,1,1],[1,1,0,1,1,1],[1,1,1,0,1,1],[1,1,1,1,0,3],[1,1,1,1,1,0]]"),
    ("rule=caps", "rule.caps=10"),
    ("rule=assign", "rule.batch=40", "rule.capacities=5"),
    ("rule=committee", "rule.k=2"),
    ("rule=conformal", "rule.alpha=0.4"),
    ("rule=combine", "rule.questions=1"),
]  # fmt: skip


@pytest.mark.parametrize("changes", RULES, ids=" ".join)
def test_every_rule_decides_as_in_the_evaluation(embedded_run, monkeypatch, changes):
    """In parts of 20 cases; a rule that looks at cases together is given all of them."""
    monkeypatch.setattr("l2d.inference.decide.AT_ONCE", 20)
    run = find_run(str(embedded_run("loss=balanced_ova")))
    cfg, _ = changed(run, list(changes), ())
    system = TrainedSystem(run, cfg, Place())
    decider = system.decider(cfg)
    parts = list(system.stream(embedded_inputs(system), decider, 20))
    decision = evaluated(system, *changes).decision
    names = [[name for name, asked in zip(system.expert_names, row, strict=True) if asked] for row in decision.asked]
    predicted = [system.class_names[k] for k in decision.predicted.tolist()]
    assert [d for part in parts for d in part["decision"]] == [
        "; ".join(asked) or answer for asked, answer in zip(names, predicted, strict=True)
    ]
    assert len(parts) == (1 if changes[0] == "rule=assign" else 5)
    assert decision.deferred.any() and not decision.deferred.all()


def test_combine_asks_the_first_question_where_nobody_has_been_heard(embedded_run):
    run = find_run(str(embedded_run("loss=balanced_ova")))
    first, all_questions = (
        TrainedSystem(run, cfg, Place()).decider(cfg)
        for cfg, _ in (changed(run, ["rule=combine", *more], ()) for more in (["rule.questions=1"], []))
    )
    system = l2d.load(run.folder)
    one, more = (list(system.stream(embedded_inputs(system), decider)) for decider in (first, all_questions))
    assert [part.columns for part in one] == [part.columns for part in more]
    assert evaluated(system, "rule=combine").decision.asked.sum(dim=1).max() > 1


def test_what_is_fitted_on_held_out_data_is_fitted_once(embedded_run, monkeypatch):
    run = find_run(str(embedded_run("loss=balanced_ova")))
    cfg, _ = changed(run, ["rule=caps", "rule.caps=10"], ())
    system, calls = TrainedSystem(run, cfg, Place()), []
    module = sys.modules["l2d.decisions.caps"]  # the package has a function of this name
    monkeypatch.setattr(module, "allocate", lambda *given: calls.append(1) or allocate(*given))
    monkeypatch.setattr("l2d.inference.decide.AT_ONCE", 20)
    assert len(list(system.stream(embedded_inputs(system), system.decider(cfg), 20))) == 5 and len(calls) == 1


# What inputs may come as


def test_files_images_arrays_and_a_folder_give_the_same(photos, tmp_path):
    files = photo_files(photos.run.folder)
    expected = photos.beliefs(files)
    images = [Image.open(file) for file in files]
    for file in files:
        shutil.copy(file, tmp_path)
    same = [images, [np.asarray(image) for image in images], tmp_path, str(tmp_path), [Path(file) for file in files]]
    for inputs in same:
        assert torch.equal(photos.beliefs(inputs), expected)
    for inputs in (files[2], images[2]):
        torch.testing.assert_close(photos.beliefs(inputs), expected[2:3], rtol=0, atol=1e-6)
    for size in (1, 4, 100):
        torch.testing.assert_close(photos.beliefs(files, batch_size=size), expected, rtol=0, atol=1e-6)
    one, whole = photos.predict(files[2]).to_pandas(), photos.predict(files).to_pandas()
    pd.testing.assert_frame_equal(one, whole[2:3].reset_index(drop=True), rtol=0, atol=1e-6)


def test_an_array_of_images_is_one_picture_each_in_either_layout(photos):
    files = photo_files(photos.run.folder)
    array = np.stack([np.asarray(Image.open(file).resize((50, 40))) for file in files])  # [N, H, W, 3]
    expected = photos.beliefs(list(array))
    for inputs in (
        array,
        torch.from_numpy(array),
        torch.from_numpy(array).permute(0, 3, 1, 2),
        array.transpose(0, 3, 1, 2),
    ):
        assert torch.equal(photos.beliefs(inputs), expected)


def test_the_workers_of_a_stream_change_nothing(photos):
    files = photo_files(photos.run.folder)
    photos.cfg.dataset.workers = 2
    assert torch.equal(photos.to("cpu").beliefs(files, batch_size=2), photos.beliefs(files, batch_size=2))


def test_files_are_listed_only_as_far_as_they_are_read():
    """An endless list: what has been read is all that is in memory."""
    preprocessing = Preprocessing((3, 8, 8), (0.5,) * 3, (0.5,) * 3, 8, stored="bytes")
    endless = ((str(i), f"nowhere/{i}.png") for i in count())
    batches = from_files(endless, preprocessing, 3, workers=0, place=Place())
    seen = list(islice(batches, 4))
    assert [name for batch in seen for name in batch.ids] == [str(i) for i in range(12)]
    assert next(endless)[0] == "12"


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "npz"])
def test_features_are_decided_as_in_the_evaluation(features_run, tmp_path, ending):
    """The columns of a table are found by name, in whatever order they are; other columns are left alone."""
    import pandas as pd

    system, path = l2d.load(features_run), tmp_path / f"new.{ending}"
    assert system.preprocessing.columns == ("x_a", "x_b", "x_c")
    whole = pd.read_csv(features_run.parents[2] / "all.csv")
    table = whole[whole.split == "test"][["x_b", "x_c", "id", "x_a"]].assign(x_0=7.0)
    if ending == "npz":
        np.savez(path, x=table[["x_a", "x_b", "x_c"]].to_numpy(), ids=table["id"].to_numpy(dtype=str))
    elif ending == "parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t" if ending == "tsv" else ",")
    check_same(system, path)
    assert system.predict(path)["id"] == kept_test(system).ids == table["id"].tolist()


def test_a_vector_with_a_number_that_is_none_has_an_error_and_the_others_a_decision(features_run):
    system = l2d.load(features_run)
    x = np.zeros((5, 3))
    x[1, 2], x[3, 0] = np.nan, 1e300
    table = system.predict(x)
    assert [error is not None for error in table["error"]] == [False, True, False, True, False]
    assert "number 3 " in table["error"][1] and "number 1 " in table["error"][3]
    assert table["decision"][1] is None and table["decision"][0] == table["decision"][2]
    beliefs = system.beliefs(x)
    assert beliefs.isnan().all(dim=1).tolist() == [False, True, False, True, False]


def test_a_system_without_finite_beliefs_says_so(features_run):
    system = l2d.load(features_run)
    for parameter in system.system.parameters():
        parameter.data.fill_(torch.nan)
    assert "finite beliefs" in system.predict(np.zeros((1, 3)))["error"][0]


# Whom to ask


def test_costs_and_availability_by_hand(embedded_run):
    """argmax of [eta, Acc - cost] over those who are there."""
    system = l2d.load(embedded_run("loss=balanced_ova"))
    x = embedded_inputs(system)
    beliefs, names = system.beliefs(x), [*system.class_names, *system.expert_names]
    there = torch.rand(len(x), 3, generator=torch.Generator().manual_seed(0)) < 0.5
    there[:2] = False
    costs = torch.tensor([0.0, 0.05, 0.3])
    utility = beliefs.clone()
    utility[:, 6:] = (utility[:, 6:] - costs).masked_fill(~there, -torch.inf)
    for given in (costs.tolist(), costs.numpy(), {"expert_2": 0.3, "expert_1": 0.05}):
        for available in (there, there.numpy(), there.int()):
            table = system.predict(x, available=available, costs=given)
            assert table["decision"] == [names[i] for i in utility.argmax(dim=1).tolist()]
    assert table["expert"][:2] == table["gain"][:2] == table["expert_accuracy"][:2] == [None, None]
    alone = system.predict(x, available=["expert_1"], costs=0.05)
    only = torch.cat([beliefs[:, :6], beliefs[:, 7:8] - 0.05], dim=1).argmax(dim=1).tolist()
    assert alone["decision"] == [[*system.class_names, "expert_1"][i] for i in only]
    assert set(alone["expert"]) == {"expert_1"} and len(set(table["decision"])) > 3


def test_a_table_is_a_frame_on_request(embedded_run):
    system = l2d.load(embedded_run("loss=balanced_ova"))
    table = system.predict(embedded_inputs(system))
    frame = table.to_pandas()
    assert list(frame.columns) == list(l2d.inference.COLUMNS) and len(frame) == len(table) == 90
    assert frame["decision"].tolist() == table["decision"] and frame["asked"].dtype == bool
    assert [row["id"] for row in table.rows()] == frame["id"].tolist() == [str(i) for i in range(90)]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"available": ["bob"]}, "bob.*expert_0"),
        ({"available": []}, r"available=\[\]"),
        ({"available": np.ones((90, 2))}, r"\[90, 2\]"),
        ({"available": np.ones((80, 3))}, "80 rows"),
        ({"available": np.full((90, 3), 2)}, r"\[90, 3\]"),
        ({"costs": {"bob": 1}}, "bob.*expert_0"),
        ({"costs": -1}, "costs=-1"),
        ({"costs": [0.1, 0.2]}, "2 entries for 3 experts"),
    ],
)
def test_who_cannot_be_meant_is_refused(embedded_run, given, named):
    system = l2d.load(embedded_run("loss=balanced_ova"))
    with pytest.raises(UserError, match=named):
        system.predict(embedded_inputs(system), **given)


def test_a_method_that_vouches_for_the_best_expert_alone_takes_one_cost_and_not_several(embedded_run):
    system = l2d.load(embedded_run("loss=picce_ce"))
    assert system.vouches_for == "top"
    x = embedded_inputs(system)
    dear = system.predict(x, costs=0.2)
    torch.testing.assert_close(torch.tensor(dear["gain"]), torch.tensor(system.predict(x)["gain"]) - 0.2)
    with pytest.raises(UserError, match=r"experts\.costs=.*loss=picce_ce"):
        system.predict(x, costs=[0.1, 0.2, 0.3])


# What is refused


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        (np.zeros((2, 40, 40, 3)), r"float64 \[2, 40, 40, 3\].*uint8"),
        (torch.zeros(2, 40, 40, dtype=torch.uint8), r"uint8 \[2, 40, 40\]"),
        (np.zeros((2, 4, 40, 40), np.uint8), r"\[2, 4, 40, 40\]"),
        (np.zeros((0, 40, 40, 3), np.uint8), r"\[0, 40, 40, 3\]"),
        ([np.zeros((40, 40, 3))], r"Input 0 .* float64"),
        (np.array(["a"]), "<U1"),
        ([], "no inputs"),
        ("nowhere", "nowhere"),
        (3, "int"),
        (["nowhere.jpg", Image.new("RGB", (9, 9))], "Input 0"),
    ],
)
def test_inputs_of_another_kind_are_refused_in_a_sentence(photos, inputs, named):
    with pytest.raises(UserError, match=named) as error:
        photos.predict(inputs)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        (np.zeros((2, 4)), r"\[2, 4\].*\[N, 3\]"),
        (np.zeros(3), r"\[3\].*\[N, 3\]"),
        (np.zeros((2, 3), dtype=bool), "bool"),
        (np.zeros((2, 3), dtype=complex), "complex"),
        ("features.npz", "array x"),
        ("more.csv", "x_b, x_c.*x_a, y"),
        ("image.png", "image.png is not a file of features"),
    ],
)
def test_vectors_of_another_length_or_type_are_refused(features_run, tmp_path, monkeypatch, inputs, named):
    monkeypatch.chdir(tmp_path)
    np.savez("features.npz", y=np.zeros(3))
    Path("more.csv").write_text("x_a,y\n1,2\n")
    Path("image.png").touch()
    with pytest.raises(UserError, match=named):
        l2d.load(features_run).predict(inputs)


def test_images_of_a_run_on_floats_are_refused_as_files(embedded_run):
    system = l2d.load(embedded_run("loss=balanced_ova"))
    with pytest.raises(UserError, match=r"\[N, 3, 8, 8\]"):
        system.predict([Image.new("RGB", (8, 8))])
    with pytest.raises(UserError, match=r"uint8 \[1, 3, 8, 8\].*floating-point"):
        system.predict(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))


def edited(run: Path, to: Path, **result) -> Path:
    """A copy of a run with another result.json."""
    shutil.copytree(run, to)
    whole = json.loads((to / "result.json").read_text())
    (to / "result.json").write_text(json.dumps({**whole, **result}))
    return to


def test_a_run_that_is_not_finished_is_refused(photo_run, tmp_path):
    for status in ("running", "interrupted", "failed"):
        with pytest.raises(UserError, match=f"not a finished run .*{status}"):
            l2d.load(edited(photo_run("loss=ova"), tmp_path / status, status=status))
    (tmp_path / "failed" / "result.json").unlink()
    with pytest.raises(UserError, match=r"not a finished run .*no result\.json"):
        l2d.load(tmp_path / "failed")
    with pytest.raises(UserError, match="nowhere"):
        l2d.load("nowhere")


def test_weights_of_another_architecture_are_refused(photo_run, tmp_path):
    run = shutil.copytree(photo_run("loss=ova"), tmp_path / "run")
    tensors, metadata = unpack(run / NAME)
    name = next(name for name in tensors if tensors[name].dim() == 2)
    (run / NAME).write_bytes(pack({**tensors, name: tensors[name][:, 1:]}, metadata))
    with pytest.raises(UserError, match="does not fit backbone=mlp with 3 classes and 3 experts: size mismatch"):
        l2d.load(run)


@pytest.mark.parametrize(
    "facts", [{"class_names": "cat"}, {"preprocessing": {"shape": ["a"]}}, {"preprocessing": None}]
)
def test_weights_that_do_not_say_what_they_mean_are_refused(photo_run, tmp_path, facts):
    run = shutil.copytree(photo_run("loss=ova"), tmp_path / "run")
    tensors, metadata = unpack(run / NAME)
    (run / NAME).write_bytes(pack(tensors, metadata | {key: json.dumps(value) for key, value in facts.items()}))
    with pytest.raises(UserError, match=next(iter(facts))):
        l2d.load(run)


def test_a_folder_from_someone_else_runs_no_code_of_its_own(photo_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(photo_run("loss=ova"), tmp_path / "run")
    Path("evil.py").write_text("from pathlib import Path\nPath('it-ran').touch()\n")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["backbone"]["_target_"] = "evil.Network"
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(UserError, match=r"backbone\._target_=evil\.Network.*trust"):
        l2d.load(run)
    assert not Path("it-ran").exists()


def test_own_code_is_run_with_trust_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own_network.py").write_text(
        "from torch import nn\n"
        "class Line(nn.Sequential):\n"
        "    def __init__(self, num_outputs, image_shape):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(192, num_outputs))\n"
    )
    own = ("backbone._target_=own_network.Line", "~backbone.hidden", "~backbone.layers", "trainer.epochs=1")
    run = trained_in(tmp_path, (*(word for word in EMBEDDED if "hidden" not in word), *own))
    with pytest.raises(UserError, match=r"own_network\.Line"):
        l2d.load(run)
    check_same(l2d.load(run, trust=True), embedded_inputs(l2d.load(run, trust=True)))


def test_a_run_that_did_not_record_how_its_inputs_were_stored_is_still_read(photo_run, tmp_path):
    """As runs of earlier days; their settings tell."""
    for feed, stored in (("resident", "bytes"), ("stream", "files")):
        run = shutil.copytree(photo_run("loss=ova", f"dataset.feed={feed}"), tmp_path / feed)
        tensors, metadata = unpack(run / NAME)
        old = json.loads(metadata["preprocessing"])
        del old["stored"], old["columns"]
        (run / NAME).write_bytes(pack(tensors, metadata | {"preprocessing": json.dumps(old)}))
        system = l2d.load(run)
        assert system.preprocessing.stored == stored
        check_same(system, photo_files(photo_run("loss=ova")))


# Its surroundings


def test_import_l2d_is_fast_and_loading_leaves_random_numbers_alone(photo_run):
    code = "import sys, l2d; assert not {'torch', 'hydra', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    state = torch.get_rng_state()
    l2d.load(photo_run("loss=ova"))
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(AttributeError, match="lod"):
        l2d.lod  # noqa: B018


def test_weights_and_inputs_are_on_the_device_of_the_system(features_run):
    """The meta device stands in for CUDA: it refuses to compute with tensors that are elsewhere."""
    system = l2d.load(features_run)
    assert system.to("cpu") is system
    system._move(Place(torch.device("meta")))
    assert {tensor.device.type for tensor in system.system.state_dict().values()} == {"meta"}
    outputs = forward(system.system, system.prepared(torch.zeros(4, 3)), system.place)
    assert outputs.device.type == "meta" and outputs.shape == (4, 4)
    with pytest.raises(UserError, match="gpu9"):
        system.to("gpu9")


def test_the_weights_of_a_run_say_how_its_inputs_were_stored(photo_run):
    assert read_weights(photo_run("loss=ova") / NAME).facts["preprocessing"]["stored"] == "bytes"
