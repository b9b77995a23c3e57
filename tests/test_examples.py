"""examples/: every script and the notebook run as a user would run them, and what they print and write is true."""

import json
import re
from base64 import b64decode
from pathlib import Path
from runpy import run_path

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
from children import start_script, wait
from notebook import executed
from PIL import Image

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """ran("NAME", *words) runs examples/NAME.py in a folder of its own; the folder it wrote to, and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *words: str) -> tuple[Path, str]:
        code = wait(start_script(EXAMPLES / f"{name}.py", *words))
        said = (tmp_path / "output.txt").read_text()
        assert code == 0 and "Warning" not in said, said
        return tmp_path / "outputs" / "examples" / name, said

    return run


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def test_the_readme_lists_every_example_with_its_command():
    table = (EXAMPLES / "README.md").read_text()
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    rows = dict(re.findall(r"^\| \[(.+?)\]\(\1\) \|.*\| `(.*)` \|$", table, re.MULTILINE))
    assert rows.keys() == files
    assert all(f"examples/{name}" in command for name, command in rows.items())


@pytest.mark.slow
def test_a_loss_of_ones_own_is_judged_and_benchmarked(ran):
    out, said = ran("own_loss", "a folder")
    out = out.parents[2] / "a folder"  # the one that was named
    missed, joints = map(
        int, re.search(r"shared_ce: misses the Bayes decision in (\d+) of (\d+) joints", said).groups()
    )
    assert 0 < missed <= joints == 14
    methods = pd.read_csv(out / "report" / "methods.csv").set_index("method")
    tasks = pd.read_csv(out / "report" / "tasks.csv")
    assert set(methods.index) == {"ce", "balanced_ce", "shared_ce"} and (methods["tasks"] == 2).all()
    assert len(list(out.glob("runs/synthetic/*/result.json"))) == 3 * 2 * (6 + 2)  # methods x tasks x (trials + seeds)
    assert tasks.groupby("task")["rank"].sum().eq(1 + 2 + 3).all()
    for method, rank in methods["mean_rank"].items():
        assert re.search(rf"{method} +{rank:.1f} ", said)


def test_the_loss_of_ones_own_shares_one_unit():
    shared = run_path(str(EXAMPLES / "own_loss.py"))["shared"]
    correct = torch.tensor([[True, False, True], [False, True, False], [False, False, False]])
    assert shared(torch.randn(3, 3), correct).tolist() == [[0.5, 0, 0.5], [0, 1, 0], [0, 0, 0]]


def test_whom_the_annotators_example_asks(ran):
    out, said = ran("annotators")
    labels = pd.read_csv(out / "labels.csv")
    gaps = labels[["ada", "bob", "eve"]].isna().mean()
    assert list(labels.columns[3:]) == ["ada", "bob", "eve"] and (gaps > 0.05).all()
    decisions = pd.read_csv(out / "decisions.csv")
    test = labels[labels["split"] == "test"].reset_index(drop=True)
    assert [Path(name).name for name in decisions["id"]] == [Path(name).name for name in test["path"]]
    shares = pd.crosstab(test["label"], decisions["decision"].where(decisions["asked"], "itself"), normalize="index")
    assert shares["itself"]["owl"] > 0.9  # it looks like nothing else
    assert shares["ada"][["dog", "wolf"]].min() > 0.5 > shares["ada"][["cat", "fox"]].max()  # whom each one knows
    assert shares["bob"][["cat", "fox"]].min() > 0.3 > shares["bob"][["dog", "wolf"]].max()
    assert "eve" not in shares
    assert re.search(rf"^owl +{100 * shares['itself']['owl']:.1f} ", said, re.MULTILINE)


def test_costs_budgets_and_absence_need_one_training(ran):
    out, said = ran("features_and_costs")
    only(out, "runs/features/*/result.json")
    table = pd.read_csv(out / "costs.csv", index_col=0)
    asked = table[["nurse", "doctor", "professor"]]
    full = ["at half the price", "at their price", "at twice the price"]
    assert asked.sum(axis=1)[["questions are free", *full]].is_monotonic_decreasing
    for factor, row in zip((0.5, 1, 2), full, strict=True):  # what was paid comes on top of the errors
        paid = asked.loc[row] @ (factor * np.array([0.02, 0.06, 0.2]))
        assert table["cost"][row] == pytest.approx(table["errors"][row] + paid)
    assert asked["professor"]["at their price, without the professor"] == 0 < asked["professor"]["at their price"]
    few, more = (asked.sum(axis=1)[f"at their price, about {percent}% at most"] for percent in (5, 10))
    assert 0 < few < more < asked.sum(axis=1)["at their price"]
    assert few < 5 + 3 and more < 10 + 4  # the budget is kept on the held-out cases; these are 600 others
    assert all(name in said for name in table.index)


@pytest.mark.slow
def test_from_a_run_to_decisions_an_exported_file_and_a_monitor(ran):
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    out, said = ran("decisions")
    decisions, answers = pd.read_csv(out / "decisions.csv"), pd.read_csv(out / "answers.csv")
    new = pd.read_csv(out / "new.csv")
    assert len(new) == 2000 and list(decisions["id"]) == list(answers["id"]) == list(new["id"])
    assert (decisions["asked"] == decisions["decision"].isin(["ann", "ben"])).all()
    assert (decisions["asked"] == (decisions["gain"] > 0)).all() and (
        decisions["asked"] == answers["answer"].notna()
    ).all()
    assert (out / "model.onnx").stat().st_size > 1000 and said.count("decisions equal") == 2
    watch = pd.read_csv(out / "watch.csv")
    believed = watch[watch["measure"] == "believed"].set_index("who")["value"]
    realised = watch[watch["measure"] == "realised"].set_index("who")
    assert believed["ben"] > realised["high"]["ben"]  # he got worse
    right = (answers["answer"] == answers["label"])[decisions["decision"] == "ann"].mean()
    assert realised["value"]["ann"] == pytest.approx(100 * right) and right > 0.9


@pytest.mark.slow
def test_a_rule_of_ones_own_decides_about_a_finished_run(ran):
    out, said = ran("decision_rule")
    result = json.loads((out / "sign_off.json").read_text())
    assert result["source"] == "outcome"  # neither the model nor the data were read
    before = json.loads(only(out, "runs/synthetic/*/result.json").read_text())["metrics"]
    samples = pd.read_parquet(out / "predictions.parquet")
    signed = samples["predicted"].isin(["class_0", "class_1"])
    assert samples["asked"][signed].all() and (samples["asked"] == (samples["gain"] > 0))[~signed].all()
    alone = (samples["gain"] <= 0)[signed].sum()
    assert alone and f"in {alone} of them without asking; under the rule in 0." in said
    assert result["metrics"]["coverage"] == pytest.approx(before["coverage"] - 100 * alone / len(samples))
    assert result["metrics"]["system_error"] == pytest.approx(100 * (~samples["right"]).mean())


@pytest.mark.slow
def test_results_of_a_sweep_in_pandas(ran):
    out, said = ran("results")
    results = [json.loads(path.read_text()) for path in out.glob("outputs/synthetic/*/result.json")]
    assert len(results) == 2 * 3 * 3
    errors = {(r["choices"]["loss"], len(r["experts"]), r["seed"]): r["metrics"]["system_error"] for r in results}
    table = (out / "table.tex").read_text()
    for experts in (1, 4, 16):
        cells = [[errors[loss, experts, seed] for seed in range(3)] for loss in ("balanced_ova", "ova")]
        shown = " & ".join(f"{np.mean(cell):.2f} ± {np.std(cell, ddof=1):.2f}" for cell in cells)
        assert f"{experts} & {shown} \\\\" in table
        difference = np.mean(cells[0]) - np.mean(cells[1])
        assert re.search(rf"balanced_ova +ova +{experts} +3 +{difference:.2f} ", said)
    with Image.open(out / "figure.png") as figure:
        assert figure.format == "PNG" and len(figure.convert("RGB").getcolors(maxcolors=10**6)) > 10


def test_cifar10h_tables_become_a_task(ran, tmp_path):
    rng, names = np.random.default_rng(0), ("resnet-110", "preresnet-110", "densenet-bc-L190-k40")
    labels, people = rng.integers(10, size=(2, 40))
    votes = 50 * np.eye(10)[people]  # all 50 say the same
    probabilities = {name: rng.dirichlet(np.ones(10), size=40) for name in names}
    for name in names:
        columns = [labels[:, None], votes, probabilities[name]]
        np.savetxt(tmp_path / f"{name}.csv", np.hstack(columns), delimiter=",")
    ran("cifar10h", ".", "task.npz")
    task = np.load(tmp_path / "task.npz")
    assert (task["y"] == labels).all() and list(task["names"]) == [*names[1:], "person"]
    assert np.allclose(task["x"], np.log(probabilities[names[0]]), atol=1e-5)
    experts = [*(probabilities[name].argmax(axis=1) for name in names[1:]), people]
    assert (task["answers"] == np.stack(experts, axis=1)).all()

    columns[0] = (columns[0] + 1) % 10  # one file with other labels
    np.savetxt(tmp_path / f"{names[2]}.csv", np.hstack(columns), delimiter=",")
    with pytest.raises(SystemExit, match="do not agree"):
        run_path(str(EXAMPLES / "cifar10h.py"))["make_task"](tmp_path, names[0], seed=0)


def outputs(notebook: nbformat.NotebookNode) -> list[dict]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def numbers(output: dict) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.\d+", output["data"]["text/plain"])]


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_was_saved(tmp_path, monkeypatch):
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    path = EXAMPLES / "tour.ipynb"
    saved, fresh = nbformat.read(path, as_version=4), executed(path, tmp_path)
    assert [cell.source for cell in saved.cells] == [cell.source for cell in fresh.cells]
    assert saved.metadata == fresh.metadata and path.stat().st_size < 300_000
    assert not any(cell.metadata for cell in saved.cells)  # no times
    assert not any("/" in output.data["text/plain"] for output in outputs(saved))  # no path of a machine
    pairs = list(zip(outputs(saved), outputs(fresh), strict=True))
    assert all(
        output.output_type in ("display_data", "execute_result") for pair in pairs for output in pair
    )  # no text of warnings
    figures = [new for _, new in pairs if "image/png" in new.data]
    assert len(figures) == 4 and all(len(b64decode(figure.data["image/png"])) > 5000 for figure in figures)
    table, head = ((old, new) for old, new in pairs if "text/html" in new.data)
    assert numbers(table[0]) == pytest.approx(numbers(table[1]), abs=1.5)  # percent; other machines round otherwise
    assert numbers(head[0]) == pytest.approx(numbers(head[1]), abs=0.1)
    assert len(list(tmp_path.glob("outputs/examples/tour/synthetic/*/result.json"))) == 6
