"""Facts as lines of text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from sequifier_ray.inspection.facts import ColumnFacts, Facts, Lengths, SplitFacts

WIDEST = 40
BARS = " ▁▂▃▄▅▆▇█"
N_BARS = 32


def lines_of(facts: Facts) -> list[str]:
    """The whole report."""
    files = f"{facts.files:,} file{'s' * (facts.files > 1)}"
    lines = [f"{facts.path}: {facts.kind}, {files}, {_size(facts.bytes)}"]
    if facts.sequences is not None:
        lines.append(f"{facts.rows:,} rows in {facts.sequences:,} sequences")
    else:
        lines.append(f"{facts.rows:,} events")
    if facts.lengths is not None:
        what = "segment" if facts.sequences is None else "sequence"
        lines += [f"{what} lengths: {_lengths(facts.lengths)}", _bars(facts)]
    lines += ["", *_columns(facts.columns)]
    if facts.splits and facts.window is not None:
        width, stride = facts.window
        lines += [
            "",
            f"windows of {width} events, one every {stride}:",
            *_splits(facts.splits, facts.world_size),
        ]
    return lines


def _lengths(lengths: Lengths) -> str:
    return (
        f"min {lengths.minimum:,}, quartiles {lengths.quartile_1:,} {lengths.median:,} "
        f"{lengths.quartile_3:,}, "
        f"max {lengths.maximum:,}"
    )


def _bars(facts: Facts) -> str:
    """A histogram of lengths in one line, on a scale that doubles."""
    bins = [0] * N_BARS
    for length, count in facts.length_histogram:
        bins[min(length.bit_length() - 1, N_BARS - 1)] += count
    last = max(i for i, count in enumerate(bins) if count)
    highest = max(bins)
    shown = [BARS[-(-count * (len(BARS) - 1) // highest)] for count in bins[: last + 1]]
    return f"  1 |{''.join(shown)}| {2 ** (last + 1) - 1:,} (each bar twice the length of the one before)"


def _columns(columns: Sequence[ColumnFacts]) -> list[str]:
    rows = [("column", "role", "type", "distinct", "missing", "range")]
    for column in columns:
        distinct = "" if column.distinct is None else f"{column.distinct:,}" + "+" * column.distinct_is_least
        between = "" if column.minimum is None else f"{_cut(column.minimum)} … {_cut(column.maximum or '')}"
        if column.mean is not None:
            between = f"mean {column.mean:.6g}, std {column.std:.6g}"
        missing = "" if column.missing is None else f"{column.missing:,}"
        rows.append((_cut(column.name), column.role, column.kind, distinct, missing, between))
    return _table(rows, right=(3, 4))


def _splits(splits: Sequence[SplitFacts], world_size: int | None) -> list[str]:
    rows = [("split", "segments", "events", "windows", "padding", "shards", "bytes", "")]
    if world_size is not None:
        rows[0] = (*rows[0][:-1], f"windows a rank of {world_size}")
    for split in splits:
        size = ("about " if split.bytes_are_estimated else "") + _size(split.bytes)
        rows.append(
            (
                split.name,
                f"{split.segments:,}",
                f"{split.events:,}",
                f"{split.windows:,}",
                f"{split.padding_share:.1%}",
                f"{split.shards:,}",
                size,
                "" if split.windows_per_rank is None else f"{split.windows_per_rank:,}",
            )
        )
    return _table(rows, right=tuple(range(1, 8)))


def _table(rows: Sequence[Sequence[str]], right: tuple[int, ...]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = []
        for i, (text, width) in enumerate(zip(row, widths, strict=True)):
            cells.append(text.rjust(width) if i in right else text.ljust(width))
        lines.append("  ".join(cells).rstrip())
    return lines


def _cut(text: str) -> str:
    shown = text if text.isprintable() else repr(text)
    return shown if len(shown) <= WIDEST else f"{shown[: WIDEST - 1]}…"


def _size(n_bytes: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:,.1f} {unit}"
    return f"{n_bytes} bytes"
