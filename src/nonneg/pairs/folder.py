"""A folder of pictures and a captions file that names them."""

from collections.abc import Sequence
from pathlib import Path

from nonneg.data import Dataset
from nonneg.data.folder import (
    SIZE,
    Picture,
    decode,
    existing_folder,
    inspect,
    is_picture,
    refuse,
    relative,
    resident_bytes,
    split_folders,
    walk,
)
from nonneg.data.pictures import strictly_sized
from nonneg.data.splits import check, hold_out
from nonneg.errors import BadInput
from nonneg.pairs.captions import Caption, Places, read
from nonneg.pairs.dataset import Pairs, paired
from nonneg.progress import say


def folder(
    *,
    split: str = "train",
    root: Path | None = None,
    captions: Path | None = None,
    image_size: int | None = None,
    strict: bool = False,
) -> Pairs:
    """The images below `root` with what the file `captions` says of them, paired by id; images as `data.folder` has.

    An id is the path of an image below `root`, or its file name where that is enough, with or without its ending; one
    image may have many captions. `train/` beside `test/` are the splits; otherwise a fifth of the images, by a hash of
    their paths, is test. Captions without an image, images without a caption, empty and repeated captions are left out
    and listed in `skipped`; with `strict` each is an error.
    """
    check(split, image_size)
    root = existing_folder(root)
    if captions is None:
        raise BadInput("pairs of a folder need a captions file; pass --captions, a .csv, .tsv or .jsonl file")
    pictures, sides, skipped = _pictures(root, Path(captions))
    texts, bad = match(read(Path(captions)), [p.id for p in pictures], root)
    skipped += bad + [f"{p.id}: no caption" for p, mine in zip(pictures, texts, strict=True) if not mine]
    refuse(skipped if strict else [], root)
    chosen = [i for i in sides[split] if texts[i]]
    if not chosen:
        first = f" ({len(skipped)} things left out, first {skipped[0]})" if skipped else ""
        raise BadInput(f"{root} and {captions} have no pair of image and caption for split {split!r}{first}")
    if split == "train" and not any(texts[i] for i in sides["test"]):
        say(f"{root}: no test image has a caption, so that what is trained on the others cannot be measured")
    size = image_size or SIZE
    load = decode if len(chosen) * 3 * size**2 <= resident_bytes() else inspect
    with strictly_sized():
        images, good, unread = load([pictures[i] for i in chosen], size, root, strict=strict)
    if not good:
        raise BadInput(f"{root}: none of the {len(chosen)} images with captions can be read (first {unread[0]})")
    by_id = {pictures[i].id: texts[i] for i in chosen}
    data = Dataset("folder", images, None, None, [p.id for p in good], [*skipped, *unread])
    return paired(data, [by_id[p.id] for p in good])


def _pictures(root: Path, captions: Path) -> tuple[list[Picture], dict[str, Sequence[int]], list[str]]:
    """Every picture below `root`, which of them belong to which split, and what is no picture."""
    train_test = split_folders(root)
    pictures: list[Picture] = []
    skipped: list[str] = []
    sides: dict[str, Sequence[int]] = {}
    for split, place in zip(("train", "test"), train_test or (root, None), strict=True):
        begin = len(pictures)
        for path in walk(place) if place else ():
            name = relative(path, root)
            if is_picture(path):
                pictures.append(Picture(path, name, None))
            elif path.resolve() != captions.expanduser().resolve():
                skipped.append(f"{name}: not an image")
        sides[split] = range(begin, len(pictures))
    if not train_test:
        ids = [p.id for p in pictures]
        sides = {split: hold_out(ids, split) for split in ("train", "test")}
    return pictures, sides, skipped


def match(captions: Sequence[Caption], names: Sequence[str], root: Path) -> tuple[list[list[str]], list[str]]:
    """The captions of each of the images `names` below `root`, in the file's order, and those that cannot be used."""
    places, texts, skipped = Places(names, root), [[] for _ in names], []
    for caption in captions:
        at = places.find(caption) if caption.id else None
        if not caption.id:
            skipped.append(f"{caption.place}: names no image")
        elif at is None:
            skipped.append(f"{caption.place}, id {caption.id!r}: no image of that id")
        elif not caption.text:
            skipped.append(f"{caption.place}, id {caption.id!r}: empty caption")
        elif caption.text in texts[at]:
            skipped.append(f"{caption.place}, id {caption.id!r}: caption given twice")
        else:
            texts[at].append(caption.text)
    return texts, skipped
