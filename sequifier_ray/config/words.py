"""Words of a command line, brought into the form that the parser knows; loads nothing, as --help needs it."""

from __future__ import annotations

from collections.abc import Sequence

WORD_LIST = "--selected-columns"


def spread_word_list(words: Sequence[str]) -> list[str]:
    """``--selected-columns a b c`` as a repeated option, which is what the parser knows.

    >>> spread_word_list(["preprocess", "--selected-columns=a", "b", "--verbose"])
    ['preprocess', '--selected-columns=a', '--selected-columns=b', '--verbose']
    """
    spread: list[str] = []
    is_in_list = is_empty = lacks_word = False
    for word in words:
        if word.startswith("-"):
            lacks_word |= is_empty
            is_empty = word == WORD_LIST
            is_in_list = is_empty or word.startswith(f"{WORD_LIST}=")
            spread += [] if is_empty else [word]
        else:
            spread.append(f"{WORD_LIST}={word}" if is_in_list else word)
            is_empty = False
    # Without a word after it the option goes last, for the parser to complain about.
    return [*spread, WORD_LIST] if lacks_word or is_empty else spread
