"""A classifier that learns along with CL's encoder ("online"), beside the paper's probe of the same encoder.

The framework under the authors' code trains such a classifier: linear, on h, from the two views that the encoder learns
from, by the same optimiser at a quarter of its rate (0.1), without decay; no gradient of it reaches the encoder. What
its accuracy is against that of a probe afterwards tells whether the paper's numbers can be such (docs/differences.md).

    python experiments/online.py cifar100 --data-root DIR            # a narrow net, 50 epochs: 2 hours on a CPU core
    python experiments/online.py cifar100 --data-root DIR --whole    # the paper's net, 200 epochs: needs a GPU
    python experiments/online.py digits --epochs 5                   # half a minute, to see it run

The same command continues a run that was stopped. A line goes to experiments/results/online.jsonl. Beside the paper's
probe (`crops`) stand the two other heads of `nonneg reproduce protocol`.

Outcome, narrow nets, one seed: on CIFAR-100 the classifier stays 2.2 points behind the probe after 50 epochs, 4.1 after
15; on CIFAR-10 2.0 after 15. The paper's CIFAR-100 numbers are 1.7 to 2.2 below ours. Whether that is why, the whole
net for 200 epochs would tell.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nonneg import augment, backbones, encoder, engine, finetune, ledger, loop, maps, provenance, rundir, steps
from nonneg.analyses import protocol
from nonneg.data import Dataset
from nonneg.encoder import Encoder
from nonneg.errors import BadInput
from nonneg.experiments import cifar10
from nonneg.loop import Job, Keep, Rows, State
from nonneg.run import RECIPES, Run
from nonneg.train import fresh

PEAK = 0.1  # of the classifier's rate, where the encoder's is 0.4
RIGHT = len(steps.FEATURES)  # the place of the classifier's right answers among the sums
SHOWN = 10  # times at most that test images are asked in between


class Watched(nn.Module):
    """An encoder and a linear classifier of its h."""

    def __init__(self, encoder: Encoder, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.head = nn.Linear(backbones.output_width(encoder.backbone, encoder.about["channels"]), classes)
        self.head.to(encoder.mean.device)


class Found(NamedTuple):
    """What was trained, and shares of right answers: on test images, on the views of the last epoch, in between."""

    encoder: Encoder
    test: float
    views: float
    by_epoch: dict[int, float]


def begin(run: Run, data: Dataset, classes: int) -> State:
    """The state of `nonneg train` before its first step, with a classifier, and labels beside the images."""
    if run.loss_takes_labels or run.positives != "views":
        raise BadInput("a classifier learns along with an encoder that is trained without labels")
    plain = fresh(run, data)
    model = Watched(cast(Encoder, plain.model), classes)
    s = loop.begin(
        model,
        rows(data),
        optimizer=partial(run.optimizer, model.encoder.parameters(), weight_decay=run.weight_decay),
        batch_size=run.batch_size,
        seed=run.seed,
        device=plain.order.device,
        counters=(*steps.FEATURES, "right"),
        features=model.encoder.dim,
    )
    s.optimizer.add_param_group({"params": [*model.head.parameters()], "weight_decay": 0.0, "lr": s.lr.clone()})
    return s


def rows(data: Dataset) -> Rows:
    if data.labels is None:
        raise BadInput(f"{data.name} has no labels, and a classifier needs them")
    return Rows(data, {"labels": data.labels})


def step_of(run: Run, s: State, steps_per_epoch: int) -> Callable[[], None]:
    """`steps.two_views`, and in the same step one of the classifier: the encoder's own are the same as without."""
    n, device, model = run.batch_size, s.order.device, cast(Watched, s.model)
    mode, precision = engine.choose(run.mode, run.precision, device)
    fuse, rate = engine.fuser(mode), run.rate(steps_per_epoch)
    head_lr = s.optimizer.param_groups[1]["lr"] = torch.zeros_like(s.lr)

    def make_views(noise: Tensor) -> tuple[Tensor, Tensor]:
        batch = s.batch(n, steps_per_epoch)
        views = run.augment(torch.cat([batch["images"]] * 2), noise)
        return views.contiguous(memory_format=torch.channels_last), batch["labels"]

    def forward(views: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            h = model.encoder.features(views)
            z = model.encoder.map(model.encoder.projector(h))
        logits, y = model.head(h.detach().float()), torch.cat([y, y])
        return run.loss(z[:n], z[n:]), z, F.cross_entropy(logits, y), (logits.argmax(1) == y).sum()

    def update() -> None:
        s.lr.copy_(rate(s.step))
        head_lr.copy_(s.lr * (PEAK / run.lr))
        s.optimizer.step()

    def tally(loss: Tensor, z: Tensor, right: Tensor) -> None:
        steps.count_features(s, loss, z)
        s.totals[RIGHT] += right

    make_views, forward, update, tally = map(fuse, (make_views, forward, update, tally))

    def step() -> None:
        loss, z, of_head, right = forward(*make_views(augment.draw_noise(2 * n, generator=s.generator)))
        (loss + of_head).backward()
        update()
        s.optimizer.zero_grad()
        tally(loss.detach(), z.detach(), right)

    return engine.executor(step, mode, state=s.changing, generator=s.generator)


def train(run: Run, data: Dataset, test: Dataset, folder: Path) -> Found:
    """Train both in `folder`, or go on there."""
    classes, device = classes_of(data), run.torch_device()
    now: list[Watched] = []

    def begun() -> State:
        s = begin(run, data, classes)
        now.append(cast(Watched, s.model))
        return s

    def ask() -> float:
        (model,) = now
        found = finetune.accuracy(model.encoder, {"h": model.head}, test, device=device, precision=run.precision)["h"]
        model.encoder.train()  # as it was
        return found

    def after_epoch(epoch: int) -> dict[str, Any]:
        return {} if epoch % max(1, run.epochs // SHOWN) else {"online": ask()}

    line = partial(line_of, batch_size=run.batch_size)
    about = rundir.describe("online", run.to_json(), data, device)
    job = Job(
        rows=rows(data),
        batch_size=run.batch_size,
        epochs=run.epochs,
        device=device,
        line=line,
        note="loss {loss:.3f}  right {right:.1%}",
        label=f"{data.name}, with a classifier",
        after_epoch=after_epoch,
        keep=replace(
            Keep(folder, about, again="the same command", seconds=run.checkpoint_seconds), **loop.as_begun(folder)
        ),
    )
    s = loop.run_job(job, begin=begun, step=partial(step_of, run))
    test_accuracy = ask()
    views = line(dict(zip(s.counters, s.totals.tolist(), strict=True)), job.steps_per_epoch)["right"]
    model = cast(Watched, s.model).encoder.eval()
    encoder.save(model, folder)
    by_epoch = {line["epoch"]: line["online"] for line in rundir.read_log(folder) if "online" in line}
    return Found(model, test_accuracy, views, by_epoch)


def line_of(totals: dict[str, float], taken: int, *, batch_size: int) -> dict[str, Any]:
    """What the log shows of an epoch so far: the encoder's, and the share of views that the classifier had right."""
    return {**steps.features_line(totals, taken), "right": totals["right"] / taken / (2 * batch_size)}


def classes_of(data: Dataset) -> int:
    assert data.labels is not None
    return len(data.classes) if data.classes else int(data.labels.max()) + 1


def run_of(data: Literal["digits", "cifar10", "cifar100"], whole: bool) -> Run:
    """CL's run: the recipe of the data set (warm-up aside), or on CIFAR with the narrow net for a CPU."""
    run = RECIPES[data]
    if data != "digits" and not whole:
        run = replace(run, backbone=cifar10.NARROW.backbone, precision=cifar10.NARROW.precision, epochs=50)
    return replace(run, map=maps.identity)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=("digits", "cifar10", "cifar100"))
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--whole", action="store_true", help="the whole ResNet-18 and 200 epochs")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=Path("experiments/results"))
    asked = parser.parse_args()
    run = replace(run_of(asked.data, asked.whole), data_root=asked.data_root, seed=asked.seed)
    run = replace(run, epochs=asked.epochs or run.epochs)
    run = replace(run, warmup_epochs=min(10, max(2, run.epochs // 5)))
    name = f"{asked.data}{'-whole' * asked.whole}-{run.epochs}epochs-s{run.seed}"
    data, test = run.load("train"), run.load("test")
    found = train(run, data, test, asked.runs / "online" / name)
    about = {"experiment": "online", "name": name, "by_epoch": found.by_epoch, **provenance.made(run.torch_device())}
    about["run"] = {k: v for k, v in run.to_json().items() if k not in rundir.FREE}
    measures = {"online": found.test, "online_views": found.views}
    ledger.put(asked.results / "online.jsonl", {**about, "measures": measures})  # the heads take as long again
    probes = protocol.heads(found.encoder, run, data, test, device=run.torch_device())
    ledger.put(asked.results / "online.jsonl", {**about, "measures": {**measures, **probes}})
    print(f"{name}: online {100 * found.test:.1f} %, of its own views {100 * found.views:.1f} %")
    for way, accuracy in probes.items():
        print(f"  {protocol.WAYS[way]}: {100 * accuracy:.1f} %")


if __name__ == "__main__":
    main()
