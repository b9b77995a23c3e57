"""CIFAR-10, and people's answers to its images and to CIFAR-100's: CIFAR-10N, CIFAR-100N, CIFAR-10H, in the distributed formats."""

import hashlib
import json
import pickle

import numpy as np
import pytest
import test_cifar100
import torch
from children import run_l2d
from releases import SUPERCLASS, cifar100_parts, write_cifar100

from l2d.config import build
from l2d.data.cifar import CIFAR10
from l2d.data.load import load_dataset
from l2d.errors import UserError

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
EACH = 20  # images per file


def write(root, edit=None) -> dict[str, np.ndarray]:
    """The seven files, small, and the labels of the training and the test images; `edit(parts)` may spoil the contents."""
    rng = np.random.default_rng(0)
    parts = {}
    for file in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
        parts[file] = {
            b"batch_label": file.encode(),
            b"labels": [int(k) for k in rng.permutation(np.arange(EACH) % 10)],
            b"data": rng.integers(0, 256, (EACH, 3072), dtype=np.uint8),
            b"filenames": [f"{file}_{i}.png".encode() for i in range(EACH)],
        }
    parts["batches.meta"] = {
        b"num_cases_per_batch": EACH,
        b"label_names": [name.encode() for name in CLASSES],
        b"num_vis": 3072,
    }
    labels = np.array([part[b"labels"] for file, part in parts.items() if file != "batches.meta"])  # [6, EACH]
    written = {"train": labels[:5].flatten(), "test": labels[5], "pixels": parts["data_batch_2"][b"data"]}
    if edit:
        edit(parts)
    (root / "cifar-10-batches-py").mkdir(parents=True, exist_ok=True)
    for file, part in parts.items():
        (root / "cifar-10-batches-py" / file).write_bytes(pickle.dumps(part, 2))
    return written


def cifar10n(root, legacy=False, edit=None) -> dict[str, np.ndarray]:
    """CIFAR-10 with CIFAR-10_human.pt; every person errs on other images."""
    clean = write(root)["train"].astype(np.int64)
    people = ["aggre_label", "worse_label", "random_label1", "random_label2", "random_label3"]
    human = {name: (clean + (np.arange(len(clean)) % 5 == j)) % 10 for j, name in enumerate(people)}
    human["clean_label"] = clean
    if edit:
        edit(human)
    torch.save(human, root / "CIFAR-10_human.pt", _use_new_zipfile_serialization=not legacy)
    return human


def cifar100n(root) -> dict[str, np.ndarray]:
    parts = cifar100_parts()
    root.mkdir(exist_ok=True)
    write_cifar100(root, parts)
    clean = np.array(parts["train"][b"fine_labels"])
    coarse = list(np.array(SUPERCLASS)[clean])  # a list of numpy's numbers, as it is distributed
    human = {"clean_label": clean, "noisy_label": (clean + (np.arange(len(clean)) % 5 < 2)) % 100}
    torch.save({**human, "noisy_coarse_label": coarse, "clean_coarse_label": coarse}, root / "CIFAR-100_human.pt")
    return human


def cifar10h(root, file="cifar10h-counts.npy", edit=None) -> np.ndarray:
    """CIFAR-10 with the answers of 50 people to each test image, 40 of them right."""
    labels = write(root)["test"]
    votes = np.zeros((EACH, 10), dtype=np.int64)
    votes[np.arange(EACH), labels] = 40
    votes[np.arange(EACH), (labels + 1) % 10] = 10
    votes = votes if "counts" in file else votes / 50
    np.save(root / file, votes if edit is None else edit(votes))
    return labels


@pytest.fixture
def load(composed, tmp_path):
    def from_overrides(option, *overrides, verify=False):
        cfg = composed(f"dataset={option}", *overrides)
        cfg.dataset.root, cfg.dataset.verify = str(tmp_path), verify
        return build(cfg, "dataset")

    return from_overrides


def test_images_and_labels_are_those_of_the_files_in_their_order(load, tmp_path):
    written = write(tmp_path)
    dataset = load("cifar10")
    assert dataset.class_names == CLASSES and dataset.preprocessing.shape == (3, 32, 32)
    assert dataset.train.labels.tolist() == written["train"].tolist()
    assert dataset.test.labels.tolist() == written["test"].tolist()
    assert dataset.train.inputs.pixels.shape == (5 * EACH, 3, 32, 32)
    assert dataset.train.inputs.pixels[EACH + 3].flatten().tolist() == written["pixels"][3].tolist()
    assert dataset.train.inputs.ids()[EACH + 3] == "train/data_batch_2_3.png"
    assert dataset.test.inputs.ids()[0] == "test/test_batch_0.png"
    assert dataset.groups == {"animal": [2, 3, 4, 5, 6, 7], "vehicle": [0, 1, 8, 9]}


def test_the_default_experts_know_two_animals_each(load, composed, tmp_path):
    write(tmp_path)
    dataset = load("cifar10")
    matrix = build(composed("dataset=cifar10"), "experts", num_classes=10, groups=dataset.groups)
    assert [np.flatnonzero(row == 0.94).tolist() for row in matrix] == [[2, 3], [4, 5], [6, 7]]


def test_only_files_with_the_distributed_checksums_are_read(load, tmp_path, monkeypatch):
    write(tmp_path)
    with pytest.raises(UserError, match=r"CIFAR-10 distributes.*dataset\.verify=false"):
        load("cifar10", verify=True)
    for file in CIFAR10.md5:
        content = (tmp_path / "cifar-10-batches-py" / file).read_bytes()
        monkeypatch.setitem(CIFAR10.md5, file, hashlib.md5(content).hexdigest())
    assert len(load("cifar10", verify=True).train) == 5 * EACH


def test_the_checksums_are_torchvisions():
    from torchvision.datasets import CIFAR10 as Theirs

    theirs = dict([*Theirs.train_list, *Theirs.test_list, [Theirs.meta["filename"], Theirs.meta["md5"]]])
    assert CIFAR10.md5 == theirs and CIFAR10.folder == Theirs.base_folder


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda parts: parts["data_batch_3"][b"labels"].pop(), "data_batch_3 does not hold one label from 0 to 9 .*labels"),
        (lambda parts: parts["data_batch_3"].pop(b"labels"), "data_batch_3 is not CIFAR-10's"),
        (lambda parts: parts["data_batch_2"].update({b"x": test_cifar100.Foreign("ran")}), "data_batch_2 .*mkdir: refused"),
        (lambda parts: parts.pop("data_batch_5"), "data_batch_5 cannot be read"),
    ],
)  # fmt: skip
def test_wrong_contents_end_in_a_sentence(load, tmp_path, spoil, sentence):
    with pytest.raises(UserError, match="no folder cifar-10-batches-py"):
        load("cifar10")
    write(tmp_path, spoil)
    with pytest.raises(UserError, match=sentence):
        load("cifar10")


def joined(dataset, who: str) -> dict[str, int]:
    """image -> the answer of a person, over both splits."""
    return {
        name: int(answer)
        for split, part in dataset.splits().items()
        for name, answer in zip(part.inputs.ids(), dataset.annotators[who][split], strict=True)
    }


@pytest.mark.parametrize("legacy", [False, True])
def test_cifar10n_splits_the_training_images_with_the_answers_of_its_people(load, tmp_path, legacy):
    human = cifar10n(tmp_path, legacy)
    dataset = load("cifar10n")
    assert list(dataset.annotators) == ["random_label1", "random_label2", "random_label3", "aggre_label", "worse_label"]
    assert (len(dataset.train), len(dataset.test)) == (80, 20)
    order = load("cifar10").train.inputs.ids()
    for who in dataset.annotators:
        answers = joined(dataset, who)
        assert [answers[name] for name in order] == human[who].tolist()
    whole, names = load("cifar10").train, dataset.test.inputs.ids()
    rows = [list(order).index(name) for name in names]
    assert torch.equal(dataset.test.inputs.pixels, whole.inputs.pixels[rows])
    assert torch.equal(dataset.test.labels, whole.labels[rows])


def test_the_split_follows_from_its_seed_and_share(load, tmp_path):
    cifar10n(tmp_path)
    names = [
        load("cifar10n", *overrides).test.inputs.ids()
        for overrides in ((), ("seed=1",), ("dataset.seed=1",), ("dataset.test_share=0.5",))
    ]
    assert names[0] == names[1] != names[2] and len(names[3]) == 50
    with pytest.raises(UserError, match=r"dataset\.test_share=0\.001 "):
        load("cifar10n", "dataset.test_share=0.001")
    with pytest.raises(UserError, match=r"dataset\.test_share=1 "):
        load("cifar10n", "dataset.test_share=1")


def test_cifar100n_has_one_person(load, tmp_path):
    human = cifar100n(tmp_path)
    dataset = load("cifar100n")
    answers = joined(dataset, "noisy_label")
    assert [answers[f"train/train_{i}.png"] for i in range(200)] == human["noisy_label"].tolist()
    assert list(dataset.annotators) == ["noisy_label"] and len(dataset.groups["animal"]) == 50


def swapped(human):
    human["clean_label"] = human["clean_label"][::-1].copy()


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (swapped, r"clean_label differs from the labels of \d+ of 100 images"),
        (lambda human: human.pop("clean_label"), "clean_label"),
        (lambda human: human.pop("random_label3"), "random_label3"),
        (lambda human: human.update(worse_label=human["worse_label"][1:]), "worse_label must be 100 classes"),
        (lambda human: human.update(worse_label=human["worse_label"] + 1), "worse_label must be .* from 0 to 9"),
        (lambda human: human.update(worse_label=human["worse_label"] / 2), "worse_label must be 100 classes"),
        (lambda human: human.update(x=test_cifar100.Foreign("ran")), "mkdir: refused"),
        (lambda human: human.update(clean_label=torch.from_numpy(human["clean_label"])), "CIFAR-N"),
    ],
)
@pytest.mark.parametrize("legacy", [False, True])
def test_answers_to_other_images_and_foreign_files_are_refused(load, tmp_path, monkeypatch, spoil, sentence, legacy):
    monkeypatch.chdir(tmp_path)
    cifar10n(tmp_path, legacy, spoil)
    with pytest.raises(UserError, match=rf"dataset\.human=.*CIFAR-10_human\.pt.*{sentence}"):
        load("cifar10n")
    assert not (tmp_path / "ran").exists()


def test_the_file_of_answers_is_found_below_the_root_or_anywhere(load, tmp_path):
    cifar10n(tmp_path)
    (tmp_path / "far").mkdir()
    (tmp_path / "CIFAR-10_human.pt").rename(tmp_path / "far/answers.pt")
    for named in ("far/answers.pt", str(tmp_path / "far/answers.pt")):
        assert len(load("cifar10n", f"dataset.human={named}").annotators) == 5
    with pytest.raises(UserError, match=r"dataset\.human=CIFAR-10_human\.pt is no file"):
        load("cifar10n")
    for content in (b"", b"PK\3\4", b"PK" + bytes(40), (tmp_path / "far/answers.pt").read_bytes()[:-700], b"text"):
        (tmp_path / "far/broken.pt").write_bytes(content)
        with pytest.raises(UserError, match=r"dataset\.human=.*broken\.pt"):
            load("cifar10n", "dataset.human=far/broken.pt")


@pytest.mark.parametrize("file", ["cifar10h-counts.npy", "cifar10h-probs.npy"])
def test_cifar10h_draws_people_who_answer_as_often_as_the_counts_say(load, tmp_path, file):
    labels = cifar10h(tmp_path, file)
    many = load("cifar10h", "dataset.people=400", f"dataset.human={file}")
    assert list(many.annotators)[:2] == ["person_0", "person_1"] and len(many.annotators) == 400
    assert (len(many.train), len(many.test)) == (16, 4)
    table = np.array([[joined(many, who)[f"test/test_batch_{i}.png"] for i in range(EACH)] for who in many.annotators])
    right, next_class = table == labels, table == (labels + 1) % 10  # [400, 20]
    assert (right | next_class).all()
    assert 0.78 < right.mean() < 0.82 and right.mean(0).min() > 0.6 and right[:, :4].mean(0).min() > 0.6
    few = load("cifar10h", f"dataset.human={file}")
    assert [joined(few, f"person_{j}") for j in range(3)] == [joined(many, f"person_{j}") for j in range(3)]
    other = load("cifar10h", "dataset.seed=1", f"dataset.human={file}")
    assert joined(other, "person_0") != joined(few, "person_0")


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda votes: votes[1:], r"must hold counts or probabilities \[20, 10\].* it has \[19, 10\]"),
        (lambda votes: -votes, r"must hold counts"),
        (lambda votes: votes * np.nan, r"must hold counts"),
        (lambda votes: votes * 0, r"must hold counts"),
        (lambda votes: votes.astype(object), "not an array of numbers"),
        (lambda votes: np.roll(votes, 1, axis=1), "another order"),
    ],
)
def test_counts_of_other_images_are_refused(load, tmp_path, edit, sentence):
    cifar10h(tmp_path, edit=edit)
    with pytest.raises(UserError, match=rf"dataset\.human=.*{sentence}"):
        load("cifar10h")


def test_counts_in_an_archive_are_refused(load, tmp_path):
    cifar10h(tmp_path)
    np.savez(tmp_path / "votes.npz", np.ones((20, 10)))
    with pytest.raises(UserError, match=r"dataset\.human=.*votes\.npz is not an array"):
        load("cifar10h", "dataset.human=votes.npz")


def test_as_many_experts_as_people_unless_they_are_named(composed):
    assert composed("dataset=cifar10h", "dataset.people=5").experts.num == 5
    assert composed("dataset=cifar10n").experts.num == 3
    assert composed("dataset=cifar10n", "experts.annotators=[aggre_label]").experts.num == 1
    assert composed("dataset=cifar100n").experts.num == 1


def test_further_answers_join_by_the_names_of_the_images(composed, tmp_path):
    cifar10n(tmp_path)
    (tmp_path / "more.csv").write_text("id,ada\ntrain/data_batch_1_0.png,cat\ntrain/data_batch_5_7.png,9\n")
    cfg = composed("dataset=cifar10n", "dataset.verify=false")
    cfg.dataset.root, cfg.dataset.annotators = str(tmp_path), str(tmp_path / "more.csv")
    dataset = load_dataset(cfg)
    answers = joined(dataset, "ada")
    assert (answers["train/data_batch_1_0.png"], answers["train/data_batch_5_7.png"]) == (3, 9)
    assert len(dataset.annotators) == 6
    cfg.dataset.annotators = str(tmp_path / "CIFAR-10_human.pt")
    with pytest.raises(UserError, match=r"CIFAR-10_human\.pt .*dataset\.human"):
        load_dataset(cfg)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["cifar10n", "cifar10h"])
def test_a_whole_run_through_the_command_line(tmp_path, option):
    {"cifar10n": cifar10n, "cifar10h": cifar10h}[option](tmp_path)
    command = [
        "train", f"dataset={option}", f"dataset.root={tmp_path}", "dataset.verify=false",
        "backbone=mlp", "trainer.epochs=1", "trainer.batch_size=8", f"output_dir={tmp_path / 'out'}",
    ]  # fmt: skip
    done = run_l2d(*command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "out").rglob("result.json")
    experts = json.loads(file.read_text())["experts"]
    assert len(experts) == 3 and all(e["train_answered"] == e["test_answered"] == 100 for e in experts)
