"""Any picture to a square uint8 array, by Pillow.

N images, C channels, H height, W width, S side of the square.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from nonneg.progress import track

EXTENSIONS = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm")


def rgb(image: Image.Image) -> Image.Image:
    """Any mode to RGB: 16 bits scaled to 8, transparency laid over white."""
    if image.mode == "F":
        raise ValueError("floating-point pixels have no agreed white; save it with 8 or 16 bits")
    if image.mode.startswith("I"):  # Pillow's own conversion clips at 255, which turns 16-bit pictures white
        deep = np.asarray(image).astype(np.int64)
        if deep.min() < 0 or deep.max() > 65535:
            raise ValueError(f"pixels from {deep.min()} to {deep.max()}; save it with 8 or 16 bits")
        return Image.fromarray(np.round(deep / 257).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def square(image: Image.Image, size: int) -> Image.Image:
    """The shorter side brought to `size` by antialiased bicubic, the longer one cropped about its centre."""
    return ImageOps.fit(image, (size, size), method=Image.Resampling.BICUBIC)


def planes(image: Image.Image) -> np.ndarray:
    """C x H x W of an L or RGB picture."""
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def read(path: Path, size: int) -> np.ndarray:
    """3 x S x S of the picture in a file, upright as its EXIF orientation says."""
    with Image.open(path) as image:
        image.draft(None, (2 * size, 2 * size))  # JPEG decodes at a fraction of its size; twice S leaves no aliasing
        return planes(square(rgb(ImageOps.exif_transpose(image)), size))


def try_read(path: Path, size: int) -> np.ndarray | str:
    """The picture, or the reason why there is none."""
    try:
        if not path.exists():
            return "no such file (a broken link?)"
        if not path.is_file():  # opening a pipe would wait for ever
            return "not a regular file"
        if path.stat().st_size == 0:
            return "empty file"
        return read(path, size)
    except Image.UnidentifiedImageError:
        return "not a readable image"
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        return f"more than {Image.MAX_IMAGE_PIXELS} pixels, too large to be opened safely"
    except Exception as error:  # a damaged file makes Pillow raise almost anything: SyntaxError, struct.error, ...
        return f"{getattr(error, 'strerror', None) or error or type(error).__name__}"


@contextmanager
def strictly_sized() -> Iterator[None]:
    """While open, an over-large picture raises and Pillow's other warnings are silent.

    Warning filters belong to the process, so this wraps the thread pool and is not opened inside a thread.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def resize(images: np.ndarray, size: int | None) -> np.ndarray:
    """N x C x S x S from N x C x H x W, each image by `square`; as it is when `size` is None or already right."""
    n, channels, height, width = images.shape
    if size is None or (height, width) == (size, size):
        return images
    out = np.empty((n, channels, size, size), np.uint8)
    for i in track(range(n), "resizing images", n):
        pixels = images[i, 0] if channels == 1 else images[i].transpose(1, 2, 0)
        out[i] = planes(square(Image.fromarray(np.ascontiguousarray(pixels)), size))
    return out
