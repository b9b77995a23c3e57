"""l2d-data check: its numbers against data counted by hand, what it refuses, and the contact sheet."""

import sys
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from l2d.data import Dataset, ImageFiles, Images, Preprocessing, Split
from l2d.inspect import inputs, main
from l2d.inspect.answers import any_right, error_correlation
from l2d.inspect.sheet import _lines, spread

PREPROCESSING = Preprocessing((3, 8, 8), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
SMALL = ("experts=human", "backbone.hidden=4", "backbone.layers=1")


@pytest.fixture
def check(monkeypatch, tmp_path, capsys):
    """check("key=value", ...) runs the command in a folder of its own; exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["l2d-data", "check", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def pets(monkeypatch):
    """Four training and two test images of three classes; ann leaves one out and errs twice, bob never errs."""
    labels = {"train": np.array([0, 0, 1, 2]), "test": np.array([0, 1])}
    ann = {"train": np.array([0, 1, 1, -1], np.int8), "test": np.array([0, 0], np.int8)}
    rng = np.random.default_rng(0)
    splits = {
        s: Split(
            Images(torch.from_numpy(rng.integers(0, 256, (len(y), 3, 8, 8), dtype=np.uint8)), PREPROCESSING),
            torch.from_numpy(y),
        )
        for s, y in labels.items()
    }
    dataset = Dataset(
        name="pets",
        class_names=["cat", "dog", "[bird]"],
        **splits,
        groups={"furry": [0, 1]},
        annotators={"ann": ann, "bob": {s: y.astype(np.int8) for s, y in labels.items()}},
    )
    monkeypatch.setattr("l2d.inspect.report.load_dataset", lambda cfg: dataset)
    return dataset


def rows(text: str, first: str) -> list[list[str]]:
    """The cells after `first` of every line that begins with it."""
    return [line.removeprefix(first).split() for line in text.splitlines() if line.startswith(first + " ")]


def jpeg(size: tuple[int, int]) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    buffer = BytesIO()
    Image.fromarray(noise).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture
def on_disk(pets, tmp_path):
    """The training images as files, of which the second is cut short and the third empty."""
    whole = jpeg((20, 10))
    for name, content in {"a.jpg": whole, "b.jpg": whole[:-400], "c.jpg": b"", "d.jpg": jpeg((30, 30))}.items():
        (tmp_path / name).write_bytes(content)
    pets.train.inputs = ImageFiles(tmp_path, ["a.jpg", "b.jpg", "c.jpg", "d.jpg"], PREPROCESSING)


def test_counts_accuracies_and_missing_answers(check, pets):
    code, out, _ = check(*SMALL, "experts.num=1")
    assert code == 0
    assert "pets: 3 classes, 4 training and 2 test images" in out
    assert [rows(out, name) for name in pets.class_names] == [[["2", "1"]], [["1", "1"]], [["1", "0"]]]
    assert "furry 2" in out
    # ann answered three of four training images, two of them right; one of two test images is right
    assert rows(out, "ann") == [["66.67", "50.00", "25.00", "0.00"]] * 2  # as an annotator, and as the chosen expert
    assert rows(out, "bob") == [["100.00", "100.00", "0.00", "0.00"]]
    assert "A missing answer is left out of the training" in " ".join(out.split())
    assert "At least one expert is right on 50.00 of train and 50.00 of test." in out


def test_missing_answers_are_not_mentioned_where_there_are_none(check, pets):
    del pets.annotators["ann"]
    _, out, _ = check(*SMALL, "experts.num=1")
    assert rows(out, "bob") == [["100.00", "100.00"]] * 2
    assert "missing" not in out


def test_memory_is_stated(check, pets):
    _, out, _ = check(*SMALL, "experts.num=2")
    assert rows(out, "train images (resident)") == [["768", "B"]]  # 4 x 3 x 8 x 8 bytes
    assert rows(out, "test images (resident)") == [["384", "B"]]
    assert rows(out, "expert tables") == [["12", "B"]]  # (4 + 2) x 2 answers of a byte
    # 192 x 4 + 4 and 4 x (3 + 2) + 5 numbers of four bytes
    assert rows(out, "model (797 parameters)") == [["3.19", "kB"]]


def test_many_classes_are_summarised(check, pets):
    pets.class_names = [f"k{i}" for i in range(21)]
    pets.train.labels = torch.tensor([0, *range(21)])  # two of k0, one of every other
    pets.train.inputs = Images(torch.zeros(22, 3, 8, 8, dtype=torch.uint8), PREPROCESSING)
    pets.annotators = {}
    _, out, _ = check("experts.group=furry", "experts.num=2")
    assert rows(out, "train")[0] == ["1", "1", "2", "1", "(k1,", "k2,", "k3", "and", "17", "more),", "2", "(k0)"]
    assert not rows(out, "k5")


def test_micebone_stands_beside_the_published_accuracies(check, pets):
    pets.annotators = {"047": pets.annotators["bob"], "580": pets.annotators["bob"], "999": pets.annotators["bob"]}
    _, out, _ = check(*SMALL, "dataset._target_=l2d.data.micebone", "experts.num=1")
    assert rows(out, "047")[0] == ["100.00", "100.00", "84.64", "84.64"]
    assert rows(out, "580") == [["100.00", "100.00", "81.73", "79.59"]]
    assert rows(out, "999") == [["100.00", "100.00"]]
    _, elsewhere, _ = check(*SMALL, "experts.num=1")
    assert rows(elsewhere, "047")[0] == ["100.00", "100.00"]


def test_damaged_files_are_named_and_refused(check, on_disk):
    code, out, err = check(*SMALL)
    assert code == 2
    assert "opened 4 of 4 files" in out and "Damaged: 2" in out
    assert [name for name in ("a.jpg", "b.jpg", "c.jpg", "d.jpg") if name in out] == ["b.jpg", "c.jpg"]
    assert rows(out, "20x10") == [["1"]] and rows(out, "30x30") == [["1"]]
    assert err.startswith("l2d: 2 damaged image file(s)") and "dataset.on_error=skip" in err
    assert "train images (stream)" in out


def test_damaged_files_may_be_skipped(check, on_disk, tmp_path):
    code, out, err = check(*SMALL, "+dataset.on_error=skip")
    assert (code, err) == (0, "")
    assert "b.jpg" in out and "c.jpg" in out
    assert (tmp_path / "contact_sheet.png").is_file()  # drawn from the two that can be read


def test_decode_opens_only_a_sample_of_the_files(check, on_disk):
    code, out, _ = check(*SMALL, "--decode", "2")  # the first and the last, both whole
    assert code == 0
    assert "opened 2 of 4 files" in out and "Damaged: none" in out


def test_every_damaged_file_of_a_resident_folder_is_named(check, tmp_path):
    whole = jpeg((20, 10))
    for split in ("train", "test"):
        for kind in ("cat", "dog"):
            folder = tmp_path / "data" / split / kind
            folder.mkdir(parents=True)
            for i in range(8):
                (folder / f"{split}_{kind}_{i}.jpg").write_bytes(b"" if kind == "dog" and i < 7 else whole)
    settings = ("dataset=folder", "dataset.root=data", "dataset.cache=cache", "dataset.size=8", "dataset.resize=9")
    settings += ("backbone=mlp", "experts=specialist", "experts.num=1", "+dataset.groups.specialty=[cat]")
    code, out, err = check(*settings, "dataset.feed=resident")
    assert code == 2 and "14 damaged" in err
    assert all(f"{split}_dog_{i}.jpg" in out for split in ("train", "test") for i in range(7))
    assert "cat_0.jpg" not in out and "dog_7.jpg" not in out
    code, out, _ = check(*settings, "dataset.feed=resident", "dataset.on_error=skip")
    assert code == 0
    assert rows(out, "cat") == [["8", "8"]] and rows(out, "dog") == [["1", "1"]]


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("dataset.nonsense=1", "nonsense"),
        ("+dataset.nonsense=1", "dataset (l2d.data.synthetic) has no setting nonsense"),
        ("dataset=nowhere", "nowhere"),
        ("experts.num=99", "at most 20 experts fit"),
        ("experts=human", "has none"),
        ("backbone=timm", "backbone.name has no value"),
        ("optim.schedule=spiral", "optim.schedule=spiral "),
        ("trainer.epochs=0", "trainer.epochs=0 "),
        ("trainer.device=abacus", "trainer.device=abacus"),
    ],
)
def test_settings_that_training_rejects_are_rejected(check, override, sentence):
    code, _, err = check(override, "dataset.num_train=80", "dataset.num_test=80")
    assert code == 2
    assert err.startswith("l2d: ") and err.count("\n") == 1 and sentence in err


def test_refused_experts_still_leave_a_report_and_a_sheet(check, pets, tmp_path):
    code, out, err = check(*SMALL, "experts.num=3", "loss.base=nosuch")
    assert code == 2 and "experts.num=3" in err
    assert rows(out, "ann") == [["66.67", "50.00", "25.00", "0.00"]]
    assert (tmp_path / "contact_sheet.png").is_file()


def test_nothing_is_written_but_the_sheet(check, tmp_path):
    code, out, err = check("--sheet", "new/sheet.png", "dataset.num_train=80", "dataset.num_test=80")
    assert (code, err) == (0, "")
    assert "new/sheet.png" in out
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [tmp_path / "new/sheet.png"]


def test_an_unwritable_sheet_is_a_sentence(check, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = check("--sheet", "file/sheet.png", "dataset.num_train=80", "dataset.num_test=80")
    assert code == 2 and "choose another --sheet" in err


def test_the_sheet_marks_right_and_wrong(check, pets):
    pets.class_names = ["cat", "dog $1 $2", "犬"]  # neither a formula nor a font's limits may stop it
    wrong = {"train": np.array([1, 1, 2, 0], np.int8), "test": np.array([1, 0], np.int8)}
    sheets = []
    for name, answers in {"right": pets.annotators["bob"], "wrong": wrong}.items():
        pets.annotators = {"bob": answers}
        assert check(*SMALL, "experts.num=1", "--sheet", f"{name}.png")[0] == 0
        sheets.append(np.asarray(Image.open(f"{name}.png").convert("RGB")).astype(int))  # [H, W, 3]
    assert sheets[0].shape == sheets[1].shape and min(sheets[0].shape[:2]) > 200
    assert all(sheet.std() > 10 for sheet in sheets)
    differ = (sheets[0] != sheets[1]).any(-1)  # the lines of the answers
    right, wrong_ones = (sheet[differ][sheet[differ].sum(-1) < 300] for sheet in sheets)  # their dark pixels [P, 3]
    assert len(right) and (right.argmax(-1) == 1).mean() > 0.9  # green ink
    assert len(wrong_ones) and (wrong_ones.argmax(-1) == 0).mean() > 0.9  # red ink


@pytest.mark.parametrize(("classes", "shown"), [(2, 2), (10, 10), (24, 24), (100, 24)])
def test_the_sheet_is_spread_over_the_classes(classes, shown):
    labels = np.repeat(np.arange(classes), 20)
    usable = np.arange(len(labels)) % 2 == 0
    chosen = spread(labels, usable, seed=0)
    per_class = np.bincount(labels[chosen], minlength=classes)
    assert len(chosen) == len(set(chosen)) == (20 if classes == 2 else 24)  # two classes have 10 usable images each
    assert usable[chosen].all()
    assert (per_class > 0).sum() == shown
    assert per_class[per_class > 0].max() - per_class[per_class > 0].min() <= 1
    assert chosen == spread(labels, usable, seed=0) != spread(labels, usable, seed=1)


@pytest.fixture
def crowd(pets):
    """60 training and 40 test images; 30 workers, of whom w0 answered 30 training images and w29 only the first."""
    rng = np.random.default_rng(0)
    labels = {"train": rng.integers(0, 3, 60), "test": rng.integers(0, 3, 40)}
    for s, y in labels.items():
        getattr(pets, s).inputs = Images(torch.zeros(len(y), 3, 8, 8, dtype=torch.uint8), PREPROCESSING)
        getattr(pets, s).labels = torch.from_numpy(y)
    pets.annotators = {}
    for j in range(30):
        answers = {s: np.full(len(y), -1, np.int8) for s, y in labels.items()}
        answers["train"][: 30 - j] = labels["train"][: 30 - j]
        if j != 3:
            answers["test"][:5] = (labels["test"][:5] + j) % 3
        pets.annotators[f"w{j}"] = answers
    return pets


def test_a_crowd_is_summarised_with_its_gaps_and_overlap(check, crowd):
    code, out, _ = check(*SMALL, "experts.num=null")
    assert code == 0 and "nan" not in out
    assert rows(out, "train answers") == [["1", "15.5", "30"]] * 2  # as annotators and as experts
    assert rows(out, "train accuracy") == [["100.00", "100.00", "100.00"]] * 2
    assert rows(out, "test answers") == [["5", "5", "5"]] * 2
    assert ["0", "0.5", "30", "50.00", "1.67", "48.33"] in rows(out, "train")  # answers per sample
    assert "No answer in test: w3\n" in out and "No answer in train" not in out
    assert "1 of 30 experts without an answer in test" in out


def test_experts_of_whom_nobody_answered_in_a_split_are_named(check, crowd):
    crowd.annotators = {"w0": crowd.annotators["w0"], "w3": crowd.annotators["w3"]}
    code, out, _ = check(*SMALL, "experts.annotators=[w3]", "experts.num=null")
    assert code == 0
    assert rows(out, "w3") == [["100.00", "-", "55.00", "100.00"]] * 2
    last = " ".join(out.split("Training can start")[1].split())
    assert "1 of 1 experts without an answer in test, so that nobody can be asked and coverage will be 100" in last
    assert "No problem found" not in out


def test_a_class_absent_from_a_split_is_named(check, pets):
    _, out, _ = check(*SMALL, "experts.num=1")
    assert "Absent from test: [bird]" in out and "1 of 3 classes absent from test" in out


def test_the_correlation_of_errors_is_that_over_common_samples():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 40_000)
    wrong = np.stack([rng.random(40_000) < 0.3, rng.random(40_000) < 0.5, rng.random(40_000) < 0.2], axis=1)
    wrong[:, 2] |= wrong[:, 0]  # whoever makes the first one's errors and some more
    answers = np.where(wrong, (labels[:, None] + 1) % 4, labels[:, None])
    np.testing.assert_allclose(error_correlation(answers, labels), np.corrcoef(wrong.T), atol=1e-6)
    missing = rng.random(answers.shape) < 0.5
    gappy = np.where(missing, -1, answers)
    both = ~missing[:, 0] & ~missing[:, 2]
    expected = np.corrcoef(wrong[both][:, [0, 2]].T)[0, 1]
    assert error_correlation(gappy, labels)[0, 2] == pytest.approx(expected, abs=1e-6)
    assert np.isnan(error_correlation(gappy[:20], labels[:20])).all()  # too few in common
    always_right = np.stack([labels, answers[:, 0]], axis=1)
    assert np.isnan(error_correlation(always_right, labels)[0]).all()


def test_any_expert_right_is_compared_with_independent_errors_of_the_same_accuracy_per_class():
    labels = np.repeat([0, 1], 100)
    one = np.where(np.arange(200) % 2, labels, 1 - labels)  # right on every second sample of either class
    together, independent = any_right(np.stack([one, one], axis=1), labels)
    assert (together, independent) == pytest.approx((0.5, 0.75))
    in_turns = np.where(np.arange(200) % 2, 1 - labels, labels)
    assert any_right(np.stack([one, in_turns], axis=1), labels) == pytest.approx((1, 0.75))
    specialists = np.stack([np.zeros(200, int), np.ones(200, int)], axis=1)
    assert any_right(specialists, labels) == pytest.approx((1, 1))
    silent = np.full(200, -1)
    assert any_right(np.stack([one, silent], axis=1), labels) == pytest.approx((0.5, 0.5))


def test_experts_who_fail_together_are_shown_beside_independent_ones(check, crowd):
    labels = {s: getattr(crowd, s).labels.numpy() for s in ("train", "test")}
    half = {s: np.where(np.arange(len(y)) % 2, y, (y + 1) % 3) for s, y in labels.items()}
    crowd.annotators = {"ada": half, "bob": half, "eve": labels}
    _, out, _ = check(*SMALL, "experts.num=null")
    assert rows(out, "ada")[-1] == ["1.00"]
    assert rows(out, "bob")[-1] == ["1.00", "1.00"]
    assert rows(out, "eve")[-1] == ["-", "-", "-"]
    crowd.annotators = {f"a{j}": half for j in range(13)}
    _, out, _ = check(*SMALL, "experts.num=null")
    assert rows(out, "78 of 78 pairs") == [["1.00", "1.00", "(a0,", "a1)", "1.00", "(a0,", "a1)"]]
    assert "At least one expert is right on 50.00 of train and 50.00 of test." in out
    assert "it would be 99" in " ".join(out.split())


@pytest.fixture
def odd_folder(tmp_path):
    """16 images, of which one each has 16 bits, alpha, or is stored on its side."""
    for split in ("train", "test"):
        for kind in ("cat", "dog"):
            folder = tmp_path / "data" / split / kind
            folder.mkdir(parents=True)
            for i in range(4):
                (folder / f"{i}.jpg").write_bytes(jpeg((20, 10)))
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (20, 10)).save(tmp_path / "data/train/cat/1.jpg", exif=exif)
    Image.new("RGBA", (20, 10)).save(tmp_path / "data/train/dog/2.jpg", format="PNG")
    Image.fromarray(np.zeros((10, 20), np.uint16)).save(tmp_path / "data/test/dog/3.jpg", format="PNG")
    settings = ("dataset=folder", "dataset.root=data", "dataset.cache=cache", "dataset.size=8", "dataset.resize=9")
    return *settings, "backbone=mlp", "experts=specialist", "experts.num=1", "+dataset.groups.specialty=[cat]"


@pytest.mark.parametrize("feed", ["resident", "stream"])
def test_odd_files_are_counted_and_named(check, odd_folder, feed):
    code, out, _ = check(*odd_folder, f"dataset.feed={feed}")
    assert code == 0
    assert rows(out, "rotated (EXIF): turned upright") == [["1", "train/cat/1.jpg"]]
    assert rows(out, "alpha: seen on white") == [["1", "train/dog/2.jpg"]]
    assert rows(out, "more than 8 bits: scaled") == [["1", "test/dog/3.jpg"]]
    assert "unknown range" not in out
    if feed == "stream":
        assert rows(out, "10x20") == [["1"]] and rows(out, "20x10") == [["7"], ["8"]]  # upright


def test_of_many_decoded_files_a_sample_is_looked_at(check, odd_folder, monkeypatch):
    monkeypatch.setattr(inputs, "SAMPLE", 2)  # the first and the last
    code, out, _ = check(*odd_folder, "dataset.feed=resident")
    assert code == 0
    assert out.count("Read the headers of 2 of 8 files.") == 2
    assert rows(out, "more than 8 bits: scaled") == [["1", "test/dog/3.jpg"]]
    assert "rotated" not in out


@pytest.mark.parametrize("feed", ["resident", "stream"])
def test_files_of_unknown_range_stop_a_training_and_are_named(check, odd_folder, tmp_path, feed):
    for i in (0, 1):
        Image.fromarray(np.zeros((10, 20), np.float32)).save(tmp_path / f"data/train/dog/{i}.jpg", format="TIFF")
    code, out, err = check(*odd_folder, f"dataset.feed={feed}")
    assert code == 2 and err.startswith("l2d: 2 damaged image file(s)")
    assert rows(out, "of unknown range: refused") == [["2", "train/dog/0.jpg"]]
    assert out.count("floating-point") == 2


def test_below_an_image_stand_its_file_and_of_a_crowd_those_who_answered():
    images = Images(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), PREPROCESSING, ["a/1.png", "a/2.png"])
    split = Split(images, torch.tensor([0, 1]))
    answers = {f"w{j}": np.array([-1, -1]) for j in range(20)}
    answers["w7"], answers["w9"] = np.array([0, -1]), np.array([1, -1])
    lines = [[text for text, _ in _lines(i, split, ["cat", "dog"], answers)] for i in (0, 1)]
    assert lines == [["a/1.png", "✓ w7: cat", "✗ w9: dog"], ["a/2.png", "○ no answer"]]
    few = {name: answers[name] for name in ("w0", "w7")}
    assert [text for text, _ in _lines(0, split, ["cat", "dog"], few)] == ["a/1.png", "○ w0: no answer", "✓ w7: cat"]


@pytest.mark.parametrize("standardise", ["true", "false"])
def test_vectors_are_described_and_need_no_sheet(check, tmp_path, standardise):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 5)).astype(np.float16), rng.integers(0, 3, 50)
    x[:, 3] = 7
    split = np.array(["train", "test", "val", "train", "train"] * 10)
    np.savez(tmp_path / "x.npz", x=x, y=y, split=split, answers=np.stack([y, (y + 1) % 3], axis=1))
    settings = ("dataset=features", "dataset.path=x.npz", f"dataset.standardise={standardise}", "dataset.cache=cache")
    code, out, err = check(*settings, "backbone=linear", "experts.num=null")
    assert (code, err) == (0, "")
    assert "features: 3 classes, 30 training and 10 test samples, 10 held out" in out
    used = "standardised by the system" if standardise == "true" else "used as they are"
    assert f"train inputs: vectors of 5 numbers in float16, {used}; constant: 1, numbers 4" in out
    assert rows(out, "expert_0")[0] == ["100.00", "100.00", "100.00"]
    assert rows(out, "train vectors (in their file's type)") == [["300", "B"]]
    assert not (tmp_path / "contact_sheet.png").exists() and "Contact sheet" not in out
