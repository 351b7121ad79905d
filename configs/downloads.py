"""What a failed download leaves instead of the file: a pointer, a web page, a message, nothing."""

from pathlib import Path

_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGES = (b"<!doctype html", b"<html", b"<?xml", b"<head")
# Whole contents, since a caption or a prompt may begin so.
_MESSAGES = (b"entry not found", b"not found", b"404: not found", b"404 not found",
             b"invalid username or password.", b"repository not found", b"unauthorized",
             b"access denied", b"forbidden")  # fmt: skip
_HEAD = 200  # bytes


def failed_download(source: Path | bytes) -> str | None:
    """Say what is there instead of a file, or of its content; None if it seems real."""
    if isinstance(source, Path):
        try:
            with source.open("rb") as file:
                source = file.read(_HEAD)
        except OSError:
            return None
    head = source[:_HEAD].removeprefix(b"\xef\xbb\xbf").strip().lower()
    if not head:
        return "an empty file (download it again)"
    if head.startswith(_POINTER):
        return "a Git LFS pointer, not the file (`git lfs pull` or `hf download` fetches it)"
    if head.startswith(_PAGES):
        return "a web page, not the file (download the file itself, not the page about it)"
    if head in _MESSAGES:
        return f"a server's message, {head.decode()!r}, not the file (download it again)"
    return None


def damage(path: Path, error: object) -> str:
    """Return, in words, why a file cannot be read: a failed download, or the reader's error.

    Of a folder, the first of its files that is none.
    """
    if path.is_dir():
        for file in sorted(path.iterdir()):
            if file.is_file() and (fault := failed_download(file)):
                return f"{file.name} is {fault}"
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return failed_download(path) or words
