"""What a download leaves behind in place of the file: a pointer, a web page, nothing."""

from pathlib import Path

_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGES = (b"<!doctype html", b"<html", b"<?xml")
_HEAD = 200  # bytes


def failed_download(path: Path) -> str | None:
    """Return, in words, what stands in a file's place and how to get it; None if it seems real."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    except OSError:
        return None
    if not head:
        return "an empty file (download it again)"
    if head.startswith(_POINTER):
        return "a Git LFS pointer, not the file (`git lfs pull` or `hf download` fetches it)"
    if head.startswith(_PAGES):
        return "a web page, not the file (download the file itself, not the page about it)"
    return None


def damage(path: Path, error: object) -> str:
    """Return, in words, why a file cannot be read: a failed download, or the reader's error."""
    return failed_download(path) or str(error) or type(error).__name__
