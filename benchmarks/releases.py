"""Small datasets in the layouts in which they are distributed, of random pixels. The tests and scripts/gpu_check use them."""

import json
import os
import pickle

import numpy as np
from PIL import Image

# The distributed names, and the superclass of every fine label.
FINE = """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree
wolf woman worm"""
COARSE = """aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes
large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1
vehicles_2"""
SUPERCLASS = [
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10, 12,
    14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1,
    9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
]  # fmt: skip


def cifar100_parts(images_per_class: int = 2) -> dict[str, dict]:
    """The three files' dictionaries, small: every class is there."""
    rng = np.random.default_rng(0)

    def part(name: str, each: int) -> dict:
        labels = [int(k) for k in rng.permutation(np.repeat(np.arange(100), each))]
        return {
            b"filenames": [f"{name}_{i}.png".encode() for i in range(len(labels))],
            b"batch_label": name.encode(),
            b"fine_labels": labels,
            b"coarse_labels": [SUPERCLASS[k] for k in labels],
            b"data": rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8),
        }

    meta = {
        b"fine_label_names": [n.encode() for n in FINE.split()],
        b"coarse_label_names": [n.encode() for n in COARSE.split()],
    }
    return {"train": part("train", images_per_class), "test": part("test", 1), "meta": meta}


def write_cifar100(root, parts: dict[str, dict], protocol: int = 2) -> None:
    (root / "cifar-100-python").mkdir(exist_ok=True)
    for name, part in parts.items():
        (root / "cifar-100-python" / name).write_bytes(pickle.dumps(part, protocol))


WNIDS = ["n01440764", "n02085620", "n02099712", "n02116738", "n15075141"]  # a tench, three dogs, toilet paper


def picture(path, k: int) -> None:
    """Every fourth is a PNG behind its name, grey, CMYK, an ordinary JPEG."""
    image = Image.fromarray(np.random.default_rng(k).integers(0, 256, (40, 50 + k, 3), dtype=np.uint8))
    mode, format = (("RGB", "PNG"), ("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "JPEG"))[k % 4]
    image.convert(mode).save(path, format=format)


def write_imagenet(root) -> None:
    for split, count in (("train", 4), ("val", 2)):
        for wnid in WNIDS:
            folder = root / split / wnid
            folder.mkdir(parents=True)
            for k in range(count):
                picture(folder / f"{wnid}_{k}.JPEG", k)
            os.utime(folder, (1e9, 1e9))  # changed long ago


ANNOTATORS = [533, 966, 47, 290, 534, 745, 581, 580]  # not in the paper's order, as in the release
ANNOTATOR_ORDER = ["047", "290", "533", "534", "580", "581", "966", "745"]
ORIENTATIONS = ["g", "ug", "nr"]
# The eight answers in ANNOTATOR_ORDER for the first image of every fold, and the label they make, by hand.
ANSWERS_BY_HAND = {
    1: ("g g g g ug ug ug ug", "g"),  # tie: g before ug
    2: ("nr nr nr nr ug ug ug ug", "ug"),  # tie: ug before nr
    3: ("nr nr nr g g g ug ug", "g"),  # tie: g before nr
    4: ("nr nr nr nr nr ug ug g", "nr"),
    5: ("ug nr ug nr ug nr g g", "ug"),  # three each of ug and nr
}


def write_micebone(root, per_fold=4, edit=None):
    """Images and annotations.json of 8 full and 3 partial annotators; `edit(records)` may spoil the records."""
    rng = np.random.default_rng(0)
    answers = {}
    for fold in range(1, 6):
        (root / f"MiceBone/fold{fold}").mkdir(parents=True)
        for n in range(per_fold):
            path = f"MiceBone/fold{fold}/{ORIENTATIONS[n % 3]}#_Mouse{10 + fold}#image_{n:04d}#00.png"
            Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(root / path)
            answers[path] = ANSWERS_BY_HAND[fold][0].split() if n == 0 else rng.choice(ORIENTATIONS, 8).tolist()
    records = [
        annotator_record(f"INVALID{n}", {p: a[ANNOTATOR_ORDER.index(f"{n:03d}")] for p, a in answers.items()})
        for n in ANNOTATORS
    ]
    some = list(answers)[: len(answers) // 2]
    records[2:2] = [annotator_record(f"INVALID{n}", dict.fromkeys(some, "nr")) for n in (7, 101, 47)]
    if edit:
        edit(records)
    (root / "MiceBone/annotations.json").write_text(json.dumps(records))
    return answers


def annotator_record(name, answers):
    stamp = "2021-06-01T10:00:00"
    return {
        "name": name,
        "dataset_name": "MiceBone",
        "user_mail": f"{name}@example.org",
        "annotation_time": 1.5,
        "annotations": [{"image_path": p, "created_at": stamp, "class_label": c} for p, c in answers.items()],
    }


SLIDES = {
    "train": [f"train/353042_4-IMG005x{n:03d}-1.JPG" for n in range(12)],
    "test": [f"test/539801_2-IMG017x{n:03d}-0.JPG" for n in range(6)],
}


def write_chaoyang(root, train_json="train.json", edit=None):
    """12 + 6 JPEGs and the two lists; A errs on every fourth image, B on every third; `edit(lists)` may spoil them."""
    lists = {}
    for split, names in SLIDES.items():
        (root / split).mkdir(parents=True)
        lists[split] = [
            {"name": name, "label": n % 4, "label_A": (n + (n % 4 == 1)) % 4, "label_B": (n - (n % 3 == 0)) % 4}
            | {"label_C": n % 4}
            for n, name in enumerate(names)
        ]
        for n, name in enumerate(names):
            Image.new("RGB", (48, 40), (10 * n, 100, 200)).save(root / name, quality=95, format="JPEG")
    if edit:
        edit(lists)
    (root / train_json).write_text(json.dumps(lists["train"]))
    (root / "test.json").write_text(json.dumps(lists["test"]))


def write_tree(root, classes=("cat", "dog"), train=4, test=2):
    for split, count in (("train", train), ("test", test)):
        for k, name in enumerate(classes):
            (root / split / name).mkdir(parents=True)
            for n in range(count):
                Image.new("RGB", (40, 40), (100 * k, 20 * n, 0)).save(root / split / name / f"{n}.png")
