"""MiceBone as distributed: five folds of images, and annotations.json with every annotator's answers."""

from collections import Counter
from pathlib import PurePosixPath
from typing import Any, Unpack

from l2d.data.dataset import MISSING, Dataset, listed_by
from l2d.data.manifest import ImageSettings, Listing, Manifest, class_index, existing_root
from l2d.data.tables import read_json
from l2d.errors import UserError, notify

CLASSES = ["g", "ug", "nr"]  # similar orientation, dissimilar, not of interest: in the order that breaks ties
PAPER_ORDER = ["047", "290", "533", "534", "580", "581", "966", "745"]
SPLITS = {"fold1": "train", "fold2": "train", "fold3": "train", "fold4": "train", "fold5": "test"}


def list_micebone(root: str, cache: str | None = None) -> Manifest:
    """Folds 1-4 train, fold 5 test. The annotators are those who were shown every image, in the paper's order first;
    an image's label is the majority of their answers, ties going to the first of g, ug, nr. Images without any are left out."""
    folder = existing_root(root, "MiceBone", "MiceBone/annotations.json")
    annotators = full_annotators(read_json(folder / "MiceBone/annotations.json"))
    splits = {split: Listing(answers={a: [] for a in annotators}) for split in ("train", "test")}
    for path in sorted({path for answers in annotators.values() for path in answers}):
        split = SPLITS.get(PurePosixPath(path).parent.name)
        if split is None:
            raise UserError(f"annotations.json lists '{path}', which is in none of the folders fold1 to fold5.")
        votes = Counter(answers[path] for answers in annotators.values() if path in answers)
        listed = splits[split]
        listed.paths.append(path)
        listed.labels.append(max(range(len(CLASSES)), key=lambda k: votes[k]))
        for annotator, answers in annotators.items():
            listed.answers[annotator].append(answers.get(path, MISSING))
    return Manifest(folder, CLASSES, splits, cache=cache)


@listed_by(list_micebone)
def micebone(name: str, root: str, **images: Unpack[ImageSettings]) -> Dataset:
    """The three-class task on the published folds."""
    from l2d.data.images import image_dataset

    manifest = list_micebone(root)
    skipped = sum(given.count(MISSING) for listed in manifest.splits.values() for given in listed.answers.values())
    if skipped:
        notify(
            f"annotations.json has {skipped} answers without a class_label to the images used; they count as not given."
        )
    return image_dataset(name, manifest, images)


def full_annotators(records: Any) -> dict[str, dict[str, int]]:
    """id -> image -> class, of the records that name every image that any record labels. Where the class_label is null, the
    annotator was shown the image and gave no answer."""
    try:
        listed = [
            (str(record["name"]), [(a["image_path"], a["class_label"]) for a in record["annotations"]])
            for record in records
        ]
        named = [
            (path + "", label) for _, answers in listed for path, label in answers
        ]  # TypeError if it is not a string
    except (TypeError, KeyError) as error:
        raise UserError(
            "annotations.json must be a list of records with name and annotations, "
            f"each of those with image_path and class_label ({type(error).__name__}: {error})."
        ) from error
    images = {path for path, label in named if label is not None}
    full: dict[str, dict[str, int]] = {}
    for record, answers in listed:
        if not images <= {path for path, _ in answers}:
            continue
        annotator = annotator_id(record)
        given = [(path, label) for path, label in answers if label is not None]
        if annotator in full or len(given) > len(dict(given)):
            raise UserError(f"annotations.json has two answers of annotator {annotator} to the same image.")
        if given:
            full[annotator] = {
                path: class_index(label, CLASSES, f"annotations.json, {record}, {path}", indices=False)
                for path, label in given
            }
    if not full:
        raise UserError("annotations.json has no annotator who labelled every image, so the majority label is unknown.")
    return {a: full[a] for a in sorted(full, key=lambda a: ([*PAPER_ORDER, a].index(a), a))}


def annotator_id(name: str) -> str:
    """INVALID47 -> 047."""
    return "".join(c for c in name if c.isdigit()).zfill(3)
