"""Files that are either whole or not there.

Everything bertsmith leaves behind is written aside, flushed to the disk and renamed into place, so that whoever looks
at any instant, also after a power cut, sees the old content or the new. What the operating system refuses becomes a
`FileError` that says what to do.
"""

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from bertsmith.errors import BertsmithError, FileError

ADVICE = {
    errno.ENOENT: "no such file or folder",
    errno.EISDIR: "is a folder; a file was expected",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EDQUOT: "the disk quota is used up; free some space or choose another folder",
    errno.EFBIG: "the file would be larger than this system allows",
    errno.ENAMETOOLONG: "the name is too long",
    errno.EIO: "the disk reported an input/output error",
    errno.EMFILE: "too many open files",
}


def explain_os_error(path: str | Path | None, error: OSError) -> FileError:
    """The FileError that says in one line what the operating system refused."""
    if path is None and isinstance(error, OSError):
        path = error.filename
    text = ADVICE.get(error.errno or 0, error.strerror or str(error))
    return FileError(f"{path}: {text}" if path is not None else text)


@contextlib.contextmanager
def explained(path: str | Path) -> Iterator[None]:
    """Turns an OSError inside the block into a FileError about `path`."""
    try:
        yield
    except OSError as error:
        raise explain_os_error(path, error) from error


@contextlib.contextmanager
def as_written(path: str | Path, kind: type[BertsmithError], advice: str) -> Iterator[None]:
    """JSON can have any shape; where it has not the one the block reads, that is an error of the file, of this kind."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise kind(f"{path}: damaged or edited ({type(error).__name__}: {error}); {advice}") from error


def write_file(path: str | Path, data: bytes | str) -> None:
    """Replaces `path` by `data` (text as UTF-8) in one instant; on failure the old file stays as it was."""
    path = Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.aside")
    with explained(path):
        try:
            with open(aside, "wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextlib.contextmanager
def fresh_folder(path: str | Path) -> Iterator[Path]:
    """A new folder to fill, which becomes `path` when the block ends well and vanishes when it does not.

    A folder that stood at `path` is replaced whole, and only after the new one is safely on the disk.
    """
    path = Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.aside")
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_dir():
            raise FileError(f"{path}: is a file; a folder was to be written here")
        _clear_left_over(path)
        try:
            aside.mkdir()
            yield aside
            for file in aside.rglob("*"):
                if file.is_file():
                    sync_file(file)
                elif file.is_dir():
                    sync_folder(file)
            sync_folder(aside)
            if path.exists():
                # A folder cannot be renamed over a full one; between these two renames `path` is missing, and the
                # whole old folder lies beside it under the name ending in .old.
                os.rename(path, old)
            os.rename(aside, path)
            sync_folder(path.parent)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            if old.exists() and not path.exists():
                os.rename(old, path)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _clear_left_over(path: Path) -> None:
    """What killed processes left beside `path`; a whole old folder without a new one goes back to its place."""
    for rest in sorted(path.parent.glob(f".{glob.escape(path.name)}.*")):
        pid, _, kind = rest.name.removeprefix(f".{path.name}.").partition(".")
        if kind not in ("aside", "old") or not pid.isdecimal() or (int(pid) != os.getpid() and _runs(int(pid))):
            continue
        if kind == "old" and not path.exists():
            os.rename(rest, path)
        else:
            shutil.rmtree(rest, ignore_errors=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def sync_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Makes renames inside `path` survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(source: bytes | str | Path) -> str:
    """Hexadecimal SHA-256 of bytes, or of the file at a path (read in pieces)."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    with explained(source), open(source, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_text(path: str | Path) -> str:
    """The whole file as text; refuses what is not UTF-8, naming the place. A byte order mark is dropped, CRLF stays."""
    check_readable(path)
    with explained(path), open(path, "rb") as file:
        data = file.read()
    return decode(data, path)


def decode(data: bytes, path: str | Path) -> str:
    """UTF-8 to text; anything else is a FileError that says what it looks like and where it breaks."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise FileError(f"{path}: looks like UTF-16; UTF-8 was expected. Convert it: iconv -f UTF-16 -t UTF-8")
    zero = data.find(b"\0")
    if zero >= 0:
        raise FileError(
            f"{path}: a zero byte at offset {zero}: this is a binary file (or UTF-16); UTF-8 text was expected"
        )
    try:
        return data.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError as error:
        start = error.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
        line = data.count(b"\n", 0, start) + 1
        raise FileError(
            f"{path}:{line}: not UTF-8 at byte offset {start} (0x{data[start]:02x}); convert the file to UTF-8"
        ) from error


def check_readable(path: str | Path) -> None:
    """FileError unless `path` is a file that can be opened."""
    path = Path(path)
    with explained(path):
        if path.is_dir():
            raise FileError(f"{path}: is a folder; a file was expected")
        open(path, "rb").close()


def check_writable_folder(path: str | Path) -> None:
    """FileError unless files can be made in `path`; creates it, and tries with a file, since permissions can lie."""
    path = Path(path)
    with explained(path):
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".{os.getpid()}.probe"
        probe.write_bytes(b"")
        probe.unlink()


def check_writable_file(path: str | Path) -> None:
    """FileError unless a file can be written at `path`; creates the folder it is to lie in."""
    path = Path(path)
    if path.is_dir():
        raise FileError(f"{path}: is a folder; a file was to be written here")
    check_writable_folder(path.parent)


def check_own_folder(path: str | Path, mine: str, ours: Collection[str]) -> None:
    """FileError if `path` holds things and none of the names in `ours`, so that no other kind of folder is overwritten.

    `mine` says what is to be written there. Hidden files and run.jsonl, which every kind of run has, do not count.
    """
    path = Path(path)
    if not path.is_dir():
        return
    with explained(path):
        held = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    if set(held) - {"run.jsonl"} and not set(held) & set(ours):
        raise FileError(f"{path}: holds other things than {mine} ({', '.join(held[:5])}); choose another folder")


@contextlib.contextmanager
def folder_lock(path: str | Path) -> Iterator[None]:
    """Holds `path` for this process; a second one is refused. The lock goes with the process, however it ends."""
    path = Path(path)
    with contextlib.ExitStack() as stack:
        with explained(path):
            path.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path / ".lock", "a+"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise FileError(
                f"{path}: in use by another process ({holder}); wait for it or choose another folder"
            ) from error
        with explained(path / ".lock"):
            file.truncate(0)
            file.write(f"pid {os.getpid()}")
            file.flush()
        yield
