"""What did it do? A row per test sample, by l2d evaluate --samples; and the page of a run, by l2d report --samples."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from omegaconf import OmegaConf
from PIL import Image
from test_report_page import Elements, browse

from l2d.cli import main
from l2d.decisions import Deployment
from l2d.decisions.decide import Decision
from l2d.evaluation.by_class import by_class
from l2d.evaluation.calibration import estimated
from l2d.evaluation.outcome import Outcome
from l2d.identity import register_resolvers
from l2d.inference import COLUMNS
from l2d.report import load_runs
from l2d.report.again import Again
from l2d.report.beliefs import beliefs_of
from l2d.report.gallery import FIRST, _wanted, gallery, groups, pictures_of
from l2d.report.gallery import MOST as MOST_IMAGES
from l2d.report.heat import MOST, heat_maps
from l2d.report.samples import _page, write_sample_pages
from l2d.tracking.trained import Run

SAID = ["decision", "asked", "predicted", "probability", "expert", "expert_accuracy", "gain"]


@pytest.fixture
def cli(capfd):
    """`cli(*words)` runs l2d and returns (exit code, stdout, stderr)."""

    def call(*words):
        try:
            main(list(map(str, words)))
            code = 0
        except SystemExit as stop:
            code = stop.code
        return code, *capfd.readouterr()

    return call


@pytest.fixture
def run(photo_run, tmp_path, monkeypatch) -> Path:
    """A copy of a finished run on nine test photos, and its images in images/; l2d is started beside them."""
    monkeypatch.chdir(tmp_path)
    folder = photo_run("loss=ova")
    shutil.copytree(folder.parents[3] / "images", "images")
    return Path(shutil.copytree(folder, tmp_path / "outputs" / folder.name))


def refused(answer, *named: str) -> None:
    code, _, err = answer
    assert code == 2 and err.startswith("l2d: ") and "Traceback" not in err and all(name in err for name in named), (
        answer
    )


# a row per sample


def test_the_table_is_the_manifest_and_what_l2d_predict_says(run, cli):
    assert cli("evaluate", run, "--samples", "experts.costs=0.02")[0] == 0
    table = pd.read_parquet(run / "predictions.parquet")
    with open("images/labels.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "test"]
    assert table["id"].tolist() == [row["path"] for row in rows]
    assert table["label"].tolist() == [row["label"] for row in rows]
    for name in ("ada", "bob", "eve"):
        assert table[f"answer_{name}"].tolist() == [row[name] for row in rows]
    Path("list.txt").write_text("".join(f"images/{row['path']}\n" for row in rows))
    assert cli("predict", run, "@list.txt", "--out", "new.csv", "experts.costs=0.02")[0] == 0
    new = pd.read_csv("new.csv")
    assert [name for name in COLUMNS if name not in ("id", "error")] == SAID
    pd.testing.assert_frame_equal(table[SAID], new[SAID], check_dtype=False, rtol=1e-5)


def test_how_many_rows_are_written_at_a_time_changes_nothing(run, cli, monkeypatch):
    cli("evaluate", str(run), "--samples")
    whole = pd.read_parquet(run / "predictions.parquet")
    monkeypatch.setattr("l2d.inference.samples.ROWS", 1)
    cli("evaluate", str(run), "--samples")
    pd.testing.assert_frame_equal(pd.read_parquet(run / "predictions.parquet"), whole)


def test_the_metrics_follow_from_the_table(run, cli):
    assert cli("evaluate", run, "--samples", "experts.costs=0.02")[0] == 0
    table, result = pd.read_parquet(run / "predictions.parquet"), json.loads((run / "evaluation.json").read_text())
    metrics = result["metrics"]
    assert result["samples"] == "predictions.parquet" and 0 < table["asked"].sum() < len(table)
    assert metrics["system_error"] == pytest.approx(100 * (~table["right"]).mean())
    assert metrics["coverage"] == pytest.approx(100 * (~table["asked"]).mean())
    assert metrics["classifier_accuracy"] == pytest.approx(100 * (table["predicted"] == table["label"]).mean())
    given = [row[f"answer_{row['decision']}"] if row["asked"] else row["predicted"] for _, row in table.iterrows()]
    assert table["answer"].tolist() == given and (table["right"] == (table["answer"] == table["label"])).all()
    probabilities = table[["probability_cat", "probability_dog", "probability_owl"]]
    assert table["probability"].tolist() == pytest.approx(probabilities.max(axis=1).tolist())
    asked = table[table["asked"]]
    believed = [row[f"accuracy_{row['expert']}"] for _, row in asked.iterrows()]
    assert believed == pytest.approx(asked["expert_accuracy"].tolist())


def test_without_pyarrow_it_is_a_csv_and_goes_beside_out(run, cli, monkeypatch):
    assert cli("evaluate", run, "--samples")[0] == 0
    monkeypatch.setattr("l2d.evaluate.find_spec", lambda name: None)
    Path("there").mkdir()
    code, out, _ = cli("evaluate", run, "--samples", "out=there/e.json")
    assert code == 0 and "there/predictions.csv" in out
    whole = pd.read_parquet(run / "predictions.parquet")
    pd.testing.assert_frame_equal(pd.read_csv("there/predictions.csv"), whole, check_dtype=False)


def test_a_rule_that_asks_several_names_them_all(run, cli):
    assert cli("evaluate", run, "--samples", "rule=committee", "rule.k=2", "rule.weighted=false")[0] == 0
    table = pd.read_parquet(run / "predictions.parquet")
    assert table.loc[table["asked"], "decision"].str.fullmatch(r"\w+; \w+").all() and table["asked"].any()


def test_a_run_that_kept_no_outcome_is_read_from_its_model_or_refused(run, cli):
    assert cli("evaluate", run, "--samples", "out=first/e.json")[0] == 2  # there is no such folder
    Path("first").mkdir()
    assert cli("evaluate", run, "--samples", "out=first/e.json")[0] == 0
    (run / "outcome.safetensors").unlink()
    assert cli("evaluate", run, "--samples")[0] == 0
    first, again = pd.read_parquet("first/predictions.parquet"), pd.read_parquet(run / "predictions.parquet")
    pd.testing.assert_frame_equal(first, again, rtol=1e-4)
    (run / "model.safetensors").unlink()
    (run / "predictions.parquet").unlink()
    (run / "evaluation.json").unlink()
    refused(cli("evaluate", run, "--samples"), str(run), "no weights")
    assert not list(run.glob("*predictions*")) and not (run / "evaluation.json").exists()


def test_a_table_that_cannot_be_written_leaves_nothing(run, cli):
    (run / "predictions.parquet").mkdir()
    refused(cli("evaluate", run, "--samples"), "predictions.parquet cannot be written", "a folder")
    assert not (run / "evaluation.json").exists() and not list(run.glob(".*tmp"))


# the page of a run, by hand


def outcome(vouches_for="all", **changes) -> Outcome:
    """Six samples of three classes, two experts; nobody can be asked about the last one."""
    nobody = -torch.inf
    gain = torch.tensor([[-0.5, -0.6], [0.3, 0.1], [-0.1, -0.3], [0.2, 0.4], [-0.2, -0.3], [nobody, nobody]])
    expert = gain.argmax(dim=1)
    asked = torch.zeros(6, 2, dtype=torch.bool)
    asked[1, 0] = asked[3, 1] = True
    decision = Decision(torch.tensor([0, 1, 2, 2, 1, 2]), expert, gain, asked)
    whole = {
        "labels": torch.tensor([0, 0, 1, 2, 1, 2]),
        "answers": torch.tensor([[0, 0], [0, 1], [1, 2], [2, 0], [0, 0], [-1, -1]]),
        "outputs": torch.zeros(6, 5),
        "beliefs": torch.tensor([[0.2, 0.2, 0.2, 0.5, 0.9]]).repeat(6, 1),
        "decision": decision,
        "vouches_for": vouches_for,
        "deployment": Deployment(["ann", "ben"], None, ["x", "y", "z"]),
        "ids": [f"{i}.png" for i in range(6)],
    }
    return Outcome(**{**whole, **changes})


def test_counts_by_class_are_those_counted_by_hand():
    counts = by_class(outcome())
    # kept: 0 (x: x), 2 (y: z), 4 (y: y), 5 (z: z); ann is asked about 1 (x: x), ben about 3 (z: x)
    assert counts.system.tolist() == [[2, 0, 0], [0, 1, 1], [1, 0, 1]]
    assert counts.classifier.tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 2]]
    assert counts.asked.tolist() == [[1, 1, 0], [2, 0, 0], [1, 0, 1]]
    assert counts.right.tolist() == [[1, 1, 0], [1, 0, 0], [1, 0, 0]]


def test_groups_are_in_the_order_of_what_asking_is_worth():
    kept, deferred, wrongly_kept, wrongly_deferred = (group.order for group in groups(outcome()))
    assert kept == [0, 4, 2]  # not 5: there was no choice
    assert deferred == [3, 1] and wrongly_kept == [2]  # ann would have been right about it
    assert wrongly_deferred == [3]  # the system would have been right


def test_heat_maps_are_percentages_with_names():
    system, classifier, share, accuracy = heat_maps(by_class(outcome()), ["x", "y", "z"], ["ann", "ben"])
    texts = lambda table: {name: [cell.text for cell in cells] for name, cells in table.rows}  # noqa: E731
    assert texts(system) == {"x": ["100", "", ""], "y": ["", "50", "50"], "z": ["50", "", "50"]}
    assert texts(classifier)["x"] == ["50", "50", ""]
    assert share.columns == ["the system itself", "ann", "ben"]
    assert texts(share) == {
        "x": ["50", "50", ""],
        "y": ["100", "", ""],
        "z": ["50", "", "50"],
        "all classes": ["67", "17", "17"],
    }
    assert texts(accuracy) == {
        "x": ["100", "100", ""],
        "y": ["50", "", ""],
        "z": ["100", "", "0"],
        "all classes": ["75", "100", "0"],
    }
    assert share.rows[0][1][1].title == "x, ann: 1 of 2 samples"


def test_of_many_classes_those_with_the_most_errors_are_shown_and_nothing_is_lost():
    labels = torch.arange(40).repeat(3)
    decision = Decision(
        torch.where(labels % 2 == 0, labels, (labels + 1) % 40),
        labels * 0,
        torch.full((120, 1), -1.0),
        torch.zeros(120, 1).bool(),
    )
    many = outcome(
        labels=labels,
        answers=labels[:, None],
        beliefs=torch.full((120, 41), 0.1),
        decision=decision,
        outputs=torch.zeros(120, 41),
        ids=None,
    )
    system, *_, accuracy = heat_maps(by_class(many), [f"c{k}" for k in range(40)], ["ann"])
    names = [name for name, _ in system.rows]
    assert len(names) == MOST + 1 and names[-1] == "10 other classes"
    assert {f"c{k}" for k in range(1, 40, 2)} < set(names)  # the wrong ones
    assert all(sum(int(cell.text or 0) for cell in cells) == 100 for _, cells in system.rows)
    assert accuracy.rows[-1][1][0].text == "50"


def test_beliefs_are_compared_with_what_happened_where_the_method_estimates_anything():
    alone, ann, ben = beliefs_of(outcome(), ["ann", "ben"])
    assert (alone.answers, alone.realised) == (4, 75) and alone.believed == pytest.approx(20)
    assert (ann.answers, ann.realised, ben.answers, ben.realised) == (1, 100, 1, 0)
    assert ann.interval[0] < 100 == ann.interval[1]
    assert ann.ece == pytest.approx(abs(50 - 100 * 4 / 5)) and ben.ece == pytest.approx(abs(90 - 20))
    top = estimated(outcome("top"))
    assert top.tolist() == [[True, False], [True, False], [True, False], [False, True], [True, False], [False, False]]
    assert not estimated(outcome("none")).any() and beliefs_of(outcome("none"), ["ann", "ben"]) == []


def test_cards_say_what_everybody_said():
    blank = lambda positions: (Image.new("RGB", (8, 8)) for _ in positions)  # noqa: E731
    _, deferred, kept, _ = gallery(outcome(), blank, 1_000_000)
    (card,) = kept.cards
    assert (card.name, card.label, card.experts) == ("2.png", "y", "0")
    assert [(line.text, line.state, line.used) for line in card.lines] == [
        ("system, 20 %: z", "wrong", True), ("ann, 50 %: y", "right", False), ("ben, 90 %: z", "wrong", False)
    ]  # fmt: skip
    assert [line.text for line in deferred.cards[0].lines] == ["system, 20 %: z", "ben, 90 %: x", "ann, 50 %: z"]
    assert [card.experts for card in deferred.cards] == ["1", "0"]
    (card,) = gallery(outcome("none"), blank, 1_000_000)[2].cards
    assert card.lines[0].text == "system: z"  # the number would be no probability


def test_behind_the_first_ones_classes_take_turns():
    order, labels = list(range(100)), [0] * 60 + [1] * 20 + [2] * 20
    chosen = _wanted(order, labels)
    assert chosen[:FIRST] == order[:FIRST] and chosen[FIRST : FIRST + 4] == [60, 80, 61, 81] and sorted(chosen) == order


def test_the_page_stays_below_5_mb_with_images_that_hardly_compress(monkeypatch):
    count, classes, experts, rng = 3000, 120, 40, np.random.default_rng(0)
    gain = torch.from_numpy(rng.normal(size=(count, experts)))
    decision = Decision(
        torch.from_numpy(rng.integers(classes, size=count)), gain.argmax(dim=1), gain, torch.zeros(gain.shape).bool()
    )
    names = [f"{k} <b>&\"'{'&' * 100}" for k in range(classes)]
    whole = outcome(
        labels=torch.from_numpy(rng.integers(classes, size=count)),
        answers=torch.from_numpy(rng.integers(classes, size=gain.shape)),
        beliefs=torch.from_numpy(rng.random((count, classes + experts))),
        outputs=torch.zeros(count, classes + experts),
        decision=decision._replace(
            asked=torch.nn.functional.one_hot(decision.expert, experts).bool() & (torch.arange(count) % 2 == 0)[:, None]
        ),
        deployment=Deployment([f"expert & {j}" for j in range(experts)], None, names),
        ids=[f"{'folder/' * 20}{i}.jpg" for i in range(count)],
    )

    def noise(positions):
        return (Image.fromarray(rng.integers(0, 256, (112, 112, 3), dtype=np.uint8)) for _ in positions)

    monkeypatch.setattr("l2d.report.samples.pictures_of", lambda again: noise)
    monkeypatch.setattr("l2d.report.samples._reliability", lambda again, names: "")
    row = {"method": "ce", "num_experts": experts, "seed": 0, "dataset": "d", "experts": "e", "folder": "f"}
    again = type("Again", (), {"outcomes": {"test": whole}, "cfg": type("Cfg", (), {"rule": {"name": "best"}})})
    page = _page(row, again, [])
    assert 4_000_000 < len(page.encode()) < 5_000_000
    counts = [text.split()[0] for text in Elements(page).texts if re.fullmatch(r"\d+ of \d+", text)]
    assert len(counts) == 4 and all(FIRST < int(count) < MOST_IMAGES for count in counts[:2])


# the page of a run, by the command


def write_page(*changes: str) -> Path:
    """The page of the only run in outputs/, with the images in images/."""
    register_resolvers()
    (page,) = write_sample_pages(load_runs("outputs"), ["dataset.root=images", *changes], Path("report")).values()
    return page


def page_of(out: str = "report") -> Path:
    (page,) = Path(out, "samples").iterdir()
    return page


def test_the_command_writes_a_page_per_run_that_needs_nothing_else(run, cli):
    code, _, err = cli("report", "outputs", "--samples", "dataset.root=images", "experts.costs=0.02")
    assert (code, err) == (0, "")
    text = page_of().read_text()
    elements = Elements(text)
    sources = [a["data-src"] for tag, a, _ in elements.found if tag == "img"]
    assert len(sources) >= 9 and all(source.startswith("data:image/jpeg;base64,") for source in sources)
    assert not re.search(r"https?://|@import|url\((?!#)|\ssrc=", text)
    kinds = {a["title"] for tag, a, _ in elements.found if a.get("class") == "card"}
    assert kinds == {f"{i}.jpg" for i in range(24, 33)}
    index = Elements(Path("report/index.html").read_text())
    assert f"samples/{page_of().name}" in [a.get("href") for tag, a, _ in index.found if tag == "a"]
    assert cli("report", "outputs")[0] == 0  # another report does not read images, and leaves the pages alone
    assert page_of().read_text() == text and "samples/" not in Path("report/index.html").read_text()


def test_images_that_are_gone_or_others_leave_the_gallery_out_and_say_so(run, capfd):
    for change in (lambda: Image.new("RGB", (50, 50)).save("images/24.jpg"), lambda: shutil.rmtree("images")):
        change()
        text, err = write_page().read_text(), capfd.readouterr().err
        assert run.name in err and "no gallery" in err and err.count("\n") == 1
        assert "Left out:" in text and "<img" not in text and "What it believes" in text


def test_runs_that_kept_nothing_are_named_and_without_any_other_nothing_is_written(run, cli):
    shutil.copytree(run, run.with_name("nothing"))
    (run.with_name("nothing") / "outcome.safetensors").unlink()
    refused(cli("report", "outputs/nothing", "--samples"), "nothing", "kept no scores", "--samples")
    refused(cli("report", run, "--samples", "loss=ce"), "loss=ce", "dataset.root")
    assert not Path("report").exists()


def test_vectors_have_no_gallery():
    run = Run(Path("run"), None, {}, {"preprocessing": {"shape": [4]}})
    assert pictures_of(Again(run, OmegaConf.create({"dataset": {}}), {"test": outcome()})) is None


@pytest.mark.slow
def test_embedded_images_come_from_the_generator(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    tiny = ("dataset.num_train=200", "dataset.num_test=60", "trainer.epochs=1", "backbone.hidden=8", "experts.num=2")
    assert cli("train", "verbose=false", *tiny)[0] == 0
    assert cli("report", "outputs", "--samples")[0] == 0
    sources = [a["data-src"] for tag, a, _ in Elements(page_of().read_text()).found if tag == "img"]
    assert len(sources) >= 60 and all(source.startswith("data:image/png;base64,") for source in sources)


@pytest.mark.browser
@pytest.mark.slow
def test_thumbnails_are_loaded_when_they_are_near_and_filters_choose_them(run, tmp_path):
    page = write_page("experts.costs=0.02").absolute()

    def open_page(height: int, address: str = "") -> Elements:
        options = (f"--window-size=1300,{height}", "--virtual-time-budget=3000", "--dump-dom")
        dom, said = browse(page.as_uri() + address, tmp_path, *options)
        assert said == []
        return Elements(dom)

    def loaded(elements: Elements) -> list[bool]:
        return ["src" in image for image in elements.shown("img")]

    def settled(address: str = "") -> Elements:
        """A page whose images were loaded; on a busy machine the browser may be read before it drew anything."""
        for _ in range(4):
            elements = open_page(6000, address)
            if any(loaded(elements)):
                break
        return elements

    everything = settled()
    cards = everything.shown("figure", **{"class": "card"})
    assert all(loaded(everything)) and f"{len(cards)} images" in everything.texts and len(cards) >= 9
    assert not any(loaded(open_page(400)))  # the gallery is far below
    chosen = settled("#class=1&expert=0")
    wanted = [card for card in cards if card["data-class"] == "1" and "0" in card["data-experts"].split()]
    assert chosen.shown("figure", **{"class": "card"}) == wanted and 0 < len(wanted) < len(cards)
    assert sum(loaded(chosen)) == len(wanted)
