"""l2d bench: the protocol, the choice of settings on held-out data, the tables, and whole benchmarks on the command line."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from l2d.bench.figures import LEVEL, alike, draw
from l2d.bench.protocol import Chosen, Entry, make_protocol
from l2d.bench.render import findings, to_markdown, to_page
from l2d.bench.rounds import Ran, choose, never_ran
from l2d.bench.scores import Comparison, compare, score
from l2d.cli import main
from l2d.errors import UserError
from l2d.report.figures import save_figure

# A method that always asks the first expert, as a user would add it.
OWN_LOSS = """
import torch

class AskFirst(torch.nn.Module):
    vouches_for = "all"

    def __init__(self, num_classes):
        super().__init__()
        self.num_classes = num_classes

    def forward(self, scores, labels, answers):
        return scores.square().mean()

    def beliefs(self, scores):
        beliefs = torch.full_like(scores, 0.1, dtype=torch.float64)
        beliefs[:, self.num_classes] = 0.9
        return beliefs
"""
TINY = ["dataset.num_train=300", "dataset.num_test=200", "trainer.epochs=1", "verbose=false"]


def ran(task: str, method: str, lr: float, seed: int, error: float | None, cost: float | None = None) -> Ran:
    metrics = {"system_error": error, "system_cost": cost}
    result = None if error is None else {"held_out": metrics}
    return Ran(Entry(task, method, {"lr": lr}, seed, []), Path("x"), result, "refused" if error is None else None)


def test_the_trial_with_the_least_held_out_cost_is_chosen():
    tried = [
        ran("a", "ce", 0.1, 0, 20.0),
        ran("a", "ce", 0.1, 1, 30.0),  # mean 25
        ran("a", "ce", 0.3, 0, 26.0),
        ran("a", "ce", 0.3, 1, 23.0),  # mean 24.5
        ran("a", "ova", 0.1, 0, 20.0),
        ran("a", "ova", 0.3, 0, None),  # failed: not chosen, whatever its other seeds say
        ran("a", "ova", 0.3, 1, 1.0),
        ran("b", "ce", 0.1, 0, 10.0, cost=12.0),  # where questions have a price, they count
        ran("b", "ce", 0.3, 0, 11.0, cost=11.5),
        ran("b", "ova", 0.1, 0, None),
        ran("b", "ova", 0.3, 0, None),
    ]
    chosen = choose(tried)
    assert chosen == {("a", "ce"): {"lr": 0.3}, ("a", "ova"): {"lr": 0.1}, ("b", "ce"): {"lr": 0.3}}
    assert [(r.entry.task, r.entry.method, r.error) for r in never_ran(tried, chosen)] == [("b", "ova", "refused")]


def test_every_method_has_the_same_trials_and_reported_seeds_are_others():
    protocol = make_protocol(Chosen("full"))
    trials = protocol.trials(["trainer.epochs=1"])
    per_pair = pd.Series([(e.task, e.method) for e in trials]).value_counts()
    assert per_pair.nunique() == 1 and len(per_pair) == len(protocol.tasks) * len(protocol.methods)
    assert set(protocol.tuning_seeds).isdisjoint(protocol.seeds)
    assert (
        len(trials),
        len(protocol.reported({pair: {"optim.lr": 1} for pair in per_pair.index}, [])),
    ) == protocol.num_runs()
    assert all(entry.overrides[-1] == "trainer.epochs=1" for entry in trials)
    assert not any("test" in word for entry in trials for word in entry.overrides)


def test_a_real_task_takes_the_path_of_its_data():
    paths = {"cifar10h": "a b/c.npz", "annotators": "images/answers.csv"}
    tasks = make_protocol(Chosen("quick", tasks=["shift"], paths=paths)).tasks
    here = Path.cwd()
    assert tasks == {
        "shift": ["task=shift"],
        "cifar10h": ["task=cifar10h", f"dataset.path='{here}/a b/c.npz'", "optim=sgd_cosine"],
        "annotators": [
            "task=annotators", f"dataset.root='{here}/images'", "dataset.manifest='answers.csv'", "optim=sgd_cosine",
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (Chosen("quick", tasks=["specialist"]), "--tasks specialist"),
        (Chosen("quick", methods=["piccce"]), "--methods piccce"),
        (Chosen("quick", tasks=["cifar10h"]), "--data cifar10h=PATH"),
        (Chosen("quick", paths={"duplicates": "."}), "--data duplicates"),
        (Chosen("quick", added=[Path("nothing.yaml")]), "--add nothing.yaml"),
    ],
)
def test_names_that_do_not_exist_are_refused(chosen, said):
    with pytest.raises(UserError) as error:
        make_protocol(chosen)
    assert said in str(error.value)


def runs(excess: dict[str, dict[str, list[float]]], error: dict[tuple[str, str], str] | None = None) -> pd.DataFrame:
    """The rows of a benchmark from task -> method -> regret of each seed."""
    rows = []
    for task, methods in excess.items():
        for method, values in methods.items():
            why = (error or {}).get((task, method))
            for seed, value in enumerate(values):
                rows.append(
                    {
                        "task": task, "method": method, "seed": seed, "regret_total": None if why else value,
                        "regret_classifier": 0.0, "regret_decision": 0.0, "regret_expert": 0.0, "system_error": value + 10,
                        "system_cost": None, "coverage": 50.0, "classifier_accuracy": 60.0, "best_achievable": 10.0,
                        "seconds": 1.0, "error": why,
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


def test_scores_of_a_small_benchmark_worked_by_hand():
    scores = score(
        runs(
            {
                "one": {"ce": [4.0, 6.0], "ova": [1.0, 3.0], "asm": [9.0, 11.0]},
                "two": {"ce": [2.0, 2.0], "ova": [4.0, 4.0], "asm": [2.0, 2.0]},
            }
        ),
        "ce",
    )
    cells = scores.cells.set_index(["task", "method"])
    assert cells.loc[("one", "ova"), "excess"] == 2
    # mean 5, deviation sqrt(2), t_{0.975, 1} = 12.706: half = 12.706 * sqrt(2) / sqrt(2)
    assert cells.loc[("one", "ce"), ["low", "high"]].tolist() == pytest.approx([5 - 12.7062, 5 + 12.7062], abs=1e-3)
    assert cells["rank"].to_dict() == {
        ("one", "ce"): 2, ("one", "ova"): 1, ("one", "asm"): 3, ("two", "ce"): 1.5, ("two", "ova"): 3, ("two", "asm"): 1.5,
    }  # fmt: skip
    methods = scores.methods.set_index("method")
    assert methods["mean_rank"].to_dict() == {"ce": 1.75, "ova": 2.0, "asm": 2.25}
    assert methods["mean_normalised"].to_dict() == {"ce": 1.0, "ova": (0.4 + 2) / 2, "asm": 1.5}
    assert methods.loc["ova", ["worst_normalised", "worst_task"]].tolist() == [2.0, "two"]
    assert list(scores.methods["method"]) == ["ce", "ova", "asm"]


def test_a_method_that_a_task_refuses_shares_the_last_ranks_and_is_behind_in_the_tests():
    tables = {task: {"ce": [3.0 + t], "picce_ce": [1.0], "ova": [2.0 + t]} for t, task in enumerate("abc")}
    frame = runs(tables, {("b", "picce_ce"): "costs need beliefs"})
    scores = score(frame, "ce")
    ranks = scores.cells.set_index(["task", "method"])["rank"]
    assert (ranks["b", "picce_ce"], ranks["a", "picce_ce"]) == (3, 1)
    assert scores.comparison.tasks == 3
    # behind vanilla CE on b by more than it is ahead on a and c (ranks 3 against 1 and 2): W = 3 of 6, as likely as not
    assert scores.comparison.wilcoxon.loc["picce_ce", "ce"] == 1
    # two methods that a task refuses are alike on it: two differences are left
    both = score(runs(tables, {("b", m): "no" for m in ("picce_ce", "ova")}), "ce").comparison.wilcoxon
    assert both.loc["picce_ce", "ova"] == 0.5
    assert any(
        "costs need beliefs" in line and " b" in line for line in findings(scores, make_protocol(Chosen("quick")))
    )


def test_pairs_are_tested_by_wilcoxon_with_holms_correction():
    from scipy.stats import wilcoxon

    table = {f"t{i}": {"a": [i + 1.0], "b": [i + 2.0 + i / 100], "c": [30.0 + i * i]} for i in range(10)}
    frame = score(runs(table), "a").cells
    comparison = compare(frame)
    pairs = comparison.of_all_pairs()
    raw = wilcoxon([frame_value(frame, f"t{i}", "b") - frame_value(frame, f"t{i}", "a") for i in range(10)]).pvalue
    assert raw == pytest.approx(2 / 2**10)  # ten differences of one sign
    assert pairs.loc["a", "b"] == pairs.loc["b", "a"] == pytest.approx(3 * raw) == comparison.smallest()
    assert comparison.against("a").to_dict() == pytest.approx({"b": 2 * raw, "c": 2 * raw})
    assert comparison.friedman < 0.001
    assert math.isnan(pairs.loc["a", "a"])


def test_the_full_benchmark_has_tasks_enough_to_tell_two_methods_apart():
    protocol = make_protocol(Chosen("full"))
    methods = list(protocol.methods)
    pairs = pd.DataFrame(math.nan, index=methods, columns=methods)
    assert Comparison(len(protocol.tasks), 0.0, pairs).smallest() < LEVEL


def frame_value(cells: pd.DataFrame, task: str, method: str) -> float:
    return cells[(cells["task"] == task) & (cells["method"] == method)]["excess"].item()


def test_a_bar_joins_neighbours_of_which_no_two_differ():
    names = ["a", "b", "c", "d"]
    p = pd.DataFrame(1.0, index=names, columns=names)
    p.loc["a", "c"] = p.loc["c", "a"] = 0.01
    p.loc["a", "d"] = p.loc["d", "a"] = 0.01
    assert alike(names, p) == [(0, 1), (1, 3)]
    p.loc["b", "d"] = p.loc["d", "b"] = 0.01
    assert alike(names, p) == [(0, 1), (1, 2), (2, 3)]


def test_tables_and_figures_name_every_method_and_task(tmp_path):
    protocol = make_protocol(Chosen("quick"))
    table = {task: {m: [i + 1.0, i + 2.0] for i, m in enumerate(protocol.methods)} for task in protocol.tasks}
    scores = score(runs(table), "ce")
    text = to_markdown(scores, protocol)
    assert all(task.replace("_", "\\_") in text or task in text for task in protocol.tasks)
    assert "OvA PiCCE" in text and "**1.50 ± 6.35**" in text  # t_{0.975, 1} * std / sqrt(2) = 12.706 * 0.5
    one_task = score(runs({"a": {"ce": [1.0], "balanced_ce+two_stage": [2.0]}}), "ce")
    for some in (scores, one_task):
        figures = draw(some, [])
        assert set(figures) == {"critical_difference", "tasks"}
        for name, figure in figures.items():
            save_figure(figure, tmp_path / name)  # a warning about its layout would be an error
    assert "<b>1.50 ± 6.35</b>" in to_page(scores, protocol, {})


@pytest.mark.slow
def test_a_benchmark_from_the_command_line_is_resumed_and_takes_a_method_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("bench_losses.py").write_text(OWN_LOSS)
    Path("conf/loss").mkdir(parents=True)
    Path("conf/loss/ask_first.yaml").write_text("_target_: bench_losses.AskFirst\nname: ask_first\n")
    line = [
        "bench",
        "--tasks",
        "duplicates,unequal_costs",
        "--methods",
        "picce_ce",
        "--seeds",
        "2",
        "hydra/launcher=basic",
    ]
    main([*line, *TINY])
    record = json.loads(Path("outputs/bench/bench.json").read_text())
    assert {(r["task"], r["method"], r["seed"]) for r in record["runs"] if not r["error"]} == {
        (task, "ce", seed) for task in ("duplicates", "unequal_costs") for seed in (0, 1)
    } | {("duplicates", "picce_ce", seed) for seed in (0, 1)}
    (refused,) = [r for r in record["runs"] if r["error"]]
    assert (refused["task"], refused["method"], refused["refused"]) == ("unequal_costs", "picce_ce", True)
    assert "experts.costs" in refused["error"]
    for name in ("index.html", "benchmark.md", "tasks.csv", "methods.csv", "pairs.csv", "runs.csv", "tasks.png"):
        assert Path("report/bench", name).stat().st_size
    chosen = {r["folder"]: r for r in record["runs"] if not r["error"]}
    for folder, row in chosen.items():  # the settings in the table are those of the run
        config = Path("outputs/bench", folder, "config.yaml").read_text()
        assert f"lr: {row['optim.lr']}" in config and f"seed: {row['seed']}" in config
    capsys.readouterr()
    main([*line, *TINY, "--add", "conf/loss/ask_first.yaml"])
    said = capsys.readouterr().out
    assert said.count("\nfinished before") == 18 + 6  # trials, then reported runs
    assert "ask_first is number" in said


@pytest.mark.slow
def test_a_plan_of_a_benchmark_runs_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["bench", "--tasks", "shift", "--methods", "ce", "plan=true"])
    said = capsys.readouterr().out
    assert "6 cells: 6 to run" in said and "2 further runs" in said
    assert not Path("outputs").exists() and not Path("report").exists()


@pytest.mark.parametrize("words", [["fulll"], ["quick", "full"], ["--seeds", "0"], ["--data", "cifar10h=nowhere"]])
def test_a_wrong_command_line_is_a_sentence(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *words])
    assert stopped.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) <= 2
