"""Augmentation and the resident loader: exact windows, torchvision's distribution of boxes, torchvision's pixels."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from l2d.data import Images, Loader, Preprocessing, Split
from l2d.data.augment import AUGMENTATIONS, centre_crop, random_box, random_boxes, resample, resample_bytes
from l2d.data.seeds import mix
from l2d.errors import UserError
from l2d.place import Place


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=rng(9))


def test_crop_flip_gives_one_of_the_81_windows_or_its_mirror_image():
    image = noise(1, 3, 32, 32)
    out = AUGMENTATIONS["crop_flip"](image.expand(3000, -1, -1, -1), (32, 32), rng())
    padded = tv.pad(image[0], [4, 4, 4, 4], padding_mode="reflect")
    windows = [padded[:, t : t + 32, left : left + 32] for t in range(9) for left in range(9)]
    place = {w.numpy().tobytes(): (i, m) for i, v in enumerate(windows) for m, w in enumerate((v, v.flip(-1)))}
    assert len(place) == 162
    found = [place[sample.contiguous().numpy().tobytes()] for sample in out]  # KeyError if it is none of them
    counts = torch.bincount(torch.tensor([i for i, _ in found]), minlength=81)
    assert counts.min() >= 12 and counts.max() <= 70  # 37 expected, binomial
    assert abs(sum(m for _, m in found) / 3000 - 0.5) < 0.04


def test_crop_flip_of_larger_images_takes_windows_of_the_padded_whole():
    image = noise(1, 1, 12, 16)
    padded = tv.pad(image[0], [4, 4, 4, 4], padding_mode="reflect")
    windows = [padded[:, t : t + 9, left : left + 8] for t in range(12) for left in range(17)]
    expected = {w.contiguous().numpy().tobytes() for v in windows for w in (v, v.flip(-1))}
    out = AUGMENTATIONS["crop_flip"](image.expand(5000, -1, -1, -1), (9, 8), rng())
    assert {sample.contiguous().numpy().tobytes() for sample in out} == expected


def test_every_sample_of_a_batch_has_its_own_randomness_and_the_generator_decides_it():
    images = noise(1, 3, 40, 40).expand(16, -1, -1, -1)
    for name in ("crop_flip", "random_resized_crop_flip"):
        first, again, other = (AUGMENTATIONS[name](images, (40, 40), rng(s)) for s in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert len({sample.numpy().tobytes() for sample in first}) > 10
    flips = {sample.numpy().tobytes() for sample in AUGMENTATIONS["flip"](images, (40, 40), rng())}
    assert flips == {images[0].numpy().tobytes(), images[0].flip(-1).numpy().tobytes()}


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("height, width", [(256, 256), (375, 500), (60, 400), (400, 60), (7, 5)])
def test_boxes_have_torchvisions_distribution(height, width, one_by_one):
    count = 3000
    with torch.random.fork_rng():
        torch.manual_seed(3)
        crop = v2.RandomResizedCrop(224)
        picture = [torch.empty(3, height, width)]
        drawn = [crop.make_params(picture) for _ in range(count)]
    theirs = torch.tensor([[d[k] for k in ("top", "left", "height", "width")] for d in drawn]).double()
    if one_by_one:
        ours = torch.tensor([random_box(height, width, mix(0, i)) for i in range(count)]).double()
    else:
        ours = random_boxes(torch.full((count,), height), torch.full((count,), width), rng()).double()
    top, left, h, w = ours.T
    assert (top >= 0).all() and (left >= 0).all() and (h > 0).all() and (w > 0).all()
    assert (top + h <= height).all() and (left + w <= width).all()
    facts = [torch.cat((b, (b[:, 2] * b[:, 3])[:, None], (b[:, 3] / b[:, 2])[:, None]), 1) for b in (ours, theirs)]
    for mine, his in zip(*(f.T for f in facts), strict=True):  # top, left, height, width, area, ratio
        spread = torch.cat((mine, his)).std() + 1e-9
        assert abs(mine.mean() - his.mean()) < 0.11 * spread  # 4 standard errors of a difference of means
        values = torch.cat((mine, his)).unique()  # Kolmogorov-Smirnov distance, its 1e-4 quantile
        cdf = [torch.searchsorted(x.sort()[0], values, right=True) / count for x in (mine, his)]
        assert (cdf[0] - cdf[1]).abs().max() < 2.23 * (2 / count) ** 0.5


def test_boxes_of_images_of_different_sizes_in_one_batch():
    boxes = random_boxes(torch.tensor([10, 1000]), torch.tensor([1000, 10]), rng())
    assert boxes.tolist() == [[0, 493, 10, 13], [493, 0, 13, 10]]  # nothing fits: the widest 4:3 box, in the centre
    assert random_box(10, 1000, 0) == (0, 493, 10, 13) and random_box(1000, 10, 0) == (493, 0, 13, 10)


BOXES = torch.tensor([[0, 0, 64, 64], [5, 7, 20, 31], [40, 3, 24, 18], [10, 50, 8, 14], [63, 63, 1, 1]])
MIRRORED = torch.tensor([False, True, False, True, False])


def resized_crops(images, size, **options):
    crops = [tv.resized_crop(i, *box, size, **options) for i, box in zip(images, BOXES.tolist(), strict=True)]
    return torch.stack([c.flip(-1) if m else c for c, m in zip(crops, MIRRORED.tolist(), strict=True)])


def bytes_resampled(images, size):
    jobs = zip(images.split(1), BOXES.tolist(), MIRRORED.tolist(), strict=True)
    return torch.stack([resample_bytes(image, box, mirrored, size) for image, box, mirrored in jobs])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [(32, 32), (48, 40)])
def test_bytes_are_resampled_as_torchvision_does(size, layout):
    images = noise(5, 3, 64, 64).contiguous(memory_format=layout)
    ours = bytes_resampled(images, size)
    assert ours.dtype == torch.uint8
    assert (ours.int() - resized_crops(images, size, antialias=True).int()).abs().max() <= 1


@pytest.mark.parametrize("size", [(32, 32), (48, 40)])
def test_floats_are_resampled_as_torchvision_does_without_antialias(size):
    images = torch.rand(5, 3, 64, 64, generator=rng())
    torch.testing.assert_close(
        resample(images, BOXES, MIRRORED, size), resized_crops(images, size, antialias=False), atol=1e-4, rtol=0
    )


def test_the_two_ways_to_resample_agree_where_nothing_is_made_smaller():
    images = noise(5, 3, 64, 64)
    floats = resample(images, BOXES, MIRRORED, (64, 64))
    assert (bytes_resampled(images, (64, 64)) - floats).abs().max() <= 1.01


def test_augmentation_stays_on_a_cuda_device():
    with FakeTensorMode():
        images = torch.empty(6, 3, 40, 40, dtype=torch.uint8, device="cuda")
        for name, dtype in (
            ("flip", torch.uint8),
            ("crop_flip", torch.uint8),
            ("random_resized_crop_flip", torch.float32),
        ):
            out = AUGMENTATIONS[name](images, (32, 32), None)
            assert (out.device.type, out.shape, out.dtype) == ("cuda", (6, 3, 32, 32), dtype)


def test_centre_crop_takes_the_middle():
    image = torch.arange(5 * 6).view(1, 1, 5, 6)
    assert centre_crop(image, (3, 2)).tolist() == [[[[8, 9], [14, 15], [20, 21]]]]
    for size in ((2, 1), (2, 3), (5, 5), (1, 6)):  # odd margins too
        assert torch.equal(centre_crop(image, size), tv.center_crop(image, size))


MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)


def images(augment: str = "none", side: int = 12, size: int = 8) -> Images:
    return Images(noise(10, 3, side, side), Preprocessing((3, size, size), MEAN, STD, augment=augment))


def loader(inputs: Images, train: bool, seed: int = 0) -> Loader:
    number = torch.arange(10)
    answers = number[:, None]  # [N, 1]: tells which sample, and which epoch
    split = Split(inputs, number, answers, lambda epoch: answers + 100 * epoch)
    return Loader(split, Place(layout=torch.channels_last), 4, seed, train)


def test_evaluation_sees_the_centre_of_every_image_normalised_in_order():
    inputs = images("random_resized_crop_flip")
    batches = list(loader(inputs, train=False).epoch())
    assert [len(b.labels) for b in batches] == [4, 4, 2]
    centre = inputs.pixels[:, :, 2:10, 2:10] / 255
    expected = (centre - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    torch.testing.assert_close(torch.cat([b.inputs for b in batches]), expected)
    assert torch.cat([b.labels for b in batches]).tolist() == list(range(10))
    assert batches[0].inputs.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("augment", sorted(AUGMENTATIONS))
def test_training_shuffles_drops_the_rest_and_repeats_itself_from_the_seed(augment):
    def run(seed, epoch):
        return list(loader(images(augment), train=True, seed=seed).epoch(epoch))

    first, again, later, other = run(0, 1), run(0, 1), run(0, 2), run(1, 1)
    assert [tuple(b.inputs.shape) for b in first] == [(4, 3, 8, 8)] * 2
    assert all(torch.equal(x, y) for a, b in zip(first, again, strict=True) for x, y in zip(a, b, strict=True))
    orders = [torch.cat([b.labels for b in batches]).tolist() for batches in (first, later, other)]
    assert len({tuple(o) for o in orders}) == 3 and all(len(set(o)) == 8 for o in orders)
    assert all(torch.equal(b.answers[:, 0], b.labels + 100) for b in first)  # the answers of epoch 1


@pytest.mark.parametrize("kept", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("augment", sorted(AUGMENTATIONS))
def test_batches_do_not_depend_on_the_layout_the_images_are_kept_in(augment, kept):
    plain, other = images(augment), images(augment)
    other.pixels = other.pixels.contiguous(memory_format=kept)
    for a, b in zip(loader(plain, train=True).epoch(3), loader(other, train=True).epoch(3), strict=True):
        assert torch.equal(a.inputs, b.inputs) and torch.equal(a.labels, b.labels)
        assert b.inputs.is_contiguous(memory_format=torch.channels_last)


def test_crops_of_bytes_on_the_cpu_equal_those_of_the_batch():
    """Image by image in threads, or in one grid_sample as on a GPU: the same draws, and pixels at most one byte apart."""
    inputs = images("random_resized_crop_flip", side=12, size=12)  # nothing is made smaller
    resident = loader(inputs, train=True)
    for step, batch in enumerate(resident.epoch(1)):
        there = resident.feed.prepare(inputs.pixels[batch.samples], 1, step)
        apart = (batch.inputs - there).abs() * torch.tensor(STD)[:, None, None] * 255
        assert apart.max() <= 1.01


def test_unknown_augmentations_and_small_images_are_rejected():
    with pytest.raises(UserError, match=r"dataset\.augment=blur is not one of none, flip, crop_flip, random_resized"):
        loader(images("blur"), train=True)
    with pytest.raises(UserError, match="kept at 6 x 6, smaller than the 8 x 8"):
        loader(images(side=6), train=False)
    assert next(loader(images("crop_flip", side=5, size=5), train=True).epoch()).inputs.shape[2:] == (5, 5)
    with pytest.raises(UserError, match=r"dataset\.augment=crop_flip .* side of 4"):
        next(loader(images("crop_flip", side=4, size=4), train=True).epoch())


def test_mixed_seeds_differ_in_every_argument():
    seeds = {mix(a, b, c) for a in range(10) for b in range(10) for c in range(-1, 10)}
    assert len(seeds) == 1100 and all(0 <= s < 2**63 for s in seeds)
