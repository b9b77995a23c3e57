"""The streaming loader: the same batches whatever the workers, torchvision's pixels, damaged files by name."""

import logging
import multiprocessing

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from l2d.data import ImageFiles, Loader, Preprocessing, Split
from l2d.data.files import open_image, read_box
from l2d.errors import UserError
from l2d.place import Place

COUNT, SIZE, RESIZE = 10, 24, 30


def smooth(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Slow waves: JPEG and resampling hardly change them."""
    y, x = np.mgrid[:height, :width] / max(height, width)
    waves = [np.sin(2 * np.pi * (x * (1 + c) + y * (2 - c / 2) + 0.1 * seed)) for c in range(3)]
    return np.stack([128 + 100 * w for w in waves], axis=-1).astype(np.uint8)


@pytest.fixture
def folder(tmp_path):
    for k in range(COUNT):
        Image.fromarray(smooth(40 + 3 * k, 70 - 2 * k, k)).save(tmp_path / f"{k}.JPEG", quality=95)
    return tmp_path


def loader(root, split, workers=0, on_error="error", augment="random_resized_crop_flip", batch_size=4, seed=0):
    preprocessing = Preprocessing((3, SIZE, SIZE), (0.5, 0.4, 0.3), (0.2, 0.25, 0.5), RESIZE, augment)
    files = ImageFiles(root, [f"{k}.JPEG" for k in range(COUNT)], preprocessing, workers, on_error)
    table = torch.arange(COUNT)[:, None].repeat(1, 2)  # [N, J]: tells which sample
    data = Split(files, torch.arange(COUNT), table, lambda epoch: table + 100 * epoch)
    return Loader(data, Place(layout=torch.channels_last), batch_size, seed, train=split == "train")


def equal(a, b) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True)
    )


def test_batches_do_not_depend_on_the_number_of_workers(folder):
    for split, epoch in (("train", 0), ("train", 3), ("test", 0)):
        alone, two = (list(loader(folder, split, workers).epoch(epoch)) for workers in (0, 2))
        assert equal(alone, two)
        assert alone[0].inputs.is_contiguous(memory_format=torch.channels_last)


def test_epochs_differ_are_reproducible_and_can_be_abandoned(folder):
    stream = loader(folder, "train", workers=1)
    first, second = list(stream.epoch(0)), list(stream.epoch(1))
    assert not equal(first, second)
    next(stream.epoch(5))
    assert equal(list(stream.epoch(0)), first)
    assert not equal(list(loader(folder, "train", seed=1).epoch(0)), first)
    assert all(torch.equal(b.answers, (b.labels[:, None] + 100).expand(-1, 2)) for b in second)


def test_training_drops_the_incomplete_batch_and_evaluation_nothing(folder):
    train, test = loader(folder, "train"), loader(folder, "test")
    assert (len(train), len(test)) == (2, 3)
    assert [len(b.labels) for b in train.epoch()] == [4, 4]
    assert torch.cat([b.labels for b in test.epoch()]).tolist() == list(range(COUNT))


def test_evaluation_resizes_and_takes_the_centre_as_torchvision_does(folder):
    as_torchvision = v2.Compose([
        v2.Resize(RESIZE), v2.CenterCrop(SIZE), v2.ToImage(), v2.ToDtype(torch.float32, scale=True),
        v2.Normalize((0.5, 0.4, 0.3), (0.2, 0.25, 0.5)),
    ])  # fmt: skip
    expected = torch.stack([as_torchvision(Image.open(folder / f"{k}.JPEG")) for k in range(COUNT)])
    images = torch.cat([b.inputs for b in loader(folder, "test").epoch()])
    assert (images - expected).abs().max() <= 1.01 / 255 / 0.2  # one level of a byte, through std


def test_training_boxes_have_the_area_and_shape_of_random_resized_crops(tmp_path):
    y, x = np.mgrid[:200, :250]
    ramp = np.stack((x, y, 0 * x), axis=-1).astype(np.uint8)  # a pixel says where it was
    for k in range(COUNT):
        Image.fromarray(ramp).save(tmp_path / f"{k}.JPEG", format="PNG")
    stream = loader(tmp_path, "train", batch_size=COUNT)
    images = torch.cat([b.inputs for epoch in range(30) for b in stream.epoch(epoch)])
    place = 255 * (images * torch.tensor([0.2, 0.25, 0.5]).view(3, 1, 1) + torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1))
    middle = place[:, :, SIZE // 2]  # [B, C, W]
    across = (middle[:, 0, -4] - middle[:, 0, 3]) / (SIZE - 7) * SIZE  # signed: negative where it is flipped
    down = (place[:, 1, -4, 0] - place[:, 1, 3, 0]) / (SIZE - 7) * SIZE
    area, ratio = across.abs() * down / (200 * 250), across.abs() / down
    assert len({round(a, 3) for a in area.tolist()}) > 200
    assert area.min() > 0.06 and area.max() < 1.05 and abs(area.mean() - 0.5) < 0.08
    assert ratio.min() > 0.7 and ratio.max() < 1.45 and abs(ratio.log().mean()) < 0.05
    assert abs((across < 0).float().mean() - 0.5) < 0.12


@pytest.mark.parametrize("augment", ["none", "flip", "crop_flip"])
def test_other_augmentations_work_on_the_resized_image(folder, augment):
    stream = loader(folder, "train", augment=augment, batch_size=COUNT)
    (batch,) = stream.epoch()
    assert batch.inputs.shape == (COUNT, 3, SIZE, SIZE)
    centre = torch.cat([b.inputs for b in loader(folder, "test").epoch()])[batch.labels]
    same = torch.stack([(batch.inputs - c).abs().amax((1, 2, 3)) < 0.03 for c in (centre, centre.flip(-1))])
    if augment == "crop_flip":
        assert same.any(0).sum() < COUNT
    else:
        assert same.any(0).all() and (augment == "flip") == same[1].any()


def test_a_large_jpeg_is_decoded_small_and_looks_the_same(tmp_path, monkeypatch):
    Image.fromarray(smooth(1200, 1600)).save(tmp_path / "large.JPEG", quality=95)
    plain = open_image(tmp_path / "large.JPEG")
    for box in ((0, 0, 1200, 1600), (900, 1200, 300, 400), (1, 3, 1111, 1371)):
        top, left, height, width = box
        small = read_box(tmp_path / "large.JPEG", lambda h, w, box=box: (box, (75, 100)))
        expected = plain.crop((left, top, left + width, top + height)).resize((100, 75), Image.Resampling.BILINEAR)
        difference = np.abs(small.permute(1, 2, 0).numpy().astype(int) - np.asarray(expected).astype(int))
        assert difference.max() <= 6 and difference.mean() < 1  # half a pixel of the reduced image at most

    sizes = []
    monkeypatch.setattr(Image.Image, "crop", lambda image, box: sizes.append(image.size) or image.copy())
    read_box(tmp_path / "large.JPEG", lambda h, w: ((0, 0, h, w), (75, 100)))
    read_box(tmp_path / "large.JPEG", lambda h, w: ((0, 0, 100, 100), (75, 100)))
    assert sizes == [
        (200, 150),
        (1600, 1200),
    ]  # an eighth, the smallest that JPEG offers; and all that a small box needs


@pytest.mark.parametrize(
    "mode, format", [("RGB", "PNG"), ("L", "JPEG"), ("CMYK", "JPEG"), ("P", "PNG"), ("RGBA", "PNG")]
)
def test_every_mode_and_format_arrives_as_rgb(tmp_path, mode, format):
    original = Image.fromarray(smooth(48, 64))
    original.convert(mode).save(tmp_path / "x.JPEG", format=format)
    image = read_box(tmp_path / "x.JPEG", lambda h, w: ((0, 0, h, w), (48, 64))).permute(1, 2, 0).numpy()
    expected = original.convert("L").convert("RGB") if mode == "L" else original
    assert np.array_equal(image, open_image(tmp_path / "x.JPEG"))
    assert np.abs(image.astype(int) - np.asarray(expected).astype(int)).mean() < (20 if mode == "P" else 3)


def damage(folder, kind: str) -> str:
    path = folder / "3.JPEG"
    content = path.read_bytes()
    path.unlink()
    if kind != "missing":
        path.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "text": b"<html>"}[kind])
    return str(path)


@pytest.mark.parametrize("kind", ["truncated", "empty", "text", "missing"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_damaged_file_is_named_in_one_sentence(folder, kind, split):
    path = damage(folder, kind)
    with pytest.raises(UserError) as error:
        list(loader(folder, split, batch_size=5).epoch())
    assert str(error.value).startswith(f"{path} is not a readable image") and "on_error=skip" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_user_error_in_a_worker_keeps_its_message(folder):
    path = damage(folder, "truncated")
    with pytest.raises(UserError) as error:
        list(loader(folder, "test", workers=2).epoch())
    assert str(error.value).startswith(f"{path} is not a readable image (") and "Traceback" not in str(error.value)


def test_a_damaged_file_can_be_skipped_with_one_warning(folder, caplog):
    path = damage(folder, "empty")
    stream = loader(folder, "test", workers=1, on_error="skip", batch_size=3)
    with caplog.at_level(logging.WARNING, logger="l2d"):
        for _ in range(2):
            batches = list(stream.epoch())
            assert [b.labels.tolist() for b in batches] == [[0, 1, 2], [4, 5], [6, 7, 8], [9]]
            assert batches[1].answers.tolist() == [[4, 4], [5, 5]]
    assert [path in record.getMessage() for record in caplog.records] == [True]
    whole = list(loader(folder, "test", on_error="skip", batch_size=1).epoch())
    assert len(whole) == COUNT - 1  # a batch of nothing is no batch


def test_streaming_leaves_the_runs_random_numbers_alone_and_ends_its_workers(folder):
    before, state = set(multiprocessing.active_children()), torch.get_rng_state()  # another test's may end meanwhile
    stream = loader(folder, "train", workers=2)
    list(stream.epoch())
    assert torch.equal(torch.get_rng_state(), state)
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    list(stream.epoch(1))
    assert set(multiprocessing.active_children()) - before == workers
    del stream
    assert not workers & set(multiprocessing.active_children())
