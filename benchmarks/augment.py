"""Views a second of the paper's augmentation: ours beside torchvision v2, kornia and albumentations, in one run.

All make the same kind of view: resized crop 0.08-1 (bicubic), colour jitter .8/.8/.8/.2 p .8, grey p .2, Gaussian blur
p .5, flip p .5, from uint8 images of 32 px, every image with parameters of its own.

    python benchmarks/augment.py              # one CPU core, and the GPU if there is one
    python benchmarks/augment.py --seconds 1  # quicker

kornia and albumentations are not dependencies: pip install kornia albumentations to see them in the table.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nonneg import augment, augment_cuda, provenance

N, SIZE = 512, 32


def pictures() -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    coarse = torch.randint(0, 256, (N, 3, 8, 8), generator=g).float()
    return torch.nn.functional.interpolate(coarse, size=SIZE, mode="bilinear").to(torch.uint8)


def rate(make: Callable[[], Any], seconds: float, device: str) -> float:
    """Views a second: the best of five rounds, so that another program's turn on the machine does not count."""

    def once() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        make()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    once()
    repeats = max(1, int(seconds / 5 / once()))
    return max(N * repeats / sum(once() for _ in range(repeats)) for _ in range(5))


def ours(images: torch.Tensor, device: str) -> dict[str, Callable[[], Any]]:
    g = torch.Generator(device).manual_seed(0)
    x = images.to(device)
    found: dict[str, Callable[[], Any]] = {"ours": lambda: augment.simclr(x, augment.draw_noise(N, generator=g))}
    if device == "cuda":
        compiled = torch.compile(augment.simclr, dynamic=False)
        found["ours, compiled"] = lambda: compiled(x, augment.draw_noise(N, generator=g))
        if augment_cuda.supported(x):
            index = torch.arange(N, device=device)
            found["ours, one kernel"] = lambda: augment_cuda.fused(x, index, augment.draw_noise(N, generator=g))
    return found


def torchvision_v2(images: torch.Tensor, device: str) -> Callable[[], Any]:
    from torchvision.transforms import v2  # pyright: ignore[reportMissingImports]

    make = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE, (0.08, 1.0), interpolation=v2.InterpolationMode.BICUBIC, antialias=True),
            v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            v2.RandomGrayscale(p=0.2),
            v2.RandomApply([v2.GaussianBlur(13, (0.1, 2.0))], p=0.5),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    x = images.to(device)
    return lambda: torch.stack([make(one) for one in x])  # one by one: a batch would share its parameters


def kornia(images: torch.Tensor, device: str) -> Callable[[], Any]:
    import kornia.augmentation as K  # pyright: ignore[reportMissingImports]

    make = torch.nn.Sequential(
        K.RandomResizedCrop((SIZE, SIZE), scale=(0.08, 1.0), resample="bicubic"),
        K.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8),
        K.RandomGrayscale(p=0.2),
        K.RandomGaussianBlur((13, 13), (0.1, 2.0), p=0.5),
        K.RandomHorizontalFlip(p=0.5),
    ).to(device)
    x = images.to(device)
    return lambda: make(x.float() / 255)


def albumentations(images: torch.Tensor, device: str) -> Callable[[], Any]:
    if device != "cpu":
        raise ImportError("albumentations runs on the CPU only")
    import albumentations as A  # pyright: ignore[reportMissingImports]
    import cv2  # pyright: ignore[reportMissingImports]
    import numpy as np

    cv2.setNumThreads(1)
    make = A.Compose(
        [
            A.RandomResizedCrop(size=(SIZE, SIZE), scale=(0.08, 1.0), interpolation=cv2.INTER_CUBIC),
            A.ColorJitter((0.2, 1.8), (0.2, 1.8), (0.2, 1.8), (-0.2, 0.2), p=0.8),
            A.ToGray(p=0.2),
            A.GaussianBlur(blur_limit=0, sigma_limit=(0.1, 2.0), p=0.5),
            A.HorizontalFlip(p=0.5),
        ]
    )
    x = images.permute(0, 2, 3, 1).contiguous().numpy()
    return lambda: torch.from_numpy(np.stack([make(image=one)["image"] for one in x])).permute(0, 3, 1, 2).float() / 255


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row")
    parser.add_argument("--out", type=Path, help="also write the rows here, as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    images, rows = pictures(), []
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        makers = dict(ours(images, device))
        for peer in (torchvision_v2, kornia, albumentations):
            try:
                makers[peer.__name__] = peer(images, device)
            except (ImportError, RuntimeError) as error:
                print(f"{device}: {peer.__name__} left out ({str(error).splitlines()[0]})")
        for name, make in makers.items():
            rows.append({"device": device, "name": name, "views_a_second": rate(make, args.seconds, device)})
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    print(f"one CPU core; GPU {gpu}; torch {torch.__version__}; {N} views of 3 x {SIZE} x {SIZE} at a time")
    for row in rows:
        base = max(r["views_a_second"] for r in rows if r["device"] == row["device"] and r["name"].startswith("ours"))
        row["ours_is_faster"] = base / row["views_a_second"]
        ratio = f"ours x{row['ours_is_faster']:.1f}"
        print(f"{row['device']:5s} {row['name']:20s} {row['views_a_second']:12,.0f} views/s   {ratio}")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(
            json.dumps({"gpu": gpu, **provenance.made(torch.device("cpu")), "rows": rows}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
