"""How busy a GPU is kept by images that are decoded while it trains.

Claim: streamed from a folder, training runs at nearly the speed it has with all images on the device.
Cost: about a minute for each size on one GPU with 16 cores. Run:

    python benchmarks/stream.py --images 100000 --image-size 64 --source 96 72 --json 64.json
    python benchmarks/stream.py --images 20000 --image-size 224 --source 500 400 --stem imagenet --json 224.json
    python benchmarks/stream.py --images 200 --steps 3 --image-size 32 --backbone small_net   # on a CPU

`busy` is the speed of the streamed step over that of the same step on one batch that stays on the device. Then the same
folder is read into memory, as is done by default where it takes less than half of it, and trained from there.
"""

import argparse
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from nonneg import backbones, data, files, provenance
from nonneg.data import Dataset
from nonneg.data.stream import Source, cores
from nonneg.run import FOLDER, Run
from nonneg.steps import two_views
from nonneg.train import fresh

WARM_UP = 5  # steps before the clock is started
DISTINCT = 2000  # pictures that are drawn; beyond them files repeat, each still a file of its own


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--source", type=int, nargs=2, default=(96, 72), help="width and height of the JPEGs")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--backbone", default="resnet18", choices=("resnet18", "resnet34", "resnet50", "small_net"))
    parser.add_argument("--stem", default="small", choices=("small", "imagenet"))
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--workers", type=int, default=cores(), help="0: threads")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--mode", default="auto", choices=("auto", "eager", "compiled", "graph"))
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    return parser.parse_args()


def write_pictures(folder: Path, n: int, size: tuple[int, int]) -> float:
    """n JPEGs that compress like photographs: coarse shapes and a little grain. Returns their mean length in bytes."""

    def draw(i: int) -> bytes:
        random = np.random.default_rng(i)
        coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), np.int16)
        grain = random.integers(-12, 13, smooth.shape, dtype=np.int16)
        out = io.BytesIO()
        Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=85)
        return out.getvalue()

    with ThreadPoolExecutor(cores()) as pool:
        drawn = list(pool.map(draw, range(min(n, DISTINCT))))
    for i in range(n):
        path = folder / f"{i // 1000:04}" / f"{i:07}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(drawn[i % DISTINCT])
    return sum(map(len, drawn)) / len(drawn)


def seconds(do: Callable[[], Any], times: int, device: torch.device) -> float:
    """Of one call, over `times` calls that may overlap on the device, after a few that do not count."""
    for _ in range(min(WARM_UP, times)):
        do()
    _wait(device)
    began = time.perf_counter()
    for _ in range(times):
        do()
    _wait(device)
    return (time.perf_counter() - began) / times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def endless(source: Source, n: int, batch_size: int) -> Iterator[torch.Tensor]:
    """Batches of one random epoch after the other."""
    generator = torch.Generator().manual_seed(0)
    while True:
        order = torch.randperm(n, generator=generator)[: n // batch_size * batch_size]
        for x, bad in source.batches(order):
            assert not bad
            yield x


def measure(run: Run, dataset: Dataset, steps: int) -> dict[str, float]:
    """Images a second: decoded only, trained from one batch on the device, and trained while they are decoded."""
    device, b = run.torch_device(), run.batch_size
    s = fresh(run, dataset)
    step = two_views(run, s, len(dataset) // b)
    with Source(dataset.images, batch_size=b, device=device) as source:
        batches = endless(source, len(dataset), b)

        def streamed() -> None:
            s.rows["images"].copy_(next(batches), non_blocking=True)
            step()

        decoding = seconds(lambda: next(batches), steps, device)
        print(f"decoding alone     {b / decoding:9.0f} images/s", flush=True)
        own = seconds(step, steps, device)
        print(f"the step alone     {b / own:9.0f} images/s ({own * 1e3:.2f} ms)", flush=True)
        both = seconds(streamed, steps, device)
        print(f"streamed           {b / both:9.0f} images/s ({both * 1e3:.2f} ms)")
        print(f"busy               {own / both:9.1%}", flush=True)
    return {
        "decoded_per_s": b / decoding,
        "own_per_s": b / own,
        "streamed_per_s": b / both,
        "step_ms": own * 1e3,
        "streamed_step_ms": both * 1e3,
        "busy": own / both,
    }


def main() -> None:
    o = options()
    os.environ |= {"NONNEG_RESIDENT_GB": "0", "NONNEG_WORKERS": str(o.workers)}
    backbone: Any = getattr(backbones, o.backbone)
    run = replace(
        FOLDER,
        backbone=backbone if o.backbone == "small_net" else partial(backbone, stem=o.stem),
        image_size=o.image_size,
        batch_size=o.batch_size,
        device=o.device,
        mode=o.mode,
    )
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        length = write_pictures(Path(folder), o.images, tuple(o.source))
        print(f"{o.images} JPEGs of {o.source[0]} x {o.source[1]}, {length / 1e3:.1f} kB each: ", end="")
        print(f"written in {time.perf_counter() - began:.0f} s, ", end="", flush=True)
        began = time.perf_counter()
        dataset = data.folder(root=Path(folder), image_size=o.image_size)
        inspected = time.perf_counter() - began
        print(f"inspected in {inspected:.1f} s", flush=True)
        run = replace(run, batch_size=min(o.batch_size, len(dataset) // 4))  # a tiny folder still has an epoch
        device = run.torch_device()
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        workers = f"{o.workers} workers" if o.workers else "threads"
        print(f"{name}, {o.backbone}, {o.image_size} px, batch {run.batch_size}, {workers} on {cores()} cores")
        about = {k: str(v) if isinstance(v, Path) else v for k, v in vars(o).items() if k != "json"}
        about |= {"device": name, "cores": cores(), "bytes_per_image": length, **provenance.made(device)}
        found = {**about, "batch_size": run.batch_size, "inspect_s": inspected, **measure(run, dataset, o.steps)}
        if o.json:
            files.write_json(o.json, found)  # now: what follows takes longer, and may be cut short
        os.environ["NONNEG_RESIDENT_GB"] = "1e6"
        began = time.perf_counter()
        held = data.folder(root=Path(folder), image_size=o.image_size)
        read = time.perf_counter() - began
    step = two_views(run, fresh(run, held), len(held) // run.batch_size)
    ms = seconds(step, o.steps, device) * 1e3
    print(f"held in memory     {run.batch_size / ms * 1e3:9.0f} images/s ({ms:.2f} ms), read in {read:.1f} s")
    if o.json:
        files.write_json(o.json, {**found, "read_s": read, "held_step_ms": ms})


if __name__ == "__main__":
    main()
