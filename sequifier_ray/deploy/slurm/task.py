"""What a job is to run: the words after the batch script's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sequifier_ray.config.load import load_preprocess, load_train
from sequifier_ray.config.overrides import parse_settings
from sequifier_ray.config.train import TrainConfig
from sequifier_ray.config.words import spread_word_list
from sequifier_ray.errors import ConfigError

VERBS = ("train", "preprocess")
_USAGE = f"`sbatch SCRIPT [{'|'.join(VERBS)}] CONFIG [--set NAME=VALUE ...]`"


@dataclass(frozen=True)
class Task:
    """A command of sequifier-ray; ``config`` is that of a training, else None."""

    verb: str
    options: tuple[str, ...]
    config: TrainConfig | None

    @property
    def words(self) -> list[str]:
        """What follows ``sequifier-ray``."""
        return [self.verb, *self.options]


def read_task(words: Sequence[str], launcher: str, program: Any) -> Task:
    """``[train|preprocess] [CONFIG] [OPTION...]`` as a command; its configuration is read here, before
    anything starts, and so are its words, by the parser of ``program`` that reads them later.

    Raises:
        ConfigError: wrong words, or anything wrong with the configuration.
    """
    rest = list(words)
    verb = rest.pop(0) if rest and rest[0] in VERBS else "train"
    if verb != "train" and launcher != "ray":
        raise ConfigError(f"the {launcher} script trains; for `{verb}` submit train-ray.sbatch {verb} ...")
    path = f"configs/{verb}.yaml"
    if rest and not rest[0].startswith("-"):
        path = rest.pop(0)
    for taken in ("--config-path", "--launcher", "--address"):
        if any(word.split("=")[0] == taken for word in rest):
            raise ConfigError(f"{taken} is not for a Slurm job: the script sets it; write {_USAGE}")
    parsed = program.commands[verb].make_context(verb, spread_word_list(rest), allow_extra_args=True)
    if parsed.args:
        raise ConfigError(f"{parsed.args[0]}: a word without an option; write {_USAGE}, CONFIG first")
    settings = parse_settings(parsed.params["settings"] or (), {})
    config = None
    if verb == "train":
        config = load_train(path, settings)
    elif not parsed.params["data_path"] and not parsed.params["selected_columns"]:
        load_preprocess(path, settings)
    return Task(verb, ("--config-path", path, *rest), config)
