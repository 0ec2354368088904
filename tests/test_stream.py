"""Images that stay on disk or on the host train the same model as images on the device, and survive mishaps."""

import json
import os
import re
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nonneg import augment, backbones, data, files, loop, rundir, train
from nonneg.data import Dataset, Files
from nonneg.data.memory import free_bytes
from nonneg.data.stream import RING, Decoders, Source, in_order, replace_unreadable, workers
from nonneg.encoder import Encoder
from nonneg.errors import BadInput
from nonneg.features import extract
from nonneg.finetune import scores
from nonneg.run import FOLDER

CPU = torch.device("cpu")

RUN = replace(
    FOLDER,
    backbone=partial(backbones.small_net, width=4),
    projector=(16, 8),
    augment=augment.gentle,
    batch_size=8,
    epochs=2,
    warmup_epochs=0,
    image_size=16,
    checkpoint_seconds=0.0,
)


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode in threads unless a test is about the processes, which take seconds to start."""
    monkeypatch.setenv("NONNEG_WORKERS", "0")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """50 pictures, 40 of them for training, of several kinds and sizes."""
    random = np.random.default_rng(0)
    for i in range(50):
        pixels = random.integers(0, 256, (20 + i % 3, 24, 3), dtype=np.uint8)
        path = tmp_path / "pictures" / "ab"[i % 2] / f"{i}.{('png', 'jpg')[i % 3 == 0]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return tmp_path / "pictures"


def load(root: Path, gigabytes: float, monkeypatch: pytest.MonkeyPatch, **options: object) -> Dataset:
    monkeypatch.setenv("NONNEG_RESIDENT_GB", str(gigabytes))
    return data.folder(root=root, image_size=16, **options)  # type: ignore[arg-type]


@pytest.fixture
def both(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Dataset, Dataset]:
    """The same folder in memory and on disk."""
    return load(root, 1, monkeypatch), load(root, 0, monkeypatch)


def same_model(a: Path, b: Path) -> bool:
    x, y = (files.read_tensors(f / "model.safetensors")[0] for f in (a, b))
    return x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x)


def spoil(path: Path) -> None:
    """Cut a picture in half: it still opens, but cannot be decoded."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


# Files


def test_a_folder_left_on_disk_reads_like_the_one_in_memory(both: tuple[Dataset, Dataset]) -> None:
    memory, disk = both
    assert isinstance(memory.images, torch.Tensor) and isinstance(disk.images, Files)
    assert disk.images.shape == memory.images.shape == (40, 3, 16, 16) and len(disk) == 40
    assert (disk.ids, disk.classes, disk.skipped) == (memory.ids, memory.classes, memory.skipped)
    assert (disk.channels, disk.image_size, disk.images.dtype) == (3, 16, torch.uint8)
    assert disk.labels is not None and memory.labels is not None and torch.equal(disk.labels, memory.labels)
    for at in (7, -1, slice(3, 9), slice(None), slice(None, None, 7), torch.tensor([5, 5, 0])):
        assert torch.equal(disk.images[at], memory.images[at])
    few = disk.subset([4, 2])
    assert isinstance(few.images, Files) and few.ids == [disk.ids[4], disk.ids[2]]
    assert torch.equal(few.images[:], memory.images[[4, 2]])


def test_a_run_that_was_held_and_would_be_streamed_says_so(both: tuple[Dataset, Dataset], tmp_path: Path) -> None:
    for then, now, advice in ((*both, "the GB that they take"), (*both[::-1], "0$")):
        about = [rundir.describe("encoder", {}, data, torch.device("cpu")) for data in (then, now)]
        assert about[0]["data"]["fingerprint"] != about[1]["data"]["fingerprint"]
        files.write_json(tmp_path / "run.json", about[0])
        with pytest.raises(BadInput, match=rf"then and are .* now: set NONNEG_RESIDENT_GB to {advice}"):
            rundir.check_same(about[1], tmp_path, defaults={})


def test_the_limit_is_in_bytes_of_pixels(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = 40 * 3 * 16 * 16 / 2**30
    assert isinstance(load(root, exact, monkeypatch).images, torch.Tensor)
    assert isinstance(load(root, exact * 0.999, monkeypatch).images, Files)
    for wrong in ("many", "-1", "nan", "inf"):
        monkeypatch.setenv("NONNEG_RESIDENT_GB", wrong)
        with pytest.raises(BadInput, match=f"NONNEG_RESIDENT_GB is '{wrong}'"):
            data.folder(root=root)


def test_without_a_limit_half_of_the_free_memory_is_the_limit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NONNEG_RESIDENT_GB", raising=False)
    where, needed, prints = sys.modules["nonneg.data.folder"], 40 * 3 * 16 * 16, []
    monkeypatch.setattr(where, "HASHED_GB", 0.0)
    for free, kind in ((2 * needed, torch.Tensor), (2 * needed - 2, Files)):
        monkeypatch.setattr(where, "free_bytes", lambda free=free: free)
        found = data.folder(root=root, image_size=16)
        assert isinstance(found.images, kind)
        prints.append((found.fingerprint(), found.subset([3, 1]).fingerprint()))
    assert prints[0] == prints[1]  # a run may be resumed where memory is short
    monkeypatch.setattr(where, "HASHED_GB", 2.0)
    assert isinstance(data.folder(root=root, image_size=16).images, torch.Tensor)  # however little is free


def test_free_memory_is_the_machines_or_what_its_container_leaves(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert free_bytes(tmp_path) == 4 * 2**30  # the system does not say
    write("proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:  5000 kB\n")
    assert free_bytes(tmp_path) == 5000 * 1024
    write("sys/fs/cgroup/memory.max", "max\n")
    write("sys/fs/cgroup/memory.stat", "anon 1000\nfile 4000000\n")
    assert free_bytes(tmp_path) == 5000 * 1024
    write("sys/fs/cgroup/memory.max", "3000000\n")
    assert free_bytes(tmp_path) == 3000000 - 1000  # what files are cached can be dropped
    write("sys/fs/cgroup/memory.stat", "anon 4000000\n")
    assert free_bytes(tmp_path) == 0
    assert 0 < free_bytes() < 2**50


def test_what_is_no_picture_is_skipped_with_the_same_words(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in {"a/text.jpg": b"words", "a/empty.png": b"", "b/page.txt": b"x"}.items():
        (root / name).write_bytes(content)
    (root / "a" / "link.png").symlink_to(root / "gone.png")
    os.mkfifo(root / "a" / "pipe.png")
    Image.fromarray(np.ones((5, 5), np.float32)).save(root / "a" / "float.tif")
    (root / "c").mkdir()
    for split in ("train", "test"):
        memory, disk = (load(root, gb, monkeypatch, split=split) for gb in (1, 0))
        assert disk.skipped == memory.skipped and len(disk.skipped) > 0
        assert (disk.ids, disk.classes) == (memory.ids, memory.classes)
    with pytest.raises(BadInput, match=r"b/page\.txt"):
        load(root, 0, monkeypatch, strict=True)
    (root / "b" / "page.txt").unlink()
    with pytest.raises(BadInput, match=r"a/[a-z]+\.[a-z]+: .*without strict"):
        load(root, 0, monkeypatch, strict=True)


def test_the_fingerprint_of_files_sees_names_lengths_and_size_but_not_dates(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(root, 0, monkeypatch)
    path = root / first.ids[3]
    os.utime(path, (0, 0))
    assert load(root, 0, monkeypatch).fingerprint() == first.fingerprint()
    assert data.folder(root=root, image_size=12).fingerprint() != first.fingerprint()
    assert first.subset(range(39)).fingerprint() != first.fingerprint()
    path.write_bytes(path.read_bytes() + b"\0")
    longer = load(root, 0, monkeypatch).fingerprint()
    assert longer != first.fingerprint()


def test_a_file_that_has_gone_bad_is_named_when_asked_for(both: tuple[Dataset, Dataset], root: Path) -> None:
    _, disk = both
    spoil(root / disk.ids[5])
    assert len(disk.images[:5]) == 5
    with pytest.raises(BadInput, match=rf"{re.escape(disk.ids[5])} cannot be read any more: .*runcated"):
        disk.images[2:9]


# Batches


@pytest.mark.parametrize("where", ["files", "tensor", "processes"])
def test_batches_are_the_images_in_the_order_asked_for(
    where: str, both: tuple[Dataset, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, disk = both
    if where == "processes":
        monkeypatch.setenv("NONNEG_WORKERS", "3")
    pixels = memory.images[:]
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0)).repeat(2)
    with Source(memory.images if where == "tensor" else disk.images, batch_size=7, device=CPU) as source:
        for _ in range(2):  # the workers serve one epoch after the other
            taken = [x.clone() for x, bad in source.batches(order) if not bad]
            assert [len(x) for x in taken] == [7] * 11 + [3] and len(taken) > 2 * RING
            assert torch.equal(torch.cat(taken), pixels[order])
        left = source.batches(order)
        next(left)  # and an epoch left early does not write into the next one
        assert all(torch.equal(x, y) for (x, _), y in zip(source.batches(order), pixels[order].split(7), strict=True))


def test_a_batch_stays_as_it_is_until_the_next_is_taken(both: tuple[Dataset, Dataset]) -> None:
    memory, disk = both
    with Source(disk.images, batch_size=4, device=CPU) as source:
        for i, (x, _) in enumerate(source.batches(torch.arange(40))):
            time.sleep(0.02)  # long enough for all that is under way to be decoded
            assert torch.equal(x, memory.images[4 * i : 4 * i + 4])


def test_in_order_gives_every_image_once(both: tuple[Dataset, Dataset]) -> None:
    for d in both:
        parts = [x.clone() for x, _ in in_order(d.images, batch_size=9, device=CPU)]
        assert torch.equal(torch.cat(parts), both[0].images[:])


@pytest.mark.parametrize("bad", [{0}, {4}, {1, 2}, {3, 4}, {4, 0}, {0, 1, 2, 3}, set()])
def test_an_unreadable_row_becomes_the_next_readable_one(bad: set[int]) -> None:
    x = torch.arange(5).view(5, 1)
    replace_unreadable(x, dict.fromkeys(bad, "torn"))
    want = [next((i + k) % 5 for k in range(5) if (i + k) % 5 not in bad) for i in range(5)]
    assert x.flatten().tolist() == want


def test_what_an_order_left_early_still_reads_does_not_end_up_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NONNEG_WORKERS", "4")
    images = torch.arange(16, dtype=torch.uint8).view(-1, 1, 1, 1)
    with Source(images, batch_size=2, device=CPU) as source:
        gather = source.fill

        def late(rows: list[int], out: np.ndarray) -> dict[int, str]:
            time.sleep(0.1 * (0 < rows[0] < 8))
            return gather(rows, out)

        source.fill = late
        next(source.batches(torch.arange(8)))
        again = source.batches(torch.arange(8, 16))
        found = [next(again)[0].flatten().tolist()]
        time.sleep(0.2)
        assert found + [x.flatten().tolist() for x, _ in again] == [[8, 9], [10, 11], [12, 13], [14, 15]]


def test_a_batch_without_a_readable_image_is_refused() -> None:
    with pytest.raises(BadInput, match=r"none of the 2 images of a batch can be read, the first: gone"):
        replace_unreadable(torch.zeros(2, 1), {0: "gone", 1: "gone"})


def alive(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = path.parent.name, path.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it ended just now
            continue
        if rest[3] == str(session) and rest[0] not in "ZX":
            found.append(int(pid))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_decoders_name_what_they_cannot_read_end_with_us_and_are_missed(
    both: tuple[Dataset, Dataset], tmp_path: Path
) -> None:
    memory, disk = both
    assert isinstance(disk.images, Files)
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff \n.png")  # a name that is neither Unicode nor one line
    Path(odd).write_bytes(Path(disk.images.paths[1]).read_bytes())
    out = np.empty((3, 3, 16, 16), np.uint8)
    with Decoders(2) as decoders:
        bad = decoders.fill([disk.images.paths[0], str(tmp_path / "gone.png"), odd], out)
        assert bad == {1: "no such file (a broken link?)"} and (out[1] == 0).all()
        assert np.array_equal(out[[0, 2]], memory.images[:2].numpy())
        session = decoders.process.pid
        assert len(alive(session)) == 2
        assert "libtorch" not in Path(f"/proc/{session}/maps").read_text()  # a decoder starts in a moment
        os.kill(session, 9)
        with pytest.raises(
            BadInput, match=r"a process that decodes images has ended.*NONNEG_WORKERS.*continue the run"
        ):
            for _ in range(2):  # one of the two has ended
                decoders.fill([odd], out[:1])
    deadline = time.monotonic() + 10
    while alive(session) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(session)


# Training


def test_a_streamed_run_and_one_in_memory_end_with_the_same_model(
    both: tuple[Dataset, Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    memory, disk = both
    train(RUN, tmp_path / "memory", data=memory)
    assert "streamed" not in capfd.readouterr().err
    monkeypatch.setenv("NONNEG_WORKERS", "2")
    train(RUN, tmp_path / "disk", data=disk)
    assert "40 images are streamed from disk" in capfd.readouterr().err
    monkeypatch.setattr(loop, "_fits", lambda *_: False)
    train(RUN, tmp_path / "host", data=memory)
    assert same_model(tmp_path / "memory", tmp_path / "disk") and same_model(tmp_path / "memory", tmp_path / "host")
    logs = [[line["loss"] for line in rundir.read_log(tmp_path / name)] for name in ("memory", "disk", "host")]
    assert logs[0] == logs[1] == logs[2] and len(logs[0]) == 2


def test_a_batch_of_all_images_is_not_shuffled_twice(both: tuple[Dataset, Dataset], tmp_path: Path) -> None:
    for name, d in zip(("memory", "disk"), both, strict=True):
        train(replace(RUN, batch_size=40), tmp_path / name, data=d)
    assert same_model(tmp_path / "memory", tmp_path / "disk")


def test_a_streamed_run_resumed_inside_an_epoch_ends_with_the_same_model(
    both: tuple[Dataset, Dataset], tmp_path: Path
) -> None:
    _, disk = both
    calls = [0]

    def falls_over(z1: torch.Tensor, z2: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        if calls[0] == 8:  # in the second epoch, after two of its five steps
            raise KeyboardInterrupt
        return RUN.loss(z1, z2)

    with pytest.raises(KeyboardInterrupt):
        train(replace(RUN, loss=falls_over), tmp_path / "cut", data=disk)
    assert rundir.checkpoint_step(tmp_path / "cut") == 7
    about = files.read_json(tmp_path / "cut" / "run.json")
    files.write_json(tmp_path / "cut" / "run.json", about | {"run": RUN.to_json()})
    train(RUN, tmp_path / "cut", data=disk, resume=True)
    train(RUN, tmp_path / "whole", data=disk)
    assert same_model(tmp_path / "cut", tmp_path / "whole")


def test_an_image_that_cannot_be_decoded_is_replaced_and_listed_once(
    both: tuple[Dataset, Dataset], root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    memory, disk = both
    spoil(root / disk.ids[5])
    line = f"{disk.ids[5]}: "
    seen: list[torch.Tensor] = []

    def spy(images: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        seen.append(images[: len(images) // 2].clone())
        return augment.none(images, noise)

    train(replace(RUN, augment=spy, epochs=3), tmp_path / "a", data=disk)
    assert " ".join(capfd.readouterr().err.split()).count(line) == 1
    assert len(disk.skipped) == 1 and disk.skipped[0].startswith(line)
    log = [json.loads(text) for text in (tmp_path / "a" / "log.jsonl").read_text().splitlines()]
    assert [x["skipped"] for x in log if "skipped" in x] == [disk.skipped] and len(rundir.read_log(tmp_path / "a")) == 3
    for epoch in torch.cat(seen).view(3, 40, -1):
        counts = [(epoch == image.flatten()).all(1).sum().item() for image in memory.images[:]]
        assert counts[5] == 0 and sorted(counts) == [0] + [1] * 38 + [2]
    disk.skipped.clear()
    with pytest.raises(BadInput, match=rf"{re.escape(line)}.*without --strict"):
        train(replace(RUN, strict=True), tmp_path / "b", data=disk)


def test_features_of_files_are_those_of_the_tensor_without_what_cannot_be_read(
    both: tuple[Dataset, Dataset], root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    memory, disk = both
    model = train(replace(RUN, epochs=1), tmp_path / "a", data=memory)
    want, got = (extract(model, d, batch_size=9) for d in both)
    assert np.array_equal(want.h, got.h) and np.array_equal(want.z.toarray(), got.z.toarray()) and want.ids == got.ids
    for i in (5, 30):
        spoil(root / disk.ids[i])
    capfd.readouterr()
    less = extract(model, disk, batch_size=9)
    assert f"2 of 40 images cannot be read, first {disk.ids[5]}" in " ".join(capfd.readouterr().err.split())
    rest = [i for i in range(40) if i not in (5, 30)]
    assert less.ids == [want.ids[i] for i in rest] and np.array_equal(less.h, want.h[rest])
    assert less.labels is not None and want.labels is not None and np.array_equal(less.labels, want.labels[rest])
    assert np.array_equal(less.z.toarray(), want.z[rest].toarray())
    for name in disk.ids:
        (root / name).unlink()
    with pytest.raises(BadInput, match=r"40 of 40 images cannot be read"):
        extract(model, disk)


@pytest.mark.parametrize("hidden", [False, True])
def test_too_little_memory_says_what_to_lower(hidden: bool, both: tuple[Dataset, Dataset], tmp_path: Path) -> None:
    def greedy(z1: torch.Tensor, z2: torch.Tensor) -> torch.Tensor:
        del z1, z2
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total ...")
        finally:
            if hidden:
                raise RuntimeError("the capture failed")

    with pytest.raises(
        BadInput, match=r"too little GPU memory: the run needs 2.50 GiB.*--batch-size \(now 8\).*now 16"
    ):
        train(replace(RUN, loss=greedy), tmp_path / "a", data=both[0])


def test_where_memory_is_short_features_and_accuracies_are_taken_in_parts(
    both: tuple[Dataset, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Encoder(partial(backbones.small_net, width=4), projector=(8, 6), channels=both[0].channels).eval()
    data, head = both[0], torch.nn.Linear(6, 2)
    whole, right = extract(model, data), scores(model, {"z": head}, data)
    fits, small = 5, model.features

    def features(x: torch.Tensor) -> torch.Tensor:
        if len(x) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.")
        return small(x)

    monkeypatch.setattr(model, "features", features)
    parts, again = extract(model, data), scores(model, {"z": head}, data)
    assert np.allclose(parts.h, whole.h, atol=1e-6) and np.allclose(parts.z.toarray(), whole.z.toarray(), atol=1e-6)
    assert parts.ids == whole.ids and again["z"] == pytest.approx(right["z"], abs=1e-6)
    fits = 0
    with pytest.raises(torch.OutOfMemoryError):
        extract(model, data)


def test_other_errors_of_a_step_are_not_taken_for_it(both: tuple[Dataset, Dataset], tmp_path: Path) -> None:
    def broken(z1: torch.Tensor, z2: torch.Tensor) -> torch.Tensor:
        del z1, z2
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        train(replace(RUN, loss=broken), tmp_path / "a", data=both[0])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [("-1", "not negative"), ("many", "not negative"), ("99999", r"NONNEG_WORKERS is 99999 on \d+ cores; set it to")],
)
def test_a_number_of_decoders_that_cannot_be_meant_is_refused(
    given: str, sentence: str, both: tuple[Dataset, Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NONNEG_WORKERS", given)
    with pytest.raises(BadInput, match=sentence):
        workers()
    with pytest.raises(BadInput, match=sentence):
        train(RUN, tmp_path / "run", data=both[1])
    assert not (tmp_path / "run").exists()
