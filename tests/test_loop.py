"""The loop, whatever it trains: rows stay together, what a caller measures is logged, any model resumes exactly."""

import itertools
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nonneg import augment, backbones, data, files, finetune, loop, optim, rundir, steps
from nonneg.data import Dataset, stream
from nonneg.encoder import Encoder
from nonneg.errors import BadInput
from nonneg.loop import Job, Keep, Rows, State
from nonneg.run import DIGITS
from nonneg.train import train

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return data.digits(split="train").subset(range(200))


class Two(nn.Module):
    """Two parts that learn and one that does not: what the loop trains is the caller's choice."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.second, self.fixed = nn.Linear(64, 10), nn.Linear(64, 10), nn.Linear(64, 64)
        self.fixed.requires_grad_(False)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.fixed(x.mean(1).flatten(1))
        return {"a": self.first(x), "b": self.second(x)}


def job(rows: Rows, keep: Keep | None = None, **more) -> Job:
    line = partial(steps.answers_line, batch_size=50)
    return Job(rows=rows, batch_size=50, epochs=3, device=CPU, line=line, keep=keep, **more)


def work(rows: Rows, keep: Keep | None = None, optimizer=optim.adamw, **more) -> State:
    """Three epochs of four labelled steps; the second part alone first in the optimiser, each with its own decay."""

    def begin() -> State:
        model = Two()
        groups = [
            {"params": list(model.second.parameters())},
            {"params": list(model.first.parameters()), "weight_decay": 0.1},
        ]
        make = partial(optimizer, groups, weight_decay=0.0)
        return loop.begin(
            model, rows, optimizer=make, batch_size=50, seed=1, device=CPU, counters=steps.answers(("a", "b"))
        )

    rate = partial(optim.warmup_cosine, peak=0.01, warmup=2, total=12)
    step = partial(steps.labelled, batch_size=50, augmentation=augment.none, rate=rate)
    return loop.run_job(job(rows, keep, **more), begin=begin, step=step)


def eight(digits: Dataset) -> Rows:
    """The middle 8 x 8 pixels of digits, with their labels."""
    edge = (digits.image_size - 8) // 2
    middle = digits.images[:][:, :, edge : edge + 8, edge : edge + 8].clone()
    assert digits.labels is not None
    return Rows(replace(digits, images=middle), {"labels": digits.labels.clone()})


def keep(folder: Path, rows: Rows, **more) -> Keep:
    about = rundir.describe("two", {"lr": 0.01}, rows.dataset, CPU)
    return Keep(folder, about, again="the same again", seconds=0.0, **more)


def dies_at(step: int, monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Run `do` and cut it right after the checkpoint of that step."""
    save = rundir.save_checkpoint

    def cut(folder: Path, tensors: dict[str, Tensor], at: int, **more: float) -> None:
        save(folder, tensors, at, **more)
        if at == step:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(rundir, "save_checkpoint", cut)
        do()


@pytest.mark.parametrize("optimizer", [optim.adamw, optim.lars, optim.sgd])
def test_any_model_resumes_exactly(tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch, optimizer) -> None:
    rows = eight(digits)
    whole = work(rows, keep(tmp_path / "whole", rows), optimizer)
    in_memory = work(rows, None, optimizer)
    dies_at(7, monkeypatch, lambda: work(rows, keep(tmp_path / "cut", rows), optimizer))
    resumed = work(rows, keep(tmp_path / "cut", rows, resume=True), optimizer)
    for s in (in_memory, resumed):
        assert all(torch.equal(v, whole.tensors()[k]) for k, v in s.tensors().items())
    logs = [[{**line, "seconds": 0} for line in rundir.read_log(tmp_path / name)] for name in ("whole", "cut")]
    assert logs[0] == logs[1] and len(logs[0]) == 3
    assert set(logs[0][0]) == {
        "epoch", "step", "loss", "loss_a", "loss_b", "accuracy_a", "accuracy_b", "seconds"
    }  # fmt: skip
    assert torch.equal(whole.model.state_dict()["fixed.weight"], Two().fixed.weight)
    assert not torch.equal(whole.model.state_dict()["first.weight"], Two().first.weight)


def test_checkpoints_are_so_many_seconds_apart(
    tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, saved, kept = [0.0], [], rundir.save_checkpoint
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(rundir, "save_checkpoint", lambda *a, **k: (saved.append(a[2]), kept(*a, **k)))

    none = augment.none

    def slow(images: Tensor, noise: Tensor) -> Tensor:
        now[0] += 4.0  # a step
        return none(images, noise)

    monkeypatch.setattr(augment, "none", slow)
    rows = eight(digits)
    work(rows, replace(keep(tmp_path / "a", rows), seconds=10.0))
    assert saved == [3, 6, 9, 12]


def test_a_second_ctrl_c_does_not_wait_for_the_step() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), loop._stop_requested() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_what_is_measured_after_an_epoch_is_in_its_line_and_changes_nothing(tmp_path: Path, digits: Dataset) -> None:
    rows, seen = eight(digits), []

    def measure(epoch: int) -> dict[str, float]:
        seen.append(epoch)
        return {"test_accuracy": epoch / 10}

    measured = work(rows, keep(tmp_path / "a", rows), after_epoch=measure)
    assert seen == [1, 2, 3]
    assert [line["test_accuracy"] for line in rundir.read_log(tmp_path / "a")] == [0.1, 0.2, 0.3]
    plain = work(rows)
    assert all(torch.equal(v, plain.tensors()[k]) for k, v in measured.tensors().items())


def test_live_features_are_those_of_the_epoch_also_where_it_was_resumed(
    tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, live = (
        eight(digits),
        [0, 1, 2, 3, 2, 0, 0, 1, 5, 5, 5, 5],
    )  # the feature that each of three times 4 steps sees

    def begin() -> State:
        model = nn.Linear(1, 1)
        make = partial(optim.sgd, model.parameters(), weight_decay=0.0)
        return loop.begin(
            model, rows, optimizer=make, batch_size=50, seed=1, device=CPU, counters=("alive",), features=6
        )  # fmt: skip

    def step(s: State, steps_per_epoch: int) -> Callable[[], None]:  # noqa: ARG001 (the signature of a step)
        def one() -> None:
            s.alive[live[int(s.step)]] = True
            s.step += 1
            s.totals[0] = s.alive.sum()

        return one

    def work(**how) -> None:
        some = replace(job(rows, keep(tmp_path / "run", rows, **how)), line=lambda totals, _: totals, note="{alive}")
        loop.run_job(some, begin=begin, step=step)

    dies_at(6, monkeypatch, work)
    work(resume=True)
    assert [line["alive"] for line in rundir.read_log(tmp_path / "run")] == [4, 3, 1]


def test_rows_stay_together_in_memory_and_streamed(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each image beside its own label and number, once an epoch, in both ways of bringing them."""
    assert digits.labels is not None
    rows = Rows(digits, {"labels": digits.labels, "number": torch.arange(200).view(-1, 1) * torch.ones(1, 3)})
    seen: dict[bool, list[int]] = {}
    for streamed in (False, True):
        monkeypatch.setattr(loop, "_fits", lambda *_, streamed=streamed: not streamed)
        here = seen[streamed] = []

        def begin() -> State:
            model = nn.Linear(1, 1)
            make = partial(optim.sgd, model.parameters(), weight_decay=0.0)
            return loop.begin(model, rows, optimizer=make, batch_size=50, seed=1, device=CPU, counters=("loss_a",))

        def step(s: State, steps_per_epoch: int, here=here) -> Callable[[], None]:
            def one() -> None:
                batch = s.batch(50, steps_per_epoch)
                which = batch["number"][:, 0].long()
                assert batch["number"].shape == (50, 3) and digits.labels is not None
                assert torch.equal(batch["images"], digits.images[which])
                assert torch.equal(batch["labels"], digits.labels[which])
                here.extend(which.tolist())
                s.step += 1

            return one

        loop.run_job(job(rows), begin=begin, step=step)
        assert all(sorted(here[at : at + 200]) == list(range(200)) for at in (0, 200, 400))
    assert seen[False] == seen[True]


def test_what_belongs_to_an_unreadable_image_goes_with_the_one_in_its_place(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert digits.labels is not None
    lost = {3, 77}
    monkeypatch.setattr(loop, "_fits", lambda *_: False)
    gather = stream.Source._gather

    def fails(self: stream.Source, rows: list[int], out) -> dict[int, str]:
        gather(self, rows, out)
        return {at: "gone" for at, row in enumerate(rows) if row in lost}

    monkeypatch.setattr(stream.Source, "_gather", fails)
    rows = eight(replace(digits, skipped=[]))
    rows.beside["labels"][list(lost)] = 10**6  # cross entropy would refuse such a label
    work(rows)
    assert sorted(rows.dataset.skipped) == sorted(f"{digits.ids[row]}: gone" for row in lost)
    assert capfd.readouterr().err.count("another image is taken in its place") == 2
    with pytest.raises(BadInput, match="gone; mend or remove it"):
        work(Rows(replace(rows.dataset, skipped=[]), rows.beside), strict=True)


def test_a_probe_in_a_folder_is_the_probe_in_memory_and_resumes(
    tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder(partial(backbones.small_net, width=4), projector=(8,), channels=1)
    probe = partial(finetune.probe, encoder, digits, digits, epochs=3, batch_size=50, augmentation=augment.gentle)
    for more in ({"on": ("h", "z")}, {"tune": True}):
        folder = tmp_path / f"tune-{'tune' in more}"
        want = probe(**more)
        with monkeypatch.context() as patch:
            clock = itertools.count(step=100.0)  # so that a minute passes with every step
            patch.setattr(loop.time, "monotonic", lambda clock=clock: next(clock))
            dies_at(5, patch, partial(probe, **more, folder=folder))
        got = probe(**more, folder=folder, resume=True)
        again = probe(**more, folder=folder, resume=True)  # nothing left to do
        for place, one in want.items():
            for other in (got[place], again[place]):
                assert torch.equal(one.head.weight, other.head.weight)
                assert (one.accuracy, one.train_accuracy) == (other.accuracy, other.train_accuracy)
        with pytest.raises(BadInput, match="already exists"):
            probe(**more, folder=folder)
        with pytest.raises(BadInput, match=r"begun with epochs = 3, not 4"):
            probe(**{**more, "epochs": 4}, folder=folder, resume=True)
        with pytest.raises(BadInput, match="another kind: probe, not encoder"):
            rundir.read_run(folder)


def test_only_one_process_trains_in_a_folder(tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, folder = eight(digits), tmp_path / "one"
    seen = []

    def second(epoch: int) -> dict[str, str]:
        begun = {p: p.read_bytes() for p in folder.iterdir()}
        for how in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(BadInput, match=r"another process is at work in .*one; wait for it"):
                work(rows, keep(folder, rows, **how))
        assert begun == {p: p.read_bytes() for p in folder.iterdir()}
        return {"seen": seen.append(epoch) or "refused"}

    whole = work(rows, keep(folder, rows), after_epoch=second)
    assert seen == [1, 2, 3] and torch.equal(whole.totals, work(rows).totals)
    work(rows, keep(folder, rows, resume=True))  # it is free again
    with pytest.raises(RuntimeError, match="no state"), monkeypatch.context() as patch:
        patch.setattr(loop, "begin", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("no state")))
        work(rows, keep(tmp_path / "none", rows))
    assert not (tmp_path / "none").exists()  # nothing came of it


def test_the_words_that_resume_a_run_can_be_typed() -> None:
    assert rundir.resume_words(DIGITS, Path("my run")) == "nonneg train digits --out 'my run' --resume"


def test_images_stay_on_a_gpu_if_they_leave_half_of_its_memory_free(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    size = digits.images[:].nbytes
    for free, fits in ((2 * size, True), (2 * size - 2, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 10 * size))
        assert loop._fits(digits, torch.device("cuda")) is fits
    assert "streamed from the host's memory" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 5)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 3)
    assert loop._fits(digits, torch.device("cuda"))  # what an earlier run left in torch's cache is free as well
    assert loop._fits(digits, CPU)


def test_settings_newer_than_a_run_folder_are_their_defaults(tmp_path: Path, digits: Dataset) -> None:
    run = replace(DIGITS, backbone=partial(backbones.small_net, width=4), projector=(8,), batch_size=50, epochs=1)
    train(run, tmp_path / "a", data=digits)
    about = files.read_json(tmp_path / "a" / "run.json")
    del about["kind"], about["run"]["batch_norm"]  # as written before there was a choice
    files.write_json(tmp_path / "a" / "run.json", about)
    train(run, tmp_path / "a", data=digits, resume=True)
    assert rundir.read_run(tmp_path / "a")[0].to_json() == run.to_json()
    with pytest.raises(BadInput, match="begun with batch_norm = joint, not per_view"):
        train(replace(run, batch_norm="per_view"), tmp_path / "a", data=digits, resume=True)


def test_rows_of_different_length_are_refused(digits: Dataset) -> None:
    with pytest.raises(BadInput, match="3 captions for 200 images; give one for each image"):
        Rows(digits, {"captions": torch.zeros(3)})


def test_a_loss_that_is_not_finite_stops_a_job_that_leaves_no_trace(digits: Dataset) -> None:
    rows = eight(digits)
    with pytest.raises(BadInput, match=r"training: the loss is not finite since step \d+ \(epoch 1\).* lower"):
        work(rows, optimizer=partial(optim.sgd, momentum=float("inf")))


def test_a_resumed_log_leaves_out_the_epochs_that_its_checkpoint_has_not_seen(tmp_path: Path) -> None:
    log = rundir.Log(tmp_path, 0, [])
    for epoch in (1, 2, 3):
        log.write({"epoch": epoch, "step": 10 * epoch}, seconds=epoch)
    rundir.Log(tmp_path, 25, [])  # killed between the third epoch and the checkpoint after it
    assert [line["epoch"] for line in rundir.read_log(tmp_path)] == [1, 2]
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"epoch": 3, "st')  # cut off by a kill
    assert [line["epoch"] for line in rundir.read_log(tmp_path)] == [1, 2]
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('\n{"epoch": 4, "step": 40}\n')
    with pytest.raises(BadInput, match="line 3 is not JSON"):
        rundir.read_log(tmp_path)


def test_a_run_is_resumed_with_the_threads_and_settings_it_was_begun_with(tmp_path: Path, digits: Dataset) -> None:
    about, before = keep(tmp_path, eight(digits)).about, torch.get_num_threads()
    files.write_json(tmp_path / "run.json", {**about, "run": {}, "threads": before + 1})  # older than the setting lr
    try:
        rundir.check_same(about, tmp_path, defaults={"lr": 0.01})
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    with pytest.raises(BadInput, match=r"was begun with lr = 0\.5, not 0\.01"):
        rundir.check_same(about, tmp_path, defaults={"lr": 0.5})


@pytest.mark.parametrize("optimizer", [optim.adamw, optim.lars, optim.sgd])
def test_moments_read_from_a_file_go_on_with_weights_that_lie_channels_last(digits: Dataset, optimizer) -> None:
    def begin() -> tuple[nn.Module, State]:
        torch.manual_seed(0)
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        make = partial(optimizer, model.parameters(), weight_decay=0.0)
        s = loop.begin(model, eight(digits), optimizer=make, batch_size=50, seed=0, device=CPU, counters=())
        s.lr.fill_(0.1)
        return model, s

    def learn(model: nn.Module, s: State, seed: int) -> None:
        model(torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))).square().sum().backward()
        s.optimizer.step()
        s.optimizer.zero_grad()

    model, s = begin()
    learn(model, s, seed=1)
    again, restored = begin()
    restored.restore({k: v.clone().contiguous() for k, v in s.tensors().items()})
    for each in ((model, s), (again, restored)):
        learn(*each, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
