"""Image folders, read by Pillow (extra ``train``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from optree.errors import OperandError

#: The suffixes of images.
SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"))


class ImageFolder(Sequence[np.ndarray]):
    """The images of a folder, as a sequence; each subfolder is a class.

    Parameters
    ----------
    path : str or Path
    size : (int, int), optional
        The height and width to which images are resized; by default all images must have the same size.
    mode : str
        Pillow's image mode: ``'RGB'``, or ``'L'`` for greyscale.

    Attributes
    ----------
    classes : list of str
        The names of the subfolders, sorted; empty if the images are in `path` itself.
    labels : numpy.ndarray
        The class of each image, of int64.
    paths : list of Path
        The images, sorted by class and name.

    Raises
    ------
    OperandError
        If there are no images.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "cats").mkdir()
    >>> Image.new("RGB", (4, 2)).save(folder / "cats" / "1.png")
    >>> images = optree.train.ImageFolder(folder)
    >>> len(images), images.classes, images.labels
    (1, ['cats'], array([0]))
    """

    def __init__(self, path: str | Path, size: tuple[int, int] | None = None, mode: str = "RGB") -> None:
        self._size, self._mode = size, mode
        root = Path(path)
        folders = sorted(x for x in root.iterdir() if x.is_dir())
        found = [(i, x) for i, folder in enumerate(folders or [root]) for x in sorted(folder.iterdir())]
        found = [(i, x) for i, x in found if x.suffix.lower() in SUFFIXES]
        if not found:
            raise OperandError(f"ImageFolder: there are no images in {root}, nor in the folders in it")
        self.classes = [folder.name for folder in folders]
        self.paths = [x for _, x in found]
        self.labels = np.array([i for i, _ in found], np.int64)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        """An image as a uint8 array of shape (height, width), or (height, width, channels) if there are several."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        with Image.open(self.paths[index]) as file:
            image = file.convert(self._mode)
        if self._size is not None:
            height, width = self._size
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(image)
