"""Seconds an epoch of CIFAR training: ours in each mode beside the conventional pipeline, in one run.

Ours keeps data and augmentation on the device. The conventional pipeline is Pillow and torchvision transforms on
loader workers feeding the same model, loss, optimiser and precision. Synthetic images of CIFAR's shape: speed does not
depend on what they show.

    python benchmarks/train_step.py              # on a GPU about two minutes; on a CPU a few steps of a small batch
    python benchmarks/train_step.py --start-up   # and seconds from the command to the first step, cold and warm
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils.flop_counter import FlopCounterMode

from nonneg import provenance
from nonneg.data import Dataset
from nonneg.encoder import Encoder
from nonneg.optim import warmup_cosine
from nonneg.run import CIFAR, Run
from nonneg.steps import two_views
from nonneg.train import fresh

IMAGES = 50_000


def synthetic(n: int) -> Dataset:
    """Smooth random pictures: neither constant, which a kernel may like, nor noise, which a codec may not."""
    g = torch.Generator().manual_seed(0)
    coarse = torch.randint(0, 256, (n, 3, 8, 8), generator=g).float()
    images = torch.nn.functional.interpolate(coarse, size=32, mode="bilinear").to(torch.uint8)
    return Dataset("synthetic", images, None, None, [str(i) for i in range(n)], [])


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed(step: Callable[[], Any], steps: int, device: torch.device, *, rounds: int = 3) -> float:
    """Milliseconds a step: the median of `rounds` runs of `steps` steps."""
    for _ in range(min(10, steps)):
        step()
    times = []
    for _ in range(rounds):
        wait(device)
        began = time.perf_counter()
        for _ in range(steps):
            step()
        wait(device)
        times.append((time.perf_counter() - began) / steps * 1000)
    return sorted(times)[rounds // 2]


def ours(run: Run, data: Dataset, steps: int) -> dict[str, Any]:
    """One mode of the product's own step."""
    device = run.torch_device()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    state = fresh(run, data)
    step = two_views(run, state, len(data) // run.batch_size)
    step()
    wait(device)
    first = time.perf_counter() - began
    ms = timed(step, steps, device)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    return {"name": f"ours, {run.mode}", "ms": ms, "seconds_to_first_step": first, "peak_memory_gib": peak}


class _Pairs(torch.utils.data.Dataset):
    """Two views of an image by torchvision's transforms on Pillow images, as such code is usually written."""

    def __init__(self, images: torch.Tensor) -> None:
        from torchvision import transforms as T  # pyright: ignore[reportMissingImports]

        self.images = images.permute(0, 2, 3, 1).numpy()
        self.transform = T.Compose(
            [
                T.RandomResizedCrop(32, (0.08, 1.0), interpolation=T.InterpolationMode.BICUBIC),
                T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
                T.RandomGrayscale(p=0.2),
                T.RandomApply([_PillowBlur()], p=0.5),
                T.RandomHorizontalFlip(),
                T.ToTensor(),
                T.Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26)),
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        from PIL import Image

        picture = Image.fromarray(self.images[i])
        return self.transform(picture), self.transform(picture)


class _PillowBlur:
    def __call__(self, picture: Any) -> Any:
        import random

        from PIL import ImageFilter

        return picture.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


def conventional(run: Run, data: Dataset, steps: int, workers: int) -> dict[str, Any]:
    """Loader workers, Pillow, the same model and loss; the optimiser eager, as everywhere."""
    device = run.torch_device()
    state = fresh(replace(run, mode="eager"), data)
    loader = torch.utils.data.DataLoader(
        _Pairs(data.images[:]), run.batch_size, shuffle=True, num_workers=workers, pin_memory=device.type == "cuda",
        drop_last=True, persistent_workers=workers > 0,
    )  # fmt: skip

    def forever() -> Iterator[Any]:
        while True:
            yield from loader

    batches = forever()
    n = run.batch_size

    def step() -> None:
        a, b = next(batches)
        x = torch.cat([a, b]).to(device, non_blocking=True, memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            encoder = cast(Encoder, state.model)
            z = encoder.map(encoder.projector(encoder.backbone(x)))
        loss = run.loss(z[:n], z[n:])
        loss.backward()
        state.lr.copy_(warmup_cosine(state.step, peak=0.4, warmup=1950, total=39_000))
        state.optimizer.step()
        state.optimizer.zero_grad()

    return {"name": f"conventional, {workers} workers", "ms": timed(step, steps, device, rounds=1)}


def flops_a_step(run: Run, data: Dataset) -> float:
    """Floating-point operations of forward and backward for one batch of two views, counted."""
    state = fresh(replace(run, mode="eager", device="cpu"), data)
    x = torch.rand(2, data.channels, data.image_size, data.image_size)
    with FlopCounterMode(display=False) as counter:
        z = state.model(x)
        z.sum().backward()
    return counter.get_total_flops() / 2 * 2 * run.batch_size


def peak_flops(device: torch.device) -> float:
    """What a large matrix product reaches on a GPU in the precision of training, in FLOP/s.

    On a CPU it says nothing: convolutions there pass what a product reaches.
    """
    n = 8192
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * n**3 / (timed(lambda: a @ b, 20, device) / 1000)


def start_up(batch: int) -> dict[str, float]:
    """Seconds from starting the program to the end of its first step: nothing compiled before, and all of it."""
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        places = {"TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor", "TRITON_CACHE_DIR": f"{cache}/triton"}
        for how in ("cold", "warm"):
            began = time.perf_counter()
            command = [sys.executable, __file__, "--one-step", "--batch", str(batch)]
            subprocess.run(command, check=True, env=os.environ | places)
            found[how] = time.perf_counter() - began
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, help="default: 100; 2 on a CPU")
    parser.add_argument("--batch", type=int, help="default: 256; 32 on a CPU")
    parser.add_argument("--workers", type=int, nargs="*", default=[4, 16])
    parser.add_argument("--out", type=Path, help="also write the rows here, as JSON")
    parser.add_argument(
        "--start-up", action="store_true", help="also time the program from its start to the first step"
    )
    parser.add_argument("--one-step", action="store_true", help=argparse.SUPPRESS)  # what --start-up times
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    args.steps, args.batch = args.steps or (100 if cuda else 2), args.batch or (256 if cuda else 32)
    run = replace(CIFAR, batch_size=args.batch)
    device = run.torch_device()
    data = synthetic(IMAGES if cuda else 4 * args.batch)
    if args.one_step:
        two_views(run, fresh(run, data), len(data) // run.batch_size)()
        wait(device)
        return
    modes = ("eager", "compiled", "captured", "graph") if cuda else ("eager",)
    rows = [ours(replace(run, mode=mode), data, args.steps) for mode in modes]
    try:
        import torchvision  # noqa: F401  # pyright: ignore[reportMissingImports]
    except (ImportError, RuntimeError) as error:
        print(f"the conventional pipeline needs torchvision, which does not import here ({error})")
    else:
        rows += [conventional(run, data, min(args.steps, 40), workers) for workers in args.workers]
    flops, peak = flops_a_step(run, data), peak_flops(device) if cuda else None
    best = min(rows, key=lambda row: row["ms"])["ms"]
    per_epoch = IMAGES // args.batch
    for row in rows:
        row["seconds_an_epoch"] = row["ms"] * per_epoch / 1000
        row["images_a_second"] = args.batch / row["ms"] * 1000
        row["share_of_peak"] = flops / (row["ms"] / 1000) / peak if peak else None
        row["times_our_best"] = row["ms"] / best
    where = torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads"
    floor = flops / peak * per_epoch if peak else None
    print(
        f"{where}, torch {torch.__version__}; ResNet-18, batch {args.batch}, two views, {flops / 1e12:.2f} TFLOP a step"
    )
    if peak and floor:
        said = f"peak {peak / 1e12:.3g} TFLOP/s (a large product, measured)"
        print(f"{said}; floor {floor:.2f} s an epoch of {IMAGES} images")
    heads = ("ms/step", "s/epoch", "images/s", "of peak", "ratio", "first step", "memory")
    print(" " * 28 + "".join(f"{h:>{w}s}" for h, w in zip(heads, (9, 9, 10, 9, 7, 12, 10), strict=True)))
    for row in rows:
        first, memory = row.get("seconds_to_first_step"), row.get("peak_memory_gib")
        print(
            f"{row['name']:28s} {row['ms']:8.2f} {row['seconds_an_epoch']:8.2f} {row['images_a_second']:9.0f} "
            + (f"{row['share_of_peak']:8.1%}" if peak else " " * 8)
            + f" {row['times_our_best']:6.2f} "
            + (f"{first:9.1f} s" if first else " " * 11)
            + (f" {memory:5.2f} GiB" if memory else "")
        )
    started = start_up(args.batch) if args.start_up else {}
    if started:
        print("from the command to the first step: " + ", ".join(f"{v:.1f} s {k}" for k, v in started.items()))
    if args.out:
        about = {
            "where": where,
            "start_up_seconds": started,
            **provenance.made(device),
            "batch": args.batch,
            "flops_a_step": flops,
        }
        about |= {"peak_flops": peak, "floor_seconds_an_epoch": floor, "rows": rows}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
