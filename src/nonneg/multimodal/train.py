"""Training on images and their texts. The loop is in loop.py, the step is `steps.paired`."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nonneg import loop, progress, rundir, steps
from nonneg.errors import BadInput
from nonneg.loop import Job, Keep, Rows, State
from nonneg.multimodal import encoder, texts, tokens
from nonneg.multimodal.encoder import PairEncoder, TextEncoder
from nonneg.multimodal.run import PairRun
from nonneg.pairs import Pairs
from nonneg.run import anywhere, to_calm


def train_pairs(
    run: PairRun,
    folder: Path | str,
    *,
    data: Pairs | None = None,
    resume: bool = False,
    previous: bool = False,
    overwrite: bool = False,
    label: str = "training",
) -> PairEncoder:
    """Train `run` in `folder` and return both encoders, which are also saved there; `resume` continues exactly."""
    run = _anywhere(run)
    data, folder, device = data or run.load_pairs("train"), Path(folder), run.torch_device()
    if len({tokens.normalise(text) for text in data.captions}) < 2:
        raise BadInput(
            f"the training images of {data.name} have one text only (in {len(data.captions)} captions), and images can "
            "only be told by two texts or more" + f" ({data.images.said_skipped()})" * bool(data.skipped)
        )
    model = fresh(run, data)
    read, cut = model.text.read(data.captions)
    if cut:
        progress.say(f"{cut} of {len(data.captions)} captions are longer than the text encoder reads, and are cut")
    rows = Rows(data.images, {"first": data.first, "counts": data.counts})

    def after_epoch(epoch: int) -> dict[str, Any]:  # noqa: ARG001 (what is learned is the same model in every epoch)
        return {} if model.log_scale is None else {"temperature": round(model.temperature().item(), 5)}

    job = Job(
        rows=rows,
        batch_size=run.batch_size,
        epochs=run.epochs,
        device=device,
        line=steps.features_line,
        note="loss {loss:.3f}  alive {alive}  zeros {zeros:.0%}",
        label=label,
        advice=to_calm(run.loss),
        strict=run.strict,
        after_epoch=after_epoch,
        keep=Keep(
            folder,
            describe(run, data, cut),
            again=rundir.resume_words(run, folder),
            defaults=PairRun().to_json(),
            seconds=run.checkpoint_seconds,
            tensorboard=run.tensorboard,
            resume=resume,
            previous=previous,
            overwrite=overwrite,
        ),
    )
    step = partial(steps.paired, run, run.loss, read.to(device))
    loop.run_job(job, begin=lambda: begin(run, model, rows), step=step)
    encoder.save(model, folder)
    return model.eval()


def _anywhere(run: PairRun) -> PairRun:
    """`run.anywhere`, and so the files of embeddings of one's own."""
    run = anywhere(run)
    if isinstance(run.text, partial) and run.text.func is texts.vectors:
        files = {name: str(Path(path).expanduser().absolute()) for name, path in run.text.keywords.items()}
        run = replace(run, text=partial(texts.vectors, **files))
    return run


def trained(run: PairRun, folder: Path, data: Pairs, label: str) -> PairEncoder:
    """The run's encoders: loaded if it is finished, continued if it was begun, trained otherwise."""
    if (folder / "model.safetensors").exists():
        rundir.check_same(describe(_anywhere(run), data, 0), folder, defaults=PairRun().to_json(), finished=True)
    else:
        train_pairs(run, folder, data=data, **loop.as_begun(folder), label=label)
    return encoder.load(folder)  # always from the file: what is measured is what anyone can load


def describe(run: PairRun, data: Pairs, cut: int) -> dict[str, Any]:
    """What run.json says of this training."""
    about = rundir.describe(run.trains, run.to_json(), data.images, run.torch_device())
    said = {"captions": len(data.captions), "texts": len(set(data.captions)), "cut": cut}
    return {**about, "data": {**about["data"], **said, "fingerprint": data.fingerprint()}}


def fresh(run: PairRun, data: Pairs) -> PairEncoder:
    """The model before the first step, on the run's device; all randomness comes from `run.seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        image = run.encoder(data.images)
        text = TextEncoder(run.text(data.captions), projector=run.projector, map=run.map)
    model = PairEncoder(image, text, temperature=run.first_temperature())
    return model.to(run.torch_device(), memory_format=torch.channels_last).train()  # pyright: ignore[reportCallIssue]


def begin(run: PairRun, model: PairEncoder, rows: Rows) -> State:
    """The state before the first step."""
    return loop.begin(
        model,
        rows,
        optimizer=partial(run.optimizer, model.groups(), weight_decay=run.weight_decay),
        batch_size=run.batch_size,
        seed=run.seed,
        device=run.torch_device(),
        counters=steps.FEATURES,
        features=model.dim,
    )
