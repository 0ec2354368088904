"""Corruptions against loops, scipy and Pillow. N images, C channels, H x W pixels."""

import colorsys
import io
import itertools
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from scipy import ndimage
from sklearn.datasets import load_sample_images
from torch import Generator, Tensor

from nonneg import corruptions
from nonneg.corruptions import NAMES, SEVERITIES, TABLE, corrupt
from nonneg.errors import BadInput

FIXED = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}  # nothing is drawn


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


@cache
def tiles(size: int = 32, every: int = 5) -> Tensor:
    """Natural images: tiles of scikit-learn's two photographs."""
    cut = []
    for photograph in load_sample_images().images:
        x = torch.from_numpy(photograph.copy()).permute(2, 0, 1)
        cut.append(x.unfold(1, size, size).unfold(2, size, size).permute(1, 2, 0, 3, 4).reshape(-1, 3, size, size))
    return torch.cat(cut)[::every].contiguous()


def change(name: str, severity: int, x: Tensor) -> float:
    return (corrupt(x, name, severity, generator=seeded()).float() - x.float()).abs().mean().item()


def detail_left(name: str, severity: int, x: Tensor) -> float:
    """The regression of the corrupted image's detail (what a 3 x 3 mean takes away) on the clean image's."""
    y = corrupt(x, name, severity, generator=seeded()).float()
    a, b = (z - F.avg_pool2d(z, 3, 1, 1, count_include_pad=False) for z in (x.float(), y))
    return ((a * b).sum() / a.square().sum()).item()


# All fifteen


def test_the_standard_fifteen_with_five_values_each() -> None:
    standard = (
        *("gaussian_noise", "shot_noise", "impulse_noise"),
        *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
        *("snow", "frost", "fog", "brightness"),
        *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    )
    assert standard == NAMES
    for name, entry in TABLE.items():
        assert entry.function.__name__ == name and entry.small.keys() == entry.large.keys()
        assert all(len(five) == 5 for five in (*entry.small.values(), *entry.large.values()))
        assert len(set(zip(*entry.small.values(), strict=True))) == 5  # no two severities are the same


@pytest.mark.parametrize(
    "shape", [(2, 1, 8, 8), (2, 3, 28, 28), (1, 3, 33, 20), (2, 1, 65, 65), (1, 3, 96, 70)], ids=str
)
@pytest.mark.parametrize("name", NAMES)
def test_any_size_and_one_or_three_channels(name: str, shape: tuple[int, ...]) -> None:
    x = tiles(96, 12)[: shape[0], : shape[1], : shape[2], : shape[3]].contiguous()
    before = x.clone()
    y = corrupt(x, name, 5, generator=seeded())
    assert y.shape == x.shape and y.dtype == torch.uint8 and y.device == x.device
    assert (x == before).all() and (y != x).any()


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("name", NAMES)
def test_a_few_pixels_are_enough(name: str, size: int) -> None:
    x = tiles()[:3, :, :size, :size]
    for severity in SEVERITIES:
        assert corrupt(x, name, severity, generator=seeded()).shape == x.shape


@pytest.mark.parametrize("value", [0, 255])
@pytest.mark.parametrize("name", NAMES)
def test_flat_images_stay_finite(name: str, value: int) -> None:
    x = torch.full((2, 3, 16, 16), value / 255)
    five = {parameter: five[4] for parameter, five in TABLE[name].small.items()}
    assert TABLE[name].function(x, seeded(), **five).isfinite().all()  # a uint8 would hide a nan


@pytest.mark.parametrize("name", NAMES)
def test_the_generator_decides_and_each_image_has_its_own_draw(name: str) -> None:
    same = tiles()[40:41].repeat(2, 1, 1, 1)
    once, again, other = (corrupt(same, name, 5, generator=seeded(s)) for s in (1, 1, 2))
    assert (once == again).all()
    assert (once == other).all() == (name in FIXED)
    assert (once[0] == once[1]).all() == (name in FIXED)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_in_memory_makes_no_difference(name: str) -> None:
    x = tiles()[40:44]
    last = x.to(memory_format=torch.channels_last)
    assert (corrupt(last, name, 3, generator=seeded()) == corrupt(x, name, 3, generator=seeded())).all()


@pytest.mark.parametrize("name", sorted(FIXED))
def test_parts_make_no_difference(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    x = tiles()[:7]
    whole = corrupt(x, name, 4, generator=seeded())
    monkeypatch.setitem(corruptions.PART, "cpu", 2 * x[0].numel())  # 2, 2, 2 and 1
    assert (corrupt(x, name, 4, generator=seeded()).int() - whole.int()).abs().max() <= 1  # a sum in another order


def test_parts_have_draws_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tiles()[40:41].repeat(4, 1, 1, 1)
    monkeypatch.setitem(corruptions.PART, "cpu", 2 * x[0].numel())
    y = corrupt(x, "gaussian_noise", 1, generator=seeded())
    assert (y[0] != y[2]).any()


# Severity. Exempt from the growth of the mean change, by their parameters: elastic_transform (its affine part shrinks),
# glass_blur and frost (their later severities blur and darken), motion_blur (3 and 4 differ in the radius alone).


@pytest.mark.parametrize(
    "name", [n for n in NAMES if n not in ("glass_blur", "motion_blur", "frost", "elastic_transform")]
)
def test_the_change_grows_with_severity(name: str) -> None:
    changes = [change(name, s, tiles()) for s in SEVERITIES]
    assert all(a < b for a, b in itertools.pairwise(changes)), changes


@pytest.mark.parametrize("size", [32, 96])
@pytest.mark.parametrize("name", ["glass_blur", "motion_blur", "frost", "fog", "contrast"])
def test_detail_falls_with_severity(name: str, size: int) -> None:
    left = [detail_left(name, s, tiles(size, 2 if size > 32 else 5)) for s in SEVERITIES]
    assert all(a >= b - 2e-3 for a, b in itertools.pairwise(left)) and left[-1] < 0.8 * left[0], left


@pytest.mark.parametrize("size", [32, 96])
def test_elastic_tears_neighbours_apart_more_with_severity(size: int) -> None:
    columns = TABLE["elastic_transform"].small if size == 32 else TABLE["elastic_transform"].large
    strain = []
    for s in range(5):
        x = torch.zeros(20, 1, size, size)
        dy, _ = corruptions.displacement(x, columns["bend"][s] * size, columns["sigma"][s] * size, seeded())
        strain.append(dy.diff(dim=1).square().mean().sqrt().item())
    assert all(a < b for a, b in itertools.pairwise(strain)), strain


def test_large_images_take_imagenets_parameters() -> None:
    grey = torch.full((4, 3, 64, 64), 128, dtype=torch.uint8)
    for size, std in ((64, 0.04), (65, 0.08)):
        x = F.pad(grey, (0, size - 64), value=128)
        assert corrupt(x, "gaussian_noise", 1, generator=seeded()).float().std() / 255 == pytest.approx(std, rel=0.03)


# Noise


@pytest.mark.parametrize("severity", SEVERITIES)
def test_noise_has_the_stated_strength(severity: int) -> None:
    x = torch.full((100, 3, 32, 32), 102, dtype=torch.uint8)  # 0.4
    noisy = {n: corrupt(x, n, severity, generator=seeded()).double() / 255 for n in NAMES[:3]}
    std, photons, share = (next(iter(TABLE[n].small.values()))[severity - 1] for n in NAMES[:3])
    assert noisy["gaussian_noise"].std() == pytest.approx(std, rel=0.01)
    shot = corruptions.shot_noise(x.float() / 255, seeded(), photons)  # 8 bits would not hold whole photons evenly
    assert shot.mean() == pytest.approx(0.4, rel=0.01) and noisy["shot_noise"].mean() == pytest.approx(0.4, rel=0.01)
    assert shot.var() == pytest.approx(0.4 / photons, rel=0.02)
    for value in (0, 1):
        assert (noisy["impulse_noise"] == value).double().mean() == pytest.approx(share / 2, rel=0.1)
    assert (noisy["impulse_noise"] == 0.4).double().mean() == pytest.approx(1 - share, rel=0.01)


# Blur


@pytest.mark.parametrize(("radius", "soften"), [(0.5, 0.6), (1.5, 0.1), (4, 0.5), (10, 0.5)])
def test_defocus_matches_scipy_with_a_disk_made_by_hand(radius: float, soften: float) -> None:
    reach, taps = 13, 1 if radius <= 8 else 2
    disk = np.array(
        [[float(i * i + j * j <= radius**2) for i in range(-reach, reach + 1)] for j in range(-reach, reach + 1)]
    )
    bell = np.array([math.exp(-(d**2) / (2 * soften**2)) for d in range(-taps, taps + 1)])
    kernel = ndimage.convolve(disk / disk.sum(), np.outer(bell, bell) / bell.sum() ** 2, mode="constant")
    x = tiles()[40, 0].double() / 255
    expected = ndimage.convolve(x.numpy(), kernel, mode="mirror")
    found = corruptions.defocus_blur(x[None, None], seeded(), radius, soften)[0, 0]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-9)


@pytest.mark.parametrize(("height", "width", "reach"), [(9, 12, 1), (14, 11, 2), (20, 9, 4), (8, 8, 4), (5, 30, 2)])
def test_glass_takes_pixels_exactly_as_one_loop_over_them(height: int, width: int, reach: int) -> None:
    dy, dx = torch.randint(-reach, reach, (2, 3, height * width), generator=seeded())
    found = torch.arange(height * width).repeat(3, 1)
    for _ in range(2):
        corruptions.take_nearby(found, dy * width + dx, width, reach)
    for n in range(3):
        slow, ys, xs = (
            np.arange(height * width).reshape(height, width),
            dy[n].view(height, width),
            dx[n].view(height, width),
        )
        for _ in range(2):
            for h in range(height - reach, reach, -1):
                for w in range(width - reach, reach, -1):
                    slow[h, w] = slow[h + int(ys[h, w]), w + int(xs[h, w])]
        assert (found[n].numpy() == slow.ravel()).all()


@pytest.mark.parametrize("angle", [-135.0, -31.0, 0.0, 45.0, 100.0])
def test_a_streak_matches_a_loop(angle: float) -> None:
    x, radius, sigma = torch.rand(2, 2, 9, 13, generator=seeded()), 3, 2.0
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(7)]
    expected = torch.zeros_like(x)
    for r in range(9):
        for c in range(13):
            for i, w in enumerate(weights):
                y = min(8, max(0, r + math.ceil(i * math.sin(math.radians(angle)) - 0.5)))
                z = min(12, max(0, c + math.ceil(i * math.cos(math.radians(angle)) - 0.5)))
                expected[:, :, r, c] += w / sum(weights) * x[:, :, y, z]
    found = corruptions.streak(x, torch.tensor([angle, angle]), radius, sigma)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("size", [32, 65])
def test_zoom_blur_matches_a_loop_with_scipy(size: int) -> None:
    x = tiles(96, 12)[:1, :, :size, :size].contiguous()
    factors = np.arange(1, 1.06, 0.01) if size == 32 else np.arange(1, 1.11, 0.01)  # as the original writes them
    pixels = x[0].permute(1, 2, 0).double().numpy() / 255
    total = pixels.copy()
    for factor in factors:
        crop = int(np.ceil(size / factor))
        top = (size - crop) // 2
        large = np.asarray(ndimage.zoom(pixels[top : top + crop, top : top + crop], (factor, factor, 1), order=1))
        trim = (large.shape[0] - size) // 2
        total += large[trim : trim + size, trim : trim + size]
    expected = np.round(total / (len(factors) + 1) * 255)
    found = corrupt(x, "zoom_blur", 1, generator=seeded())[0].permute(1, 2, 0).numpy()
    assert np.abs(found - expected).max() <= 1


@pytest.mark.parametrize(("edge", "truncate"), [("nearest", 4.0), ("reflect", 3.0)])
@pytest.mark.parametrize("sigma", [0.05, 0.4, 1.5, 20.0])
def test_the_gaussian_is_scipys(sigma: float, edge: Any, truncate: float) -> None:
    x = torch.rand(1, 1, 11, 17, generator=seeded(), dtype=torch.float64)
    expected = ndimage.gaussian_filter(x[0, 0].numpy(), sigma, mode=edge, truncate=truncate)
    found = corruptions._gaussian(x, sigma, truncate=truncate, edge=edge)[0, 0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-12)


# Weather


def test_plasma_matches_a_loop_over_points() -> None:
    side, decay = 16, 1.7
    found = corruptions.plasma(2, 9, decay, seeded())[:, 0]
    drawn, heights, step, reach = seeded(), np.zeros((2, side, side)), side, 1.0
    while step > 1:
        half, count = step // 2, side // step
        for starts, around in (
            ((half, half), [(-half, -half), (-half, half), (half, -half), (half, half)]),
            ((0, half), [(0, -half), (0, half), (-half, 0), (half, 0)]),
            ((half, 0), [(0, -half), (0, half), (-half, 0), (half, 0)]),
        ):
            u = (2 * torch.rand(2, count, count, generator=drawn) - 1).double().numpy() * reach
            for i in range(count):
                for j in range(count):
                    y, x = starts[0] + i * step, starts[1] + j * step
                    near = [heights[:, (y + a) % side, (x + b) % side] for a, b in around]
                    heights[:, y, x] = sum(near) / 4 + u[:, i, j]
        step, reach = half, reach / decay**2
    low, high = heights.min((1, 2), keepdims=True), heights.max((1, 2), keepdims=True)
    np.testing.assert_allclose(found.numpy(), (heights - low) / (high - low), atol=1e-5)


def test_fog_keeps_black_images_black_and_white_ones_below_white() -> None:
    x = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    x[1] = 255
    black, white = corrupt(x, "fog", 5, generator=seeded()).double()
    assert (black == 0).all()
    assert white.min() == pytest.approx(255 / 2.5, abs=0.51) and white.max() == 255  # (1 + 1.5 plasma) / 2.5


def test_snow_falls_downwards_and_comes_back_turned() -> None:
    x = torch.zeros(8, 1, 32, 32)
    x += 0.2
    y = corruptions.snow(x, seeded(), 0.1, 0.3, 1.5, 0.6, 8, 4.0, 0.9)
    pale = 0.9 * 0.2 + 0.1 * (1.5 * 0.2 + 0.5)
    assert y.min() == pytest.approx(pale) and y.max() > pale + 0.05
    torch.testing.assert_close(y, y.flip(2, 3))
    along, across = (y.diff(dim=d).abs().mean().item() for d in (2, 3))
    assert along < 0.8 * across  # streaks within 45 degrees of the vertical


def test_frost_has_the_colour_and_contrast_of_its_sheet() -> None:
    x = torch.zeros(400, 3, 32, 32)
    y = corruptions.frost(x, seeded(), 0.7, 0.5, 1.0, 2.0) / 0.5
    means = y.mean((2, 3))
    sheets = torch.tensor(corruptions.SHEETS)
    away = (means.unsqueeze(1) - sheets[:, :3]).abs().amax(2)  # N x 5
    assert away.amin(1).max() < 0.03
    assert len(away.argmin(1).unique()) == 4  # two of the five are the same
    std = y[:, 1].flatten(1).std(1)
    torch.testing.assert_close(std, sheets[away.argmin(1), 3], atol=0.02, rtol=0)


def test_brightness_matches_colorsys_pixel_by_pixel() -> None:
    x = tiles()[:40:8, :, ::4, ::4].contiguous()
    x[0, :, 0, 0] = 0  # black has no hue: it becomes grey
    for severity, add in zip(SEVERITIES, TABLE["brightness"].small["add"], strict=True):
        y = corrupt(x, "brightness", severity, generator=seeded()).permute(0, 2, 3, 1).reshape(-1, 3).tolist()
        for pixel, found in zip(x.permute(0, 2, 3, 1).reshape(-1, 3).tolist(), y, strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*(v / 255 for v in pixel))
            expected = colorsys.hsv_to_rgb(hue, saturation, min(1, value + add))
            assert found == pytest.approx([255 * v for v in expected], abs=0.502)


# Digital


def test_contrast_matches_a_loop() -> None:
    x = tiles()[:3]
    y = corrupt(x, "contrast", 3, generator=seeded())
    for image, found in zip(x.double().numpy(), y.double().numpy(), strict=True):
        for channel, plane in zip(image, found, strict=True):
            np.testing.assert_allclose(plane, (channel - channel.mean()) * 0.4 + channel.mean(), atol=0.502)


@pytest.mark.parametrize("size", [8, 9, 28, 32, 96])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_pixelate_matches_pillow(size: int, severity: int) -> None:
    x = tiles(96, 6)[:, :, :size, :size].contiguous()
    share = (TABLE["pixelate"].small if size <= 64 else TABLE["pixelate"].large)["share"][severity - 1]
    fewer = int(size * share)
    for image, found in zip(x, corrupt(x, "pixelate", severity, generator=seeded()), strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((fewer, fewer), Image.Resampling.BOX)
        expected = np.asarray(picture.resize((size, size), Image.Resampling.BOX), dtype=int)
        assert np.abs(found.permute(1, 2, 0).numpy() - expected).max() <= 1  # Pillow rounds after either pass


@pytest.mark.parametrize(("size", "channels", "within"), [(32, 3, 0.5), (32, 1, 0.25), (96, 3, 0.5), (28, 3, 0.6)])
def test_jpeg_is_pillows_within_half_a_grey_level(size: int, channels: int, within: float) -> None:
    """On average: a coefficient half way between two units may go either way, and moves its block."""
    x = tiles(96, 2)[:, :channels, :size, :size].contiguous()
    for severity in SEVERITIES:
        quality = (TABLE["jpeg_compression"].small if size <= 64 else TABLE["jpeg_compression"].large)["quality"]
        apart = []
        for image, found in zip(x, corrupt(x, "jpeg_compression", severity, generator=seeded()), strict=True):
            file = io.BytesIO()
            Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy()).save(file, "JPEG", quality=quality[severity - 1])
            decoded = np.asarray(Image.open(file), dtype=float).reshape(size, size, channels)
            apart.append(np.abs(found.permute(1, 2, 0).numpy() - decoded))
        assert np.mean(apart) < within and np.mean(np.array(apart) <= 1) > 0.85
        assert np.mean(apart) < 0.2 * change("jpeg_compression", severity, x)  # what JPEG itself does is far more


@pytest.mark.parametrize(("edge", "mode"), [("centre", "mirror"), ("border", "reflect")])
def test_sampling_matches_scipy(edge: Any, mode: str) -> None:
    x = torch.rand(1, 1, 9, 13, generator=seeded())
    rows, columns = (torch.rand(2, 1, 9, 13, generator=seeded(1)) * 40 - 15).unbind()
    expected = ndimage.map_coordinates(x[0, 0].numpy(), [rows[0].numpy(), columns[0].numpy()], order=1, mode=mode)
    found = corruptions._sample(x, rows, columns, edge=edge)[0, 0].numpy()
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_the_affine_map_sends_three_points_where_they_were_drawn() -> None:
    x, shift = torch.zeros(5, 1, 30, 36), 4.0
    rows, columns = corruptions._affine(x, shift, seeded())
    drawn = (2 * torch.rand(5, 3, 2, generator=seeded()) - 1) * shift
    points = torch.tensor([[28, 5], [28, 25], [8, 5]]) + 0.0  # (column, row), a third of the shorter side off (18, 15)
    grid = torch.stack(torch.meshgrid(torch.arange(30.0), torch.arange(36.0), indexing="ij"), -1)
    known = torch.cat([grid.flip(-1), torch.ones(30, 36, 1)], -1).view(-1, 3)
    for n in range(5):
        linear = torch.linalg.lstsq(known, torch.stack([columns[n], rows[n]], -1).view(-1, 2)).solution
        found = torch.cat([points + drawn[n], torch.ones(3, 1)], 1) @ linear
        torch.testing.assert_close(found, points, atol=1e-3, rtol=0)


def test_elastic_without_strength_is_the_image() -> None:
    x = tiles()[:4].float() / 255
    torch.testing.assert_close(corruptions.elastic_transform(x, seeded(), 0.0, 0.0, 0.0), x, atol=1e-4, rtol=0)


# Elsewhere


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_agrees(name: str) -> None:
    x = tiles(every=20)
    found = corrupt(x.cuda(), name, 4, generator=Generator(device="cuda").manual_seed(0)).cpu()
    expected = corrupt(x, name, 4, generator=seeded())
    if name in FIXED:
        assert (found.float() - expected.float()).abs().mean() < 0.5
    else:  # other draws: the same strength
        a, b = ((y.float() - x.float()).abs().mean().item() for y in (found, expected))
        assert a == pytest.approx(b, rel=0.3)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"name": "gausian_noise"}, "did you mean 'gaussian_noise'"),
        ({"severity": 0}, "severity of fog is 0: give a whole number from 1 to 5"),
        ({"severity": 6}, "severity of fog is 6"),
        ({"severity": 1.5}, "severity of fog is 1.5"),
        ({"images": torch.zeros(1, 3, 8, 8)}, "images to corrupt are torch.float32: give torch.uint8"),
        ({"images": torch.zeros(3, 8, 8, dtype=torch.uint8)}, r"shape \(3, 8, 8\): give N x C x H x W"),
        ({"images": torch.zeros(1, 4, 8, 8, dtype=torch.uint8)}, "with C 1 or 3"),
        ({"images": torch.zeros(0, 3, 8, 8, dtype=torch.uint8)}, "at least one"),
        (
            {"images": torch.zeros(1, 3, 8, 8, dtype=torch.uint8, device="meta")},
            "make the generator where the images are",
        ),
    ],
)
def test_bad_input_is_one_sentence(asked: dict[str, Any], message: str) -> None:
    images = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(BadInput, match=message):
        corrupt(**{"images": images, "name": "fog", "severity": 1, "generator": seeded(), **asked})


# Against the library of the published images


@pytest.mark.filterwarnings("ignore")  # the library's own
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("zoom_blur", "frost", "elastic_transform")])
def test_photographs_change_as_much_as_by_the_published_code(name: str) -> None:
    """`pip install imagecorruptions-imaug`, whose parameters are ImageNet-C's.

    Its zoom, frost and elastic transform are not those of the published images (docs/measures.md).
    """
    library = pytest.importorskip("imagecorruptions")
    x = tiles(213, 1)[:6].repeat(4, 1, 1, 1)  # several draws
    near = 0.04 if name in FIXED else 0.15  # 24 draws of fog vary by a tenth
    rng_state = np.random.get_state()
    np.random.seed(0)
    try:
        for severity in SEVERITIES:
            theirs = [
                library.corrupt(np.ascontiguousarray(image.permute(1, 2, 0)), corruption_name=name, severity=severity)
                for image in x
            ]
            other = torch.from_numpy(np.stack(theirs)).permute(0, 3, 1, 2).float()
            wanted = (other - x.float()).abs().mean().item()
            assert change(name, severity, x) == pytest.approx(wanted, rel=near, abs=0.6), severity  # it truncates
    finally:
        np.random.set_state(rng_state)
