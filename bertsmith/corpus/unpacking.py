"""From a file on disk to decoded text in pieces: compression, archives, encoding; bounded memory.

.gz, .zst, .tar, .tgz, .tzst and their combinations are unpacked as the name says, in archives too.
Skipped in archives: folders, links, and the `._name` files that macOS adds. Text is UTF-8: a byte order mark at the
start is dropped, CRLF and CR become LF. Refused with the reason: UTF-16, binary files, broken bytes (with their offset
in the unpacked stream), files that end too early.
"""

import codecs
import contextlib
import gzip
import hashlib
import tarfile
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bertsmith.base.files import explain_os_error, explained
from bertsmith.base.log import Log
from bertsmith.errors import CorpusError, MissingExtra

CHUNK = 1 << 20  # bytes read at a time
PACKED_SUFFIXES = (".gz", ".zst")

_MAGIC = (
    (b"\x1f\x8b", "gzip data; give the file a name that ends in .gz"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data; give the file a name that ends in .zst"),
    (b"PK\x03\x04", "a ZIP archive; unpack it first"),
    (b"BZh", "bzip2 data; unpack it first"),
    (b"\xfd7zXZ", "xz data; unpack it first"),
    (b"7z\xbc\xaf", "a 7z archive; unpack it first"),
    (b"%PDF", "a PDF; extract its text first"),
    (b"PAR1", "a Parquet file; export it as JSONL first"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3", "an SQLite database"),
)


@dataclass
class ReadCounts:
    """What reading has seen so far, over all files read with it."""

    documents: int = 0
    empty_documents: int = 0  # skipped
    cut_documents: int = 0  # cuts made in documents longer than the limit
    replaced_bytes: int = 0  # with encoding_errors="replace"
    bytes: int = 0  # unpacked
    file_bytes: int = 0  # on disk
    sha256: dict[str, str] = field(default_factory=dict)  # path -> checksum of the file on disk, once read to its end

    def add(self, other: "ReadCounts") -> None:
        """What was seen elsewhere, in other files."""
        self.documents += other.documents
        self.empty_documents += other.empty_documents
        self.cut_documents += other.cut_documents
        self.replaced_bytes += other.replaced_bytes
        self.bytes += other.bytes
        self.file_bytes += other.file_bytes
        self.sha256.update(other.sha256)

    def tell(self, log: Log) -> None:
        """What a person should know of: skipped, cut, replaced."""
        if self.empty_documents:
            log.say(f"{self.empty_documents:,} empty documents skipped")
        if self.cut_documents:
            log.warn(f"documents too long to be held whole were cut, {self.cut_documents:,} times")
        if self.replaced_bytes:
            log.warn(f"{self.replaced_bytes:,} broken bytes were replaced by U+FFFD")


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class TextSource:
    """One text: a file, or a member of an archive. `name` is for messages, `bytes` counts what `chunks` has read."""

    def __init__(self, name: str, stream: Readable, encoding_errors: str, counts: ReadCounts):
        self.name, self.bytes, self.counts = name, 0, counts
        self.replace = encoding_errors == "replace"
        self._stream = stream

    def chunks(self) -> Iterator[str]:
        """The text in pieces of about a megabyte, cut anywhere (but never between CR and LF)."""
        held, carriage = b"", ""
        while True:
            with _Unpacking(self.name):
                data = self._stream.read(CHUNK)
            self._refuse_binary(data)
            offset = self.bytes - len(held)  # of held + data in the unpacked stream
            if self.bytes == 0 and data.startswith(b"\xef\xbb\xbf"):
                text, used = self._decode(data[3:], 3, final=False)
                used += 3
            else:
                text, used = self._decode(held + data, offset, final=not data)
            self.bytes += len(data)
            self.counts.bytes += len(data)
            held = (held + data)[used:]
            text = carriage + text
            carriage = "\r" if data and text.endswith("\r") else ""
            if "\r" in text:
                text = text.removesuffix(carriage).replace("\r\n", "\n").replace("\r", "\n")
            if text:
                yield text
            if not data:
                return

    def _decode(self, data: bytes, offset: int, *, final: bool) -> tuple[str, int]:
        """The text of `data` and how many bytes were used: a sequence may go on in the next piece unless `final`."""
        try:
            return codecs.utf_8_decode(data, "strict", final)
        except UnicodeDecodeError as error:
            if not self.replace:
                place, byte = offset + error.start, data[error.start]
                raise CorpusError(
                    f"{self.name}: not UTF-8 at byte offset {place:,} (0x{byte:02x}, {error.reason}); "
                    "convert the file to UTF-8, or let such bytes be replaced: --encoding-errors replace"
                ) from error
        text, used = codecs.utf_8_decode(data, "replace", final)
        # Each broken sequence has become one U+FFFD; those that stood in the text were whole before.
        new = text.count("\ufffd") - data.count("\ufffd".encode(), 0, used)
        self.counts.replaced_bytes += used - (len(text.encode()) - 3 * new)
        return text, used

    def _refuse_binary(self, data: bytes) -> None:
        if self.bytes == 0:
            if data.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise CorpusError(f"{self.name}: looks like UTF-16; convert it to UTF-8: iconv -f UTF-16 -t UTF-8")
            for magic, what in _MAGIC:
                if data.startswith(magic):
                    raise CorpusError(f"{self.name}: looks like {what}; UTF-8 text was expected")
        zero = data.find(b"\0")
        if zero >= 0:
            if self.bytes == 0 and _looks_wide(data[:2000]):
                raise CorpusError(
                    f"{self.name}: looks like UTF-16 (or UTF-32) without its mark; convert it to UTF-8 with iconv"
                )
            place = f"a zero byte at offset {self.bytes + zero:,}"
            raise CorpusError(f"{self.name}: {place}: this is a binary file; UTF-8 text was expected")


def _looks_wide(head: bytes) -> bool:
    """Whether it reads as UTF-16 or UTF-32; not all of it is ASCII with zeros between."""
    if head.count(0) > len(head) // 4:
        return True
    for encoding in ("utf-16-le", "utf-16-be"):
        with contextlib.suppress(UnicodeDecodeError):
            text = codecs.getincrementaldecoder(encoding)().decode(head)
            rare = sum(unicodedata.category(character) in ("Cc", "Cn", "Co") for character in text)
            if rare == sum(map(text.count, "\t\r\n")) and set(text) & {" ", "\n"}:
                return True
    return False


def text_sources(path: Path, encoding_errors: str, counts: ReadCounts) -> Iterator[TextSource]:
    """The texts in the file at `path`, to be read one after the other while the iterator stands at them."""
    with explained(path):
        file = open(path, "rb")  # noqa: SIM115, an error while reading names the archive member instead
    with file:
        digest = hashlib.sha256()

        def seen(data: bytes) -> None:
            counts.file_bytes += len(data)
            digest.update(data)

        watched = _Watched(file, seen)
        for name, stream in _unpacked(str(path), watched):
            yield TextSource(name, stream, encoding_errors, counts)
        with _Unpacking(str(path)):
            while watched.read(CHUNK):  # what follows an archive's end
                pass
        counts.sha256[str(path)] = digest.hexdigest()


def _unpacked(name: str, stream: Readable) -> Iterator[tuple[str, Readable]]:
    bare = name.lower()
    if bare.endswith((".gz", ".tgz")):
        stream, bare = gzip.GzipFile(fileobj=stream), bare.replace(".tgz", ".tar.gz").removesuffix(".gz")  # type: ignore[call-overload]
    elif bare.endswith((".zst", ".tzst")):
        stream, bare = _Zstandard(stream), bare.replace(".tzst", ".tar.zst").removesuffix(".zst")
    if not bare.endswith(".tar"):
        yield name, stream
        return
    recent, seen = bytearray(), 0  # what was read last: more than tarfile reads ahead

    def remember(data: bytes) -> None:
        nonlocal seen
        seen += len(data)
        recent[:] = (recent + data)[-(1 << 16) :]

    watched = _Watched(stream, remember)
    files = 0
    with _Unpacking(name), tarfile.open(fileobj=watched, mode="r|") as archive:  # type: ignore[call-overload]
        for member in archive:
            if member.isfile() and not Path(member.name).name.startswith("._"):
                files += 1
                yield from _unpacked(f"{name}/{member.name}", archive.extractfile(member))  # type: ignore[arg-type]
        # tarfile takes for the end a cut between two members, a damaged header, and the seam of two joined archives.
        rest = bytes(recent[len(recent) - (seen - archive.offset) :])
        if not rest:
            raise CorpusError(f"{name}: the archive is cut short (its end mark is missing); copy or download it again")
        while rest:
            if any(rest):
                raise CorpusError(
                    f"{name}: something follows what looks like the archive's end: a damaged header, or a second "
                    "archive joined to it; copy or download it again, or unpack it first"
                )
            rest = watched.read(CHUNK)
    if files == 0:
        raise CorpusError(f"{name}: there is no file in this archive")


class _Watched:
    """Shows all data read to `seen` as it goes by."""

    def __init__(self, stream: Readable, seen: Callable[[bytes], None]):
        self._stream, self._seen = stream, seen

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self._seen(data)
        return data


class _Zstandard:
    """Decompression that notices a truncated file, which zstandard's own reader does not."""

    def __init__(self, stream: Readable):
        try:
            import zstandard  # optional
        except ImportError as error:
            raise MissingExtra("zstandard", "zstd", "reading .zst files") from error
        self._new = lambda: zstandard.ZstdDecompressor().decompressobj()
        self._damage = zstandard.ZstdError
        self._stream, self._frame, self._input, self._output = stream, self._new(), b"", b""
        self._begun = False

    def read(self, size: int = -1, /) -> bytes:
        parts, have = [self._output], len(self._output)
        while size < 0 or have < size:
            data = self._input or self._stream.read(1 << 14)
            self._input = b""
            if not data:
                if self._begun:
                    raise EOFError("the last frame is not complete")
                break
            self._begun = True
            try:
                part = self._frame.decompress(data)
            except self._damage as error:
                raise zlib.error(str(error)) from error
            if self._frame.eof:
                self._input, self._frame, self._begun = self._frame.unused_data, self._new(), False
            parts.append(part)
            have += len(part)
        whole = b"".join(parts)
        size = len(whole) if size < 0 else size
        self._output = whole[size:]
        return whole[:size]


class _Unpacking:
    """Turns what the decompressors and the operating system raise into one clear error about `name`."""

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, EOFError) or (isinstance(error, tarfile.ReadError) and "unexpected end" in str(error)):
            raise CorpusError(f"{self.name}: the file is cut short ({error}); copy or download it again") from error
        if isinstance(error, (zlib.error, gzip.BadGzipFile, tarfile.TarError)):
            raise CorpusError(f"{self.name}: damaged, or not what its name says ({error})") from error
        if isinstance(error, OSError):
            raise explain_os_error(self.name, error) from error
