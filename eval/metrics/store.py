"""Features of images and texts, computed once and kept on disk by content.

Each vector is a file <folder>/<network>/<first letters>/<sha256 of the content>.npy. `network` is a
hash of library, weights and resize, so no other network reads it.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from configs.downloads import damage
from eval.metrics.base import ImageSet, Unavailable
from support.durable import new_file, reason
from support.output import remark
from support.pictures import as_rgb
from support.progress import Progress, plural

Encode = Callable[[list], np.ndarray]  # images or texts -> (number, features)


class FeatureStore:
    """Feature vectors by content. In memory are one batch of images and one vector per image."""

    def __init__(self, folder: str | Path, batch_size: int):
        """Use a folder. batch_size: images or texts per call of a network."""
        self.folder, self.batch_size = Path(folder), batch_size
        self.computed = 0  # images whose features were not on disk

    def images(self, network: str, images: ImageSet, encode: Encode) -> np.ndarray:
        """Return the features of the images, (images, features) float32.

        network: what the features depend on. encode: takes RGB images that are not yet on disk.
        """

        def load(number: int) -> Image.Image:
            try:
                with Image.open(images.paths[number]) as image:
                    picture = as_rgb(image)
                    picture.info["file"] = str(images.paths[number])  # for errors
                    return picture
            except (OSError, SyntaxError, ValueError) as error:
                raise Unavailable(f"{images.paths[number]} cannot be read: {error}") from error

        return self._rows((network, "image"), images.keys, load, encode)

    def texts(self, network: str, texts: Sequence[str], encode: Encode) -> np.ndarray:
        """Return the features of the texts, (texts, features) float32."""
        keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        return self._rows((f"{network}, texts", "text"), keys, lambda number: texts[number], encode)

    def _rows(
        self,
        of: tuple[str, str],
        keys: Sequence[str],
        load: Callable[[int], object],
        encode: Encode,
    ) -> np.ndarray:
        """Return the rows of these keys. of: the network, and what a key is of: image or text."""
        network, noun = of
        folder = self.folder / hashlib.sha256(network.encode()).hexdigest()[:16]
        paths = {key: folder / key[:2] / f"{key}.npy" for key in keys}
        numbers = {key: number for number, key in enumerate(keys)}
        missing = [key for key in paths if not paths[key].is_file()]
        rows: dict[str, np.ndarray] = {}
        named = network.partition(" [")[0]  # without the hash of its weights
        what = f"features of {plural(len(missing), noun)} by {named}"
        with Progress(what, len(missing), shown=len(missing) > 0) as progress:
            progress.unit = noun
            progress.begin()
            for start in range(0, len(missing), self.batch_size):
                batch = missing[start : start + self.batch_size]
                new = encode([load(numbers[key]) for key in batch]).astype(np.float32)
                if not np.isfinite(new).all():
                    raise Unavailable(
                        f"{named}: expected features, got NaN or infinity; check its weights"
                    )
                for key, row in zip(batch, new, strict=True):
                    rows[key] = row
                    self._keep(paths[key], row)
                self.computed += len(batch) * (noun == "image")
                progress.update(len(batch))
        return np.stack([rows[key] if key in rows else _read(paths[key]) for key in keys])

    def _keep(self, path: Path, row: np.ndarray) -> None:
        """Write a row if the disk has room, since the metric needs no cache."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with new_file(path) as file:
                np.save(file, row, allow_pickle=False)
        except OSError as error:
            remark(f"--cache_dir {self.folder}: not kept: {reason(error)}")


def _read(path: Path) -> np.ndarray:
    try:
        return np.load(path)
    except (OSError, ValueError, EOFError) as error:
        why = f"damaged ({damage(path, error)}); delete it to compute it again"
        raise Unavailable(f"{path} is {why}") from error
