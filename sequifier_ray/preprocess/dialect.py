"""How one CSV file is written: separator, header, compression, encoding."""

from __future__ import annotations

import codecs
import csv
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv

from sequifier_ray import storage
from sequifier_ray.config.tables import CsvDialect
from sequifier_ray.errors import ConfigError, DataError
from sequifier_ray.preprocess.files import compression_of

if TYPE_CHECKING:
    from collections.abc import Sequence

SEPARATORS = ",;\t|"
NUMBER_NULLS = (
    *("", "NA", "N/A", "n/a", "#N/A", "<NA>", "null", "NULL", "Null", "None", "none", "nil", "-", "?", "."),
    *("NaN", "nan", "NAN", "-NaN", "-nan"),
)
HEAD_BYTES = 1_000_000
BLOCK_BYTES = 16_000_000
MARKS = ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


@dataclass(frozen=True)
class CsvFile:
    """A CSV file that can be opened: its columns in order and the character between its fields."""

    path: str
    columns: tuple[str, ...]
    separator: str
    dialect: CsvDialect

    def read(self, columns: Sequence[str]) -> pyarrow.csv.CSVStreamingReader:
        """Batches of the named columns as text; the empty field is null, a quoted empty field is empty text.

        Raises what pyarrow does where the text has no such form or encoding.
        """
        dialect = self.dialect
        nulls = [""] if dialect.null_values is None else list(dialect.null_values)
        return pyarrow.csv.open_csv(
            open_stream(self.path),
            read_options=pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES, encoding=dialect.encoding),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=self.separator, quote_char=dialect.quote, newlines_in_values=True
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(columns, pa.string()),
                include_columns=list(columns),
                strings_can_be_null=True,
                null_values=nulls,
                quoted_strings_can_be_null=False,
            ),
        )

    def refuse_open_quote(self, row: int, last: str | None) -> None:
        """Raise DataError where the file ends inside a quoted field, which pyarrow takes for closed; `last`
        is what its last row, the `row`-th, holds in the last column."""
        if last is None or "\n" not in last.replace("\r", "\n"):
            return
        quote = self.dialect.quote
        field = self.separator + quote + last.replace(quote, quote + quote)
        tail = b""
        with open_stream(self.path) as stream:
            while part := stream.read(BLOCK_BYTES):
                # four bytes a character at most, and a mark
                tail = (tail + part)[-4 * len(field) - 4 :]
        if tail.decode(self.dialect.encoding, errors="replace").endswith(field):
            raise DataError(
                f"{self.path} ends inside a quoted field that opens in row {row:,}, in its last column: "
                f"close the {quote} there, or double it if it is part of the text, or set csv: {{quote: …}}"
            )


def open_stream(path: str) -> Any:
    """The bytes of a file, decompressed where its name says so."""
    file = storage.open_file(path)
    compression = compression_of(path)
    return file if compression is None else pa.CompressedInputStream(file, compression)


def describe_csv(path: str, dialect: CsvDialect, key_columns: Sequence[str]) -> CsvFile:
    """Find out how a file is written: the separator is the one that makes the key columns of the header.

    Raises DataError for a header that repeats a name, lacks one, or is not text in the encoding.
    """
    try:
        with open_stream(path) as stream:
            head = bytes(stream.read(HEAD_BYTES))
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, dialect, error) from error
    if not head:
        raise DataError(f"{path} is empty (0 bytes); give a file with rows, or take it out of the folder")
    _check_mark(head, dialect, path)
    # A line that is cut at the end of the head may end in half a character.
    line = codecs.getincrementaldecoder(dialect.encoding)("strict")
    try:
        text = line.decode(head, final=len(head) < HEAD_BYTES)
    except UnicodeDecodeError as error:
        raise unreadable(path, dialect, error) from error
    if not text.strip("\ufeff \t\r\n"):
        raise DataError(
            f"{path} holds no text, only blanks; give a file with rows, or take it out of the folder"
        )
    separator = dialect.separator or _find_separator(text, dialect.quote, key_columns)
    names = _header(text, separator, dialect.quote)
    if any("\0" in name for name in names):
        raise DataError(
            f"{path} is not text in {dialect.encoding}: its header holds null characters; set csv: "
            "{encoding: …} to what it is, such as utf-16-le"
        )
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(
            f"{path}: the header names {repeated} more than once; every column needs its own name"
        )
    return CsvFile(path, tuple(names), separator, dialect)


def _check_mark(head: bytes, dialect: CsvDialect, path: str) -> None:
    for mark, encoding in MARKS:
        if head.startswith(mark) and not dialect.encoding.startswith(encoding):
            raise ConfigError(
                f"{path} begins like a file in UTF-16, but csv.encoding is {dialect.encoding}; "
                "set csv: {encoding: utf-16}"
            )


def _header(text: str, separator: str, quote: str) -> list[str]:
    text = text.removeprefix("\ufeff")
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, quotechar=quote)
    return next((row for row in rows if row), [])


def _find_separator(text: str, quote: str, key_columns: Sequence[str]) -> str:
    def merit(separator: str) -> tuple[int, int]:
        names = _header(text, separator, quote)
        return sum(key in names for key in key_columns), len(names)

    return max(SEPARATORS, key=merit)


def unreadable(path: str, dialect: CsvDialect, error: Exception) -> DataError:
    """The error of a library about a CSV file, with what to do where that is known."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    lower = text.lower()
    if isinstance(error, UnicodeError) or "utf8" in lower or "utf-8" in lower or "decode" in lower:
        return DataError(
            f"{path} is not text in {dialect.encoding}; set csv: {{encoding: …}} to what it is, such as "
            f"latin-1 ({text})"
        )
    if compression_of(path) is not None and not lower.startswith("csv"):
        return DataError(f"{path} cannot be unpacked as {compression_of(path)}: {text}; write the file again")
    if "straddling" in lower:
        text = (
            f"a row has more than {BLOCK_BYTES:,} bytes; perhaps a {dialect.quote} before it is never closed"
        )
    return DataError(f"{path} cannot be read as CSV: {text}")
