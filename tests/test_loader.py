"""Batches: normalised images, each with its own label and answers, in an order that follows from the seed."""

import numpy as np
import pytest
import torch

from l2d.data import Images, Loader, Preprocessing, Split
from l2d.data.augment import AUGMENTATIONS
from l2d.data.batch_memory import empty_floats
from l2d.place import Place

COUNT = 23


@pytest.fixture
def numbered():
    """A split whose sample i carries i in its pixels, its label and its answers."""
    number = torch.arange(COUNT)
    pixels = number.to(torch.uint8)[:, None, None, None].expand(COUNT, 3, 8, 8).contiguous()
    preprocessing = Preprocessing((3, 8, 8), (0.5, 0.25, 0.0), (0.2, 0.5, 1.0), augment="crop_flip")
    return Split(Images(pixels, preprocessing), number, torch.stack([number, number + 100], dim=1))


def loader(split: Split, train: bool, batch_size: int = 5, seed: int = 0) -> Loader:
    return Loader(split, Place(), batch_size, seed, train)


def test_evaluation_sees_every_sample_once_in_order(numbered):
    batches = list(loader(numbered, train=False).epoch())
    assert [len(b.labels) for b in batches] == [5, 5, 5, 5, 3]
    assert len(loader(numbered, train=False)) == 5
    assert torch.cat([b.labels for b in batches]).tolist() == list(range(COUNT))


def test_training_drops_the_incomplete_batch_and_repeats_nothing(numbered):
    batches = list(loader(numbered, train=True).epoch(0))
    assert [len(b.labels) for b in batches] == [5, 5, 5, 5]
    assert len(loader(numbered, train=True)) == 4
    seen = torch.cat([b.labels for b in batches]).tolist()
    assert len(set(seen)) == 20
    assert seen != sorted(seen)


def test_a_batch_is_at_most_the_whole_split(numbered):
    (batch,) = loader(numbered, train=True, batch_size=1000).epoch(0)
    assert sorted(batch.labels.tolist()) == list(range(COUNT))


@pytest.mark.parametrize("train", [False, True])
def test_images_labels_and_answers_stay_together_and_pixels_are_normalised(numbered, train):
    """(i / 255 - mean) / std, worked out channel by channel; a constant image survives crop and flip."""
    for images, labels, answers, samples in loader(numbered, train).epoch(2):
        assert images.dtype == torch.float32
        assert torch.equal(samples, labels)
        assert answers.tolist() == [[y, y + 100] for y in labels.tolist()]
        for image, y in zip(images, labels.tolist(), strict=True):
            for channel, mean, std in zip(image, (0.5, 0.25, 0.0), (0.2, 0.5, 1.0), strict=True):
                torch.testing.assert_close(channel, torch.full((8, 8), (y / 255 - mean) / std))


def test_float_images_are_used_as_they_are(numbered):
    numbered.inputs = Images(torch.randn(COUNT, 3, 8, 8))
    images = torch.cat([b.inputs for b in loader(numbered, train=False).epoch()])
    assert torch.equal(images, numbered.inputs.pixels)


def test_a_bare_tensor_is_images_in_memory_as_the_model_sees_them():
    split = Split(torch.randn(4, 3, 8, 8), torch.arange(4))
    assert isinstance(split.inputs, Images) and split.inputs.preprocessing.shape == (3, 8, 8)
    assert split.answers.shape == (4, 0)
    (batch,) = loader(split, train=False).epoch()
    assert torch.equal(batch.inputs, split.inputs.pixels)


def test_samples_taken_from_a_split_keep_their_pixels_labels_names_and_answers(numbered):
    numbered.inputs.names = [f"{i}.png" for i in range(COUNT)]
    numbered.redraw = lambda epoch: numbered.answers + epoch
    taken = numbered.take(torch.tensor([7, 3]))
    assert taken.inputs.pixels[:, 0, 0, 0].tolist() == taken.labels.tolist() == [7, 3]
    assert list(taken.inputs.ids()) == ["7.png", "3.png"]
    assert taken.answers.tolist() == [[7, 107], [3, 103]]
    assert taken.redraw(2).tolist() == [[9, 109], [5, 105]]


def test_order_follows_from_seed_and_epoch_alone(numbered):
    def order(seed: int, epoch: int) -> list[int]:
        return torch.cat([b.labels for b in loader(numbered, train=True, seed=seed).epoch(epoch)]).tolist()

    used = loader(numbered, train=True)
    for epoch in range(3):
        list(used.epoch(epoch))
    torch.manual_seed(99)
    assert torch.cat([b.labels for b in used.epoch(1)]).tolist() == order(0, 1)
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_answers_that_are_redrawn_are_those_of_the_epoch(numbered):
    numbered.redraw = lambda epoch: torch.full((COUNT, 2), epoch)
    train = loader(numbered, train=True)
    for epoch in (0, 1, 5):
        assert all((b.answers == epoch).all() for b in train.epoch(epoch))


def test_augmentation_repeats_for_its_seed_epoch_and_step_only(numbered):
    numbered.inputs.pixels = torch.randint(256, (COUNT, 3, 8, 8), dtype=torch.uint8)

    def images(seed: int, epoch: int) -> list[torch.Tensor]:
        return [b.inputs for b in loader(numbered, train=True, batch_size=COUNT, seed=seed).epoch(epoch)]

    assert torch.equal(images(0, 1)[0], images(0, 1)[0])
    assert not torch.equal(images(0, 1)[0].sort(0)[0], images(0, 2)[0].sort(0)[0])
    assert not torch.equal(images(0, 1)[0].sort(0)[0], images(1, 1)[0].sort(0)[0])


def test_crop_flip_is_a_window_of_the_reflected_image_perhaps_mirrored():
    """Every result is one of the 9 x 9 x 2 that numpy makes; samples differ in theirs, and half are mirrored."""
    rng = np.random.default_rng(0)
    count, image = 400, rng.integers(0, 256, (3, 16, 16), dtype=np.uint8)
    padded = np.pad(image, [(0, 0), (4, 4), (4, 4)], mode="reflect")
    possible = {}
    for top in range(9):
        for left in range(9):
            window = padded[:, top : top + 16, left : left + 16]
            possible[window.tobytes()] = (top, left, False)
            possible[window[:, :, ::-1].tobytes()] = (top, left, True)
    assert len(possible) == 162
    batch = torch.from_numpy(image).expand(count, 3, 16, 16)
    out = AUGMENTATIONS["crop_flip"](batch, (16, 16), torch.Generator().manual_seed(0)).to(torch.uint8)
    seen = [possible[sample.numpy().tobytes()] for sample in out]
    assert {top for top, _, _ in seen} == {left for _, left, _ in seen} == set(range(9))
    assert len(set(seen)) > 120  # 162 places, 400 draws: 148 expected
    assert 150 < sum(mirrored for _, _, mirrored in seen) < 250


def test_flip_mirrors_whole_images_left_to_right():
    images = torch.arange(2 * 3 * 4 * 4).view(2, 3, 4, 4).repeat(50, 1, 1, 1)
    out = AUGMENTATIONS["flip"](images, (4, 4), torch.Generator().manual_seed(0))
    mirrored = [torch.equal(o, i[:, :, [3, 2, 1, 0]]) for o, i in zip(out, images, strict=True)]
    kept = [torch.equal(o, i) for o, i in zip(out, images, strict=True)]
    assert all(a != b for a, b in zip(mirrored, kept, strict=True))
    assert 30 < sum(mirrored) < 70


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_memory_of_a_batch_is_given_out_again_only_when_nothing_refers_to_it(layout):
    first = empty_floats((2, 3, 4, 4), layout).zero_()
    view, address = first[1:, :, 2:], first.data_ptr()
    del first
    others = [empty_floats((2, 3, 4, 4), layout).fill_(1) for _ in range(6)]
    assert not view.any()
    assert len({other.data_ptr() for other in others}) == 6
    del view
    again = [empty_floats((1, 3, 4, 4), layout) for _ in range(6)]  # of another size, in the same memory
    assert address in {batch.data_ptr() for batch in again}
    assert all(batch.data_ptr() % 64 == 0 and batch.is_contiguous(memory_format=layout) for batch in [*others, *again])


def test_memory_of_a_batch_is_kept_for_the_backward_pass():
    weight = torch.ones(4, requires_grad=True)
    product = (empty_floats((1, 1, 2, 4), torch.contiguous_format).fill_(2) * weight).sum()
    for _ in range(6):
        empty_floats((1, 1, 2, 4), torch.contiguous_format).fill_(9)
    product.backward()
    assert weight.grad.tolist() == [4.0] * 4
