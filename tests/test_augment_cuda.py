"""The kernel against `augment` on the same noise: on a GPU, or in Triton's interpreter (TRITON_INTERPRET=1)."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from nonneg import augment, augment_cuda
from nonneg.errors import BadInput

DEVICE = "cpu" if augment_cuda.INTERPRETED or not torch.cuda.is_available() else "cuda"
FEW, MANY = (3, 6) if augment_cuda.INTERPRETED else (32, 128)  # the interpreter takes 50 ms a view
CUBE = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
GENTLE = {"min_scale": 0.5, "strength": (0.4, 0.4, 0, 0), "gray_p": 0, "blur_p": 0.3, "flip_p": 0}
kernel = pytest.mark.skipif(
    not augment_cuda.supported(CUBE.to(DEVICE)), reason="needs Triton, and a GPU or TRITON_INTERPRET=1"
)


def draw_images(n: int, channels: int, height: int, width: int) -> Tensor:
    """Coarse blocks with fine noise: flat parts, sharp edges, black and white."""
    rng = torch.Generator().manual_seed(0)
    coarse = torch.rand(n, channels, -(-height // 4), -(-width // 4), generator=rng) * 1.6 - 0.3
    fine = coarse.repeat_interleave(4, 2).repeat_interleave(4, 3)[:, :, :height, :width]
    fine = fine + 0.1 * torch.rand(n, channels, height, width, generator=rng)
    return (fine.clamp(0, 1) * 255).round().byte()


def draw_noise(n: int, seed: int = 0) -> Tensor:
    return augment.draw_noise(n, generator=torch.Generator().manual_seed(seed))


def fused(images: Tensor, noise: Tensor, index: Tensor | None = None, **knobs) -> Tensor:
    index = torch.arange(len(images)) if index is None else index
    return augment_cuda.fused(images.to(DEVICE), index.to(DEVICE), noise.to(DEVICE), **knobs).cpu()


def assert_near(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, atol=2e-5, rtol=0)


@kernel
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [16, 24, 32])
@pytest.mark.parametrize(
    ("pipeline", "n", "knobs"),
    [
        (augment.simclr, MANY, {}),
        (augment.gentle, FEW, GENTLE),
        (augment.crop_flip, FEW, {"jitter_p": 0, "gray_p": 0, "blur_p": 0}),
    ],
)
def test_kernel_matches_the_pipelines(pipeline: Callable, n: int, knobs: dict, side: int, channels: int) -> None:
    images, noise = draw_images(n, channels, side, side), draw_noise(n)
    assert_near(fused(images, noise, **knobs), pipeline(images, noise))


@kernel
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("strength", "p"),  # p: jitter, gray, blur, flip
    [
        ((0.8, 0, 0, 0), (1, 0, 0, 0)),
        ((0, 0.8, 0, 0), (1, 0, 0, 0)),
        ((0, 0, 0.8, 0), (1, 0, 0, 0)),
        ((0, 0, 0, 0.5), (1, 0, 0, 0)),
        ((2.0, 2.0, 2.0, 0.5), (1, 0, 0, 1)),  # factors from 0 to 3
        ((0, 0, 0, 0), (1, 1, 0, 0)),
        ((0, 0, 0, 0), (0, 0, 1, 0)),
        ((0.4, 0.3, 0.2, 0.1), (1, 1, 1, 1)),
    ],
)
def test_each_operation_alone_and_all_together(strength: tuple, p: tuple, channels: int) -> None:
    images, noise = draw_images(2, channels, 24, 24), draw_noise(2, seed=1)
    expected = augment._view(images, noise, None, 0.3, strength, *p)
    names = ("jitter_p", "gray_p", "blur_p", "flip_p")
    ours = fused(images, noise, min_scale=0.3, strength=strength, **dict(zip(names, p, strict=True)))
    assert_near(ours, expected)


@kernel
def test_all_orders_of_the_colour_operations() -> None:
    noise = draw_noise(25, seed=2)
    noise[:24, augment.ORDER] = torch.tensor(list(itertools.permutations((0.1, 0.3, 0.6, 0.9))))
    noise[24, augment.ORDER] = torch.tensor([0.5, 0.5, 0.2, 0.5])  # a tie is in the order of OPERATIONS
    noise[24, augment.FACTOR] = 0.95  # so bright that it clips: otherwise brightness and contrast commute
    images = draw_images(1, 3, 16, 16).expand(25, -1, -1, -1)
    expected = augment.simclr(images, noise, jitter_p=1, gray_p=0, blur_p=0)
    assert_near(fused(images, noise, jitter_p=1, gray_p=0, blur_p=0), expected)


@kernel
@pytest.mark.parametrize(("height", "width", "size"), [(32, 32, 16), (16, 16, 32), (37, 23, 20), (20, 64, 1)])
def test_other_sizes_shrink_and_grow(height: int, width: int, size: int) -> None:
    images, noise = draw_images(4, 3, height, width), draw_noise(4, seed=3)
    noise[0, augment.AREA], noise[0, augment.ASPECT] = 1 - 2**-24, 0  # nothing fits: the central crop
    noise[1, : augment.TRIES - 1] = 1 - 2**-24  # the last of the shapes fits, at the earliest
    noise[1, augment.TRIES : 2 * augment.TRIES - 1] = 0
    assert_near(fused(images, noise, size=size, blur_p=1), augment.simclr(images, noise, size=size, blur_p=1))


@kernel
def test_views_take_the_rows_of_the_index() -> None:
    images, noise, index = draw_images(7, 3, 16, 16), draw_noise(6), torch.tensor([5, 0, 5])
    expected = augment.simclr(images[torch.cat([index, index])], noise)
    assert_near(fused(images, noise, index), expected)
    assert_near(fused(images.contiguous(memory_format=torch.channels_last), noise, index), expected)
    one = augment.simclr(images[[6, 6]], noise[:2])
    assert_near(fused(images, noise[:2], torch.tensor([6])), one)  # Triton compiles a count of 1 apart
    strided = noise.repeat_interleave(2, 1)[:, ::2]
    assert_near(fused(images, strided, torch.stack([index, index], 1)[:, 0]), expected)


@kernel
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 3])
def test_views_are_channels_last_in_the_type_asked_for(out_dtype: torch.dtype, channels: int) -> None:
    images, noise = draw_images(2, channels, 16, 16), draw_noise(2)
    views = fused(images, noise, out_dtype=out_dtype)
    assert views.dtype == out_dtype and views.is_contiguous(memory_format=torch.channels_last)
    step = 2**-7 if out_dtype == torch.bfloat16 else 0  # a whole one: the interpreter truncates, a GPU rounds
    torch.testing.assert_close(views.float(), augment.simclr(images, noise), atol=2e-5, rtol=step)
    none = fused(images, noise[:0], out_dtype=out_dtype)
    assert none.shape == (0, channels, 16, 16) and none.dtype == out_dtype


@kernel
def test_compiled_as_one_graph() -> None:
    images, index, noise = CUBE.random_(generator=torch.Generator().manual_seed(0)), torch.arange(2), draw_noise(2)
    images, index, noise = images.to(DEVICE), index.to(DEVICE), noise.to(DEVICE)
    knobs = [0.08, 0.8, 0.8, 0.8, 0.2, 0.8, 0.2, 0.5, 0.5]
    arguments = (images, index, noise, 16, knobs, torch.float32)
    torch.library.opcheck(augment_cuda._views, arguments, test_utils=("test_schema", "test_faketensor"))
    compiled = torch.compile(
        augment_cuda.fused, fullgraph=True, backend="inductor" if DEVICE == "cuda" else "aot_eager"
    )
    assert torch.equal(compiled(images, index, noise), augment_cuda.fused(images, index, noise))


@kernel
@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
def test_replayed_in_a_cuda_graph() -> None:
    images, index = draw_images(8, 3, 32, 32).to(DEVICE), torch.arange(8, device=DEVICE)
    noise = draw_noise(16).to(DEVICE)
    augment_cuda.fused(images, index, noise)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        views = augment_cuda.fused(images, index, noise)
    noise.copy_(draw_noise(16, seed=1))
    graph.replay()
    assert torch.equal(views, augment_cuda.fused(images, index, noise))


def test_what_the_kernel_cannot_take_is_left_to_augment(monkeypatch: pytest.MonkeyPatch) -> None:
    for images in (
        CUBE.float(),
        CUBE[0],
        CUBE[:, :2],
        CUBE[:, :, :15],
        torch.zeros(1, 3, 65, 65, dtype=torch.uint8),
        CUBE[:, :, :0, :0],
    ):
        assert not augment_cuda.supported(images.to(DEVICE))
    assert not augment_cuda.supported(CUBE.to(DEVICE), 65) and not augment_cuda.supported(CUBE.to(DEVICE), 0)
    monkeypatch.setattr(augment_cuda, "HAVE_TRITON", False)
    assert not augment_cuda.supported(CUBE.to(DEVICE))
    with pytest.raises(BadInput, match="augment's functions"):
        fused(CUBE, draw_noise(2))


@pytest.mark.parametrize(("capability", "serves"), [((7, 5), False), ((9, 0), True)])
def test_an_old_gpu_is_known_inside_a_compiled_function(capability, serves, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(augment_cuda, "_builds", lambda: True)
    torch.compiler.reset()
    ask = torch.compile(lambda x: x + augment_cuda._triton_serves(0), fullgraph=True, backend="eager")
    assert ask(torch.zeros(())).item() == serves


@pytest.mark.parametrize("compiler", [True, False])
def test_without_a_c_compiler_no_kernel_is_launched(compiler: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        @property
        def active(self) -> SimpleNamespace:
            if not compiler:
                raise RuntimeError("Failed to find C compiler")
            return SimpleNamespace(get_current_target=lambda: "cuda")

    monkeypatch.setattr(
        augment_cuda, "triton", SimpleNamespace(runtime=SimpleNamespace(driver=Driver())), raising=False
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    augment_cuda._builds.cache_clear()
    assert augment_cuda._triton_serves(0) is compiler
    augment_cuda._builds.cache_clear()


@kernel
def test_size_makes_other_shapes_possible() -> None:
    assert augment_cuda.supported(CUBE[:, :, :15].to(DEVICE), 16) and augment_cuda.supported(CUBE[:, :1].to(DEVICE))


@kernel
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"images": CUBE.float()}, "uint8"),
        ({"index": torch.zeros(2, dtype=torch.int32)}, "int64"),
        ({"index": torch.zeros(0, dtype=torch.int64)}, "at least one"),
        ({"noise": torch.rand(4, 7)}, "draw_noise"),
        ({"noise": torch.rand(3, augment.NOISE)}, "every image"),
        ({"noise": torch.rand(2, augment.NOISE).double()}, "float32"),
        ({"min_scale": 0.0}, "min_scale"),
        ({"gray_p": 1.5}, "gray_p"),
        ({"strength": (0.8, 0.8, 0.8)}, "strength"),
        ({"strength": (0.8, 0.8, 0.8, 0.6)}, "hue"),
    ],
)
def test_bad_input_is_named(change: dict, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        fused(**{"images": CUBE, "index": torch.arange(2), "noise": torch.rand(2, augment.NOISE), **change})


@kernel
def test_tensors_must_share_a_device() -> None:
    with pytest.raises(BadInput, match="meta"):
        augment_cuda.fused(CUBE.to(DEVICE), torch.arange(2).to(DEVICE), draw_noise(2).to("meta"))
