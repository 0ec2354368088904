"""Views against Pillow, one operation at a time, and the pipelines against a loop over single images."""

import colorsys
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from nonneg import augment
from nonneg.errors import BadInput

PIPELINES = (augment.simclr, augment.gentle, augment.crop_flip, augment.none)
SHAPES = [(1, 28, 28), (3, 32, 32), (3, 37, 23)]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Many small operations: more threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def natural(n: int, channels: int, height: int, width: int, seed: int = 0) -> Tensor:
    """uint8 images with slopes, waves, an edge and a little noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / 32
    images = np.empty((n, channels, height, width))
    for image in images.reshape(-1, height, width):
        a, b, c, d, e = rng.uniform(-1, 1, 5)
        image[:] = 0.5 + 0.4 * (a * x + b * y - (a + b) / 2) + 0.2 * np.sin(9 * (c * x + d * y) + 3 * e)
        image[:, width // 2 :] += 0.3 * e
        image += 0.03 * rng.standard_normal(image.shape)
    return torch.from_numpy((images.clip(0, 1) * 255).round().astype(np.uint8))


def noise(n: int, seed: int = 0) -> Tensor:
    return augment.draw_noise(n, generator=torch.Generator().manual_seed(seed))


def to_pillow(image: Tensor) -> Image.Image:
    return Image.fromarray(image[0].numpy() if len(image) == 1 else image.permute(1, 2, 0).contiguous().numpy())


def from_pillow(image: Image.Image) -> Tensor:
    pixels = np.array(image)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy()).double()


def errors(ours: Tensor, pillow: list[Image.Image]) -> Tensor:
    """The differences, in units of 1 / 255."""
    return ours.double() * 255 - torch.stack([from_pillow(image) for image in pillow])


def apart(ours: Tensor, pillow: list[Image.Image]) -> float:
    return errors(ours, pillow).abs().max().item()


# Each operation beside Pillow


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [8, 32, 41])
def test_crop_resize_is_pillows_bicubic(shape: tuple[int, int, int], size: int) -> None:
    _, h, w = shape
    boxes = [(0, 0, h, w), (3, 5, 9, 8), (h - 1, w - 1, 1, 1), (0, 2, h, 7), (2, 0, 2, w), (4, 4, 16, 16)]
    images, flips = natural(len(boxes), *shape), torch.arange(len(boxes)) % 2 == 1
    if size < 32:
        images = images // 2 + 64  # Pillow's versions clip overshoots in different orders when they shrink: have none
    expected = []
    for image, (top, left, height, width), mirrored in zip(images, boxes, flips, strict=True):
        view = to_pillow(image).crop((left, top, left + width, top + height))
        view = view.resize((size, size), Image.Resampling.BICUBIC)
        expected.append(ImageOps.mirror(view) if mirrored else view)
    ours = augment.crop_resize(images / 255, torch.tensor(boxes), size, flips)
    assert apart(ours, expected) < 1.5
    assert torch.equal(augment.crop_resize(images / 255, torch.tensor(boxes), size), augment.flip(ours, flips))


def test_crop_resize_clips_overshoots_as_pillow() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 2, (20, 3, 32, 32), generator=generator, dtype=torch.uint8) * 255  # black and white dust
    boxes = augment.crop_box(noise(20), 32, 32).int()
    expected = []
    for image, (top, left, h, w) in zip(images, boxes.tolist(), strict=True):
        view = to_pillow(image).crop((left, top, left + w, top + h))
        expected.append(view.resize((32, 32), Image.Resampling.BICUBIC))
    assert apart(augment.crop_resize(images / 255, boxes, 32), expected) < 1.5


def test_crop_resize_sees_nothing_outside_the_box() -> None:
    x = torch.full((1, 1, 16, 16), 1.0)
    x[:, :, 4:9, 3:12] = 0.25
    view = augment.crop_resize(x, torch.tensor([[4, 3, 5, 9]]), 16)
    torch.testing.assert_close(view, torch.full_like(view, 0.25))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("factor", [0.0, 0.2, 0.7, 1.0, 1.3, 1.8])
@pytest.mark.parametrize(
    ("operation", "pillow", "tolerance"),
    [
        (augment.brightness, ImageEnhance.Brightness, 1.01),
        (augment.contrast, ImageEnhance.Contrast, 2.0),
        (augment.saturation, ImageEnhance.Color, 1.5),
    ],
)
def test_blends_are_pillows(operation, pillow, tolerance: float, factor: float, shape: tuple[int, int, int]) -> None:
    images = natural(4, *shape)
    expected = [pillow(to_pillow(image)).enhance(factor) for image in images]
    assert apart(operation(images / 255, torch.full((4,), factor)), expected) < tolerance


@pytest.mark.parametrize("steps", [-128, -50, -1, 0, 1, 13, 51, 127])
def test_hue_is_pillows(steps: int) -> None:
    images = natural(8, 3, 32, 32)
    expected = []
    for image in images:
        h, s, v = to_pillow(image).convert("HSV").split()
        turned = Image.fromarray((np.array(h).astype(int) + steps).astype(np.uint8))
        expected.append(Image.merge("HSV", (turned, s, v)).convert("RGB"))
    off = errors(augment.hue(images / 255, torch.full((8,), steps / 256)), expected)
    assert off.abs().max() < 12 and off.square().mean().sqrt() < 1.4


def test_hue_matches_colorsys() -> None:
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 0.5, 1.0])] * 3)  # every tie, black, greys and white
    colours = torch.cat([corners, torch.rand(200, 3, generator=torch.Generator().manual_seed(0))])
    for shift in (-0.5, -0.21, 0.0, 1 / 6, 0.5):
        ours = augment.hue(colours.view(-1, 3, 1, 1), torch.full((len(colours),), shift)).view(-1, 3)
        for a, colour in zip(ours, colours.tolist(), strict=True):
            h, s, v = colorsys.rgb_to_hsv(*colour)
            assert a.tolist() == pytest.approx(colorsys.hsv_to_rgb((h + shift) % 1, s, v), abs=2e-6)


def test_grayscale_is_pillows() -> None:
    images = natural(8, 3, 32, 32)
    expected = [to_pillow(image).convert("L").convert("RGB") for image in images]
    assert apart(augment.grayscale(images / 255), expected) < 0.51


@pytest.mark.parametrize("shape", [*SHAPES, (1, 2, 1), (3, 80, 9)])
def test_blur_is_pillows(shape: tuple[int, int, int]) -> None:
    sigmas = torch.tensor([0.1, 0.5, 1.0, 1.4, 1.5, 2.0])
    images = natural(len(sigmas), *shape)
    filters = [ImageFilter.GaussianBlur(sigma) for sigma in sigmas.tolist()]
    expected = [to_pillow(image).filter(f) for image, f in zip(images, filters, strict=True)]
    for max_sigma in (None, 2.0):
        off = errors(augment.blur(images / 255, sigmas, max_sigma=max_sigma), expected)
        assert off.abs().max() < 3 and off.square().mean().sqrt() < 1


def test_blur_slides_as_it_multiplies() -> None:
    x, sigma = natural(5, 3, 70, 66) / 255, torch.tensor([0.0, 0.1, 1.0, 3.0, 4.0])
    torch.testing.assert_close(augment.blur(x, sigma, max_sigma=4.0), augment.blur(x, sigma), atol=2e-6, rtol=0)


@pytest.mark.parametrize("operation", [augment.saturation, augment.hue])
def test_one_channel_has_no_colour(operation) -> None:
    x = natural(3, 1, 8, 8) / 255
    assert torch.equal(operation(x, torch.tensor([0.1, 0.3, 0.5])), x)
    assert torch.equal(augment.grayscale(x), x)


# The random parameters


def torchvision_box(u: Tensor, height: int, width: int, min_scale: float) -> tuple[int, int, int, int]:
    """RandomResizedCrop.get_params as written there, for one image, its random numbers taken from `u`."""
    for area, ratio in zip(u[augment.AREA].tolist(), u[augment.ASPECT].tolist(), strict=True):
        target = height * width * (min_scale + (1 - min_scale) * area)
        aspect = math.exp(math.log(3 / 4) + (math.log(4 / 3) - math.log(3 / 4)) * ratio)
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(u[augment.TOP] * (height - h + 1)), int(u[augment.LEFT] * (width - w + 1)), h, w
    if width / height < 3 / 4:
        w, h = width, round(width / (3 / 4))
    elif width / height > 4 / 3:
        w, h = round(height * (4 / 3)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize("min_scale", [0.08, 1.0])  # at 1 most images fall back to the central crop
@pytest.mark.parametrize(("height", "width"), [(32, 32), (17, 60), (50, 20), (1, 1)])
def test_boxes_are_torchvisions(height: int, width: int, min_scale: float) -> None:
    u = noise(500)
    expected = [torchvision_box(row, height, width, min_scale) for row in u]
    assert augment.crop_box(u, height, width, min_scale=min_scale).int().tolist() == [list(box) for box in expected]


def test_boxes_stay_inside_at_the_last_float_below_one() -> None:
    u = torch.full((1, augment.NOISE), 1 - 2**-24)
    for n in range(1, 40):
        top, left, h, w = augment.crop_box(u * torch.linspace(0.1, 1, augment.NOISE), n, n)[0].tolist()
        assert top + h <= n and left + w <= n
    u[:, augment.AREA] = 0
    top, left, h, w = augment.crop_box(u, 7, 7)[0].tolist()
    assert (top + h, left + w) == (7, 7)


def one_view(image: Tensor, u: Tensor, strength: tuple[float, ...], p: tuple[float, ...], min_scale: float) -> Tensor:
    """One image through the pipeline as the papers write it: one operation after the other, the flip last."""
    jitter_p, gray_p, blur_p, flip_p = p
    h, w = image.shape[1:]
    box = torch.tensor([torchvision_box(u, h, w, min_scale)])
    assert h == w
    x = augment.crop_resize(image[None] / 255, box, h)
    if u[augment.JITTER] < jitter_p:
        operations = (augment.brightness, augment.contrast, augment.saturation, augment.hue)
        for k in sorted(range(4), key=lambda k: u[augment.ORDER][k].item()):
            low, high = (-strength[k], strength[k]) if k == 3 else (1 - strength[k], 1 + strength[k])
            x = operations[k](x, low + (high - low) * u[augment.FACTOR][k : k + 1])
    if u[augment.GRAY] < gray_p:
        x = augment.grayscale(x)
    if u[augment.BLUR] < blur_p:
        x = augment.blur(x, 0.1 + 1.9 * u[augment.BLUR_SIGMA][None])
    return augment.flip(x, u[augment.FLIP][None] < flip_p)[0]


@pytest.mark.parametrize("channels", [1, 3])
def test_pipelines_match_a_loop_over_images(channels: int) -> None:
    images, u = natural(80, channels, 32, 32), noise(80)
    settings = {
        augment.simclr: ((0.8, 0.8, 0.8, 0.2), (0.8, 0.2, 0.5, 0.5), 0.08),
        augment.gentle: ((0.4, 0.4, 0, 0), (0.8, 0, 0.3, 0), 0.5),
        augment.crop_flip: ((0, 0, 0, 0), (0, 0, 0, 0.5), 0.08),
    }
    for pipeline, arguments in settings.items():
        expected = torch.stack([one_view(image, row, *arguments) for image, row in zip(images, u, strict=True)])
        torch.testing.assert_close(pipeline(images, u), expected, atol=1e-5, rtol=0)


def test_simclr_matches_pillow_end_to_end() -> None:
    images, u = natural(64, 3, 32, 32), noise(64)
    enhance = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    expected = []
    for image, row in zip(images, u, strict=True):
        top, left, h, w = torchvision_box(row, 32, 32, 0.08)
        view = to_pillow(image).crop((left, top, left + w, top + h)).resize((32, 32), Image.Resampling.BICUBIC)
        if row[augment.JITTER] < 0.8:
            for k in row[augment.ORDER].argsort().tolist():
                u_k = row[augment.FACTOR][k].item()
                if k < 3:
                    view = enhance[k](view).enhance(0.2 + 1.6 * u_k)
                else:
                    hue, s, v = view.convert("HSV").split()
                    turned = (np.array(hue).astype(int) + round((0.4 * u_k - 0.2) * 256)).astype(np.uint8)
                    view = Image.merge("HSV", (Image.fromarray(turned), s, v)).convert("RGB")
        if row[augment.GRAY] < 0.2:
            view = view.convert("L").convert("RGB")
        if row[augment.BLUR] < 0.5:
            view = view.filter(ImageFilter.GaussianBlur(0.1 + 1.9 * row[augment.BLUR_SIGMA].item()))
        expected.append(ImageOps.mirror(view) if row[augment.FLIP] < 0.5 else view)
    off = errors(augment.simclr(images, u), expected).abs()
    assert off.mean() < 1.5 and off.max() < 20  # Pillow rounds to 8 bits after every operation


# What every pipeline keeps


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("shape", SHAPES)
def test_views_are_a_function_of_image_and_noise_alone(pipeline, shape: tuple[int, int, int]) -> None:
    images, u = natural(150, *shape), noise(150)
    before = images.clone()
    views = pipeline(images, u)
    assert views.shape == images.shape and views.dtype == torch.float32
    assert views.min() >= 0 and views.max() <= 1  # false for NaN
    assert torch.equal(pipeline(images, u), views) and torch.equal(images, before)
    some = torch.tensor([3, 141, 0, 77])
    torch.testing.assert_close(pipeline(images[some], u[some]), views[some], atol=1e-6, rtol=0)
    as_float = images / 255
    kept = as_float.clone()
    torch.testing.assert_close(pipeline(as_float, u), views, atol=1e-6, rtol=0)
    assert torch.equal(as_float, kept)
    if pipeline is not augment.none:
        assert (pipeline(images, noise(150, seed=1)) - views).abs().mean() > 0.01
    assert pipeline(images, u, size=11).shape == (150, shape[0], 11, 11)
    assert pipeline(images[:0], u[:0], size=11).shape == (0, shape[0], 11, 11)


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("channels", [1, 3])
def test_selecting_rows_equals_masking_them(pipeline, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    images, u = natural(150, channels, 32, 32), noise(150)
    selected = pipeline(images, u)
    monkeypatch.setattr(augment, "_select_rows", lambda _: False)
    torch.testing.assert_close(pipeline(images, u), selected, atol=1e-6, rtol=0)


def test_autocast_leaves_pixels_in_float32() -> None:
    images, u = natural(20, 3, 32, 32), noise(20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        views = augment.simclr(images, u)
    assert torch.equal(views, augment.simclr(images, u)) and views.dtype == torch.float32


def test_large_images_in_parts_of_one() -> None:
    images, u = natural(3, 3, 400, 400), noise(3)  # one image is more than a part
    views = augment.simclr(images, u)
    torch.testing.assert_close(augment.simclr(images[1:2], u[1:2]), views[1:2], atol=1e-6, rtol=0)


@pytest.mark.parametrize("value", [0, 128, 255])
def test_flat_images_never_become_nan(value: int) -> None:
    flat = torch.full((200, 3, 9, 9), value, dtype=torch.uint8)
    views = augment.simclr(flat, noise(200))
    assert torch.isfinite(views).all()
    torch.testing.assert_close(views, views[:, :1, :1, :1].expand_as(views), atol=3e-6, rtol=0)


def test_none_resizes_the_whole_image() -> None:
    images = natural(4, 3, 37, 23)
    expected = [to_pillow(image).resize((16, 16), Image.Resampling.BICUBIC) for image in images]
    assert apart(augment.none(images, noise(4), size=16), expected) < 1.5


def test_knobs_switch_operations_off() -> None:
    images, u = natural(50, 3, 32, 32), noise(50)
    plain = augment.simclr(images, u, jitter_p=0, gray_p=0, blur_p=0)
    assert torch.equal(plain, augment.crop_flip(images, u))
    assert torch.equal(augment.simclr(images, u, jitter=0, gray_p=0, blur_p=0), plain)
    grey = augment.simclr(images, u, gray_p=1)
    assert (grey - grey[:, :1]).abs().max() < 1e-6
    mirrored = augment.crop_flip(images, u, flip_p=1)
    torch.testing.assert_close(mirrored.flip(3), augment.crop_flip(images, u, flip_p=0), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"images": torch.zeros(2, 4, 8, 8)}, "channels"),
        ({"images": torch.zeros(3, 8, 8)}, "N x C x H x W"),
        ({"images": torch.zeros(2, 3, 8, 0)}, "shape"),
        ({"images": torch.zeros(2, 3, 8, 8, dtype=torch.int64)}, "uint8"),
        ({"images": torch.full((2, 3, 8, 8), 2.0)}, "255"),
        ({"images": torch.full((2, 3, 8, 8), math.nan)}, "255"),
        ({"noise": torch.rand(2, 7)}, "draw_noise"),
        ({"noise": torch.rand(3, augment.NOISE)}, "draw_noise"),
        ({"noise": torch.rand(2, augment.NOISE, dtype=torch.float64)}, "float32"),
        ({"noise": torch.rand(2, augment.NOISE, device="meta")}, "meta"),
        ({"size": 0}, "size"),
        ({"min_scale": 0.0}, "min_scale"),
        ({"gray_p": 1.5}, "gray_p"),
        ({"jitter": -0.1}, "jitter"),
        ({"jitter": 3.0}, "jitter"),
    ],
)
def test_bad_input_is_named(change: dict, says: str) -> None:
    arguments = {"images": torch.zeros(2, 3, 8, 8), "noise": torch.rand(2, augment.NOISE), **change}
    with pytest.raises(BadInput, match=says):
        augment.simclr(**arguments)


@pytest.mark.parametrize("box", [[0, 0, 0, 4], [-1, 0, 4, 4], [0, 5, 4, 4], [5, 0, 4, 4]])
def test_a_box_outside_the_image_is_named(box: list[int]) -> None:
    with pytest.raises(BadInput, match="not inside"):
        augment.crop_resize(torch.zeros(1, 3, 8, 8), torch.tensor([box]), 8)
