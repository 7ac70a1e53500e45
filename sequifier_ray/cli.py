"""The command line. What is heavy is imported inside the commands."""

from __future__ import annotations

import errno
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sequifier_ray.config.words import WORD_LIST, spread_word_list
from sequifier_ray.deploy.kuberay.commands import app as kuberay_app
from sequifier_ray.deploy.slurm.commands import app as slurm_app

if TYPE_CHECKING:
    from sequifier_ray.launch.job_files import Command
    from sequifier_ray.preprocess.pipeline import PreprocessSummary

EXIT_FAULT = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
# Options that set a field of the configuration, by command.
_FIELDS = {
    "preprocess": {"--data-path": "preprocessing_data_path", WORD_LIST: "selected_columns"},
    "inspect": {"--window-length": "window_length", "--window-stride": "window_stride"},
    "train": {"--address": "ray.address"},
}

app = typer.Typer(
    help="Train transformers on event sequences, from two YAML files, on one machine or a Ray cluster.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(kuberay_app, name="kuberay")
app.add_typer(slurm_app, name="slurm")
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the traceback of an error.")]
Randomize = Annotated[
    bool, typer.Option("--randomize", help="Use a random seed instead of the configured one.")
]

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Replace a field of the file, dotted where it is in a section: --set seed=7; repeatable. "
        "VALUE is YAML.",
    ),
]


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and end.", is_eager=True)
    ] = False,
) -> None:
    if version:
        from sequifier_ray import __version__

        print(f"sequifier-ray {__version__}")
        raise typer.Exit


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="Folder to create.")],
    demo: Annotated[
        bool, typer.Option("--demo", help="With flight data and configurations that run.")
    ] = False,
    verbose: Verbose = False,
) -> int:
    """Write a new project: commented templates, or with --demo one that runs as it stands."""
    from sequifier_ray.project import make_project

    for path in make_project(name, demo):
        print(f"wrote {os.path.join(name, path)}")
    filling = "" if demo else "fill in configs/preprocess.yaml and configs/train.yaml, "
    print(f"next: cd {shlex.quote(name)}, {filling}then `sequifier-ray preprocess` and `sequifier-ray train`")
    return 0


@app.command()
def preprocess(
    config_path: Annotated[str, typer.Option(help="Configuration file.")] = "configs/preprocess.yaml",
    data_path: Annotated[str | None, typer.Option(help="Instead of preprocessing_data_path.")] = None,
    selected_columns: Annotated[
        list[str] | None,
        typer.Option(
            help="Instead of selected_columns: a b c, each word a name as it stands; "
            "one single word with commas, a,b,c, is split at them."
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="Where it works: auto, local or ray.")] = "auto",
    address: Annotated[str | None, typer.Option(help="Ray cluster; RAY_ADDRESS if not given.")] = None,
    scratch: Annotated[
        str | None,
        typer.Option(
            help="Folder to work in where project_root is an object store; with ray one that all nodes share."
        ),
    ] = None,
    settings: Settings = None,
    randomize: Randomize = False,
    verbose: Verbose = False,
) -> int:
    """Turn tables into shards, vocabularies and statistics."""
    from sequifier_ray.config.load import load_preprocess

    given = {"--data-path": data_path, WORD_LIST: _column_names(selected_columns)}
    config = load_preprocess(config_path, _overrides("preprocess", settings, given, randomize))

    from sequifier_ray.launch.preprocess import preprocess as run

    for line in describe(run(config, _report, engine, address, scratch)):
        print(line)
    return 0


@app.command()
def inspect(
    path: Annotated[
        str, typer.Argument(help="Table (file, folder, pattern, URI), folder of a split, or dataset JSON.")
    ],
    config_path: Annotated[
        str | None, typer.Option(help="preprocess.yaml with the settings to look at a table with.")
    ] = None,
    window_length: Annotated[int | None, typer.Option(help="Width of windows in events.")] = None,
    window_stride: Annotated[
        int | None, typer.Option(help="Events between windows; the width if not given.")
    ] = None,
    world_size: Annotated[
        int | None, typer.Option(help="Say how many samples each of so many ranks has.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of text.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every shard and compare it with its table.")
    ] = False,
    settings: Settings = None,
    verbose: Verbose = False,
) -> int:
    """Say what a table or a preprocessed data set holds, and what windows would make of it."""
    given = {"--window-length": window_length, "--window-stride": window_stride}
    overrides = _overrides("inspect", settings, given, randomize=False)

    from sequifier_ray.inspection.run import inspect as run

    found = run(path, config_path, overrides, world_size, verify, _report_aside)
    if as_json:
        import json
        from dataclasses import asdict

        print(json.dumps([asdict(facts) for facts in found], ensure_ascii=False))
        return 0
    from sequifier_ray.inspection.report import lines_of

    for i, facts in enumerate(found):
        print("\n" * (i > 0) + "\n".join(lines_of(facts)))
    return 0


@app.command()
def train(
    config_path: Annotated[str, typer.Option(help="Configuration file.")] = "configs/train.yaml",
    launcher: Annotated[
        str, typer.Option(help="How processes start: auto, ray, torchrun, spawn or local.")
    ] = "auto",
    address: Annotated[str | None, typer.Option(help="Ray cluster, instead of ray.address.")] = None,
    settings: Settings = None,
    randomize: Randomize = False,
    verbose: Verbose = False,
) -> int:
    """Train a model on what preprocess wrote."""
    from sequifier_ray.config.load import load_train

    overrides = _overrides("train", settings, {"--address": address}, randomize)
    config = load_train(config_path, overrides)

    from sequifier_ray.launch.choose import train as run

    return run(config, launcher, address)


@app.command()
def submit(
    words: Annotated[
        list[str], typer.Argument(help="After --: the command and its options, as they would be typed here.")
    ],
    address: Annotated[
        str | None, typer.Option(help="Dashboard of the cluster, http://head:8265; RAY_ADDRESS if not given.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(help="Environment variable to pass on; repeatable.")
    ] = None,
    job_id: Annotated[str | None, typer.Option(help="Name of the job; made up if not given.")] = None,
    verbose: Verbose = False,
) -> int:
    """Run a command on a Ray cluster as a job: submit --address http://head:8265 -- train."""
    from sequifier_ray.launch.submit import submit as run

    return run(_command_of(words), address, env or (), job_id)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; an error of the user becomes a line on stderr."""
    _open_closed_streams()
    return _run(list(sys.argv[1:] if arguments is None else arguments))


def _run(words: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        code = command.main(spread_word_list(words), prog_name="sequifier-ray", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has left; Python's own flush at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAULT
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last place that can turn an error into a line
        return _tell(error, verbose="--verbose" in words)
    if code == EXIT_INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


def describe(summary: PreprocessSummary) -> list[str]:
    """What the last lines of `preprocess` say."""
    passes = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in summary.seconds.items())
    lines = []
    for split in summary.splits:
        lines.append(
            f"{split.path}: {split.segments:,} segments, {split.events:,} events, {split.windows:,} windows "
            f"({split.padding_share:.1%} padding), {split.shards:,} file{'s' * (split.shards > 1)}, "
            f"{split.bytes / 1e6:,.1f} MB"
        )
    return [
        *lines,
        f"{summary.rows:,} rows in {summary.sequences:,} sequences ({passes})",
        f"metadata: {summary.description_path}",
    ]


def _column_names(words: Sequence[str] | None) -> list[str] | None:
    """Names as they were typed; only a single word is split at its commas."""
    if not words:
        return None
    if len(words) > 1 or "," not in words[0]:
        return list(words)
    return [name.strip() for name in words[0].split(",") if name.strip()]


def _command_of(words: Sequence[str]) -> Command:
    """A command to run elsewhere, read as it would be here: mistakes in its options show at once."""
    from sequifier_ray.errors import ConfigError
    from sequifier_ray.launch.job_files import Command

    verb = words[0] if words else ""
    if verb not in _FIELDS:
        raise ConfigError(f"submit: found {verb!r}; allowed: {', '.join(_FIELDS)}")
    group = typer.main.get_group(app)
    with group.make_context("sequifier-ray", list(words)) as context:
        command = group.get_command(context, verb)
        assert command is not None
        given = command.make_context(verb, list(words[1:]), parent=context).params
    values = {option: given[option.removeprefix("--").replace("-", "_")] for option in _FIELDS[verb]}
    if verb == "preprocess":
        values[WORD_LIST] = _column_names(values[WORD_LIST])
    overrides = _overrides(verb, given["settings"], values, randomize=False)
    return Command(tuple(words), given["config_path"], overrides, given.get("path"))


def _overrides(
    verb: str, settings: Sequence[str] | None, given: Mapping[str, Any], randomize: bool
) -> dict[str, Any]:
    """What the command line says instead of the file; ``given`` has the values of options that set fields."""
    from sequifier_ray.config.overrides import parse_settings

    fields = {option: field for option, field in _FIELDS[verb].items() if given[option] is not None}
    overrides = parse_settings(settings or (), fields | ({"--randomize": "seed"} if randomize else {}))
    overrides |= {field: given[option] for option, field in fields.items()}
    return overrides | (_random_seed() if randomize else {})


def _random_seed() -> dict[str, Any]:
    import secrets

    seed = secrets.randbelow(2**31)
    print(f"seed: {seed}")
    return {"seed": seed}


def _open_closed_streams() -> None:
    """Streams that the caller closed lead nowhere; else the next file opened would become stdout."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115 - open to the end
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _report(line: str) -> None:
    warns = line.startswith("warning: ")
    try:
        print(line, file=sys.stderr if warns else sys.stdout, flush=True)
    except BrokenPipeError:
        # Whoever read our lines has left (`| head`); the work goes on.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_aside(line: str) -> None:
    """To stderr: what stdout holds is for another program."""
    print(line, file=sys.stderr, flush=True)


def _tell(error: Exception, verbose: bool) -> int:
    from sequifier_ray.errors import SequifierRayError, masked

    if isinstance(error, SequifierRayError):
        code, text = error.exit_code, "".join(f"error: {line}\n" for line in str(error).splitlines())
    elif isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        code = EXIT_USAGE
        text = f"error: {error.filename or 'a path'}: the name is too long; choose a shorter one\n"
    elif hasattr(error, "exit_code") and hasattr(error, "show"):
        error.show()
        return int(error.exit_code)
    else:
        first = (str(error).strip() or "no message").splitlines()[0]
        code = EXIT_FAULT
        text = f"error: a fault in sequifier-ray: {type(error).__name__}: {first}; --verbose shows where\n"
    if isinstance(error, SequifierRayError):
        from sequifier_ray.launch.ranks import should_tell

        if not should_tell(error):
            return code
    if verbose:
        import traceback

        text = "".join(traceback.format_exception(error)) + text
    sys.stderr.write(masked(text))
    return code
