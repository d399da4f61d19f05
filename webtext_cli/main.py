"""The `webtext` command group. A command's module is imported only when that command is called."""

from __future__ import annotations

import errno
import importlib
import io
import itertools
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

# Command -> short help, by task, repeated from the command so that `webtext --help` imports no command; a test
# compares them.
_GROUPS = {
    "Build a corpus": {
        "scrape": "Collect the links that Reddit users gave at least 3 karma.",
        "fetch": "Download the pages behind the links as WARC.",
        "extract": "Extract the main text of the pages.",
        "filter": "Drop documents by quality rules, language, or a classifier.",
        "dedup": "Remove duplicate and near-duplicate documents.",
        "remove-wikipedia": "Remove the documents of Wikipedia and its mirrors.",
    },
    "Train and evaluate": {
        "train-bpe": "Train a byte-level BPE tokenizer like GPT-2's.",
        "tokenize": "Encode documents into token shards.",
        "pretrain": "Train a GPT-2 on token shards.",
        "finetune": "Fine-tune a model on a task, as GPT-1 was.",
        "generate": "Sample text from a trained model.",
        "evaluate": "Evaluate a model on zero-shot tasks, from local files or data sets.",
        "compare": "Train small models on corpora, and say which corpus is better, and how sure that is.",
        "export": "Write a trained model as a Hugging Face folder.",
    },
    "Audit": {
        "overlap-index": "Index the corpus's 8-grams in a Bloom filter.",
        "overlap-report": "Report which 8-grams of a benchmark occur in the corpus.",
    },
    "Whole corpus": {
        "init": "Write a commented webtext.toml for a new corpus.",
        "build": "Run the stages listed in webtext.toml, in order.",
        "plan": "Estimate time, disk space, memory and cost of a corpus.",
        "status": "Show the state of each stage of a corpus.",
        "release": "Publish a corpus as a folder that others can load, verify and rebuild.",
        "rehydrate": "Rebuild a corpus from a release: fetch its URLs, extract, and compare.",
        "remove": "Remove documents from every stage of a corpus, on request.",
    },
    "Look into a corpus": {
        "search": "Search the texts of a corpus, or trace the passages of a text to its documents.",
        "browse": "Browse a corpus in a web browser.",
        "show": "Print documents of a corpus as readable text.",
        "explain": "Trace a document through every stage, or see why it is missing.",
        "stats": "Count the documents, words and bytes of a corpus.",
        "sql": "Query the files of a corpus with SQL (DuckDB).",
        "export-text": "Write documents as JSONL or plain text.",
    },
    "Other": {
        "demo": "Run the whole pipeline on a small local web, offline.",
    },
}
COMMANDS = {name: text for commands in _GROUPS.values() for name, text in commands.items()}
# The commands that share a module, where they are functions of their names.
_MODULES = {
    **dict.fromkeys(("init", "status"), "folder"),
    **dict.fromkeys(("explain", "show", "stats", "sql", "export-text"), "queries"),
}
_COMMAND_WIDTH = max(map(len, COMMANDS))
# An option of all commands, handled by `main`.
_DEBUG = click.Option(["--debug"], is_flag=True, expose_value=False, help="Show tracebacks of errors.")


class LazyGroup(click.Group):
    """A group whose commands are modules of `webtext_cli.commands`, imported on use."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the command names in pipeline order."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import and return a command, or None for an unknown name."""
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"webtext_cli.commands.{_MODULES.get(name, name).replace('-', '_')}")
        command: click.Command = module.command if name not in _MODULES else getattr(module, name.replace("-", "_"))
        if _DEBUG not in command.params:
            command.params.append(_DEBUG)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by task without importing any."""
        for title, commands in _GROUPS.items():
            with formatter.section(title):
                # All groups have the same columns.
                formatter.write_dl([(name.ljust(_COMMAND_WIDTH), text) for name, text in commands.items()])

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the command of the first argument; suggest the nearest one for a typo."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from pipelines.format import suggest_nearest

            hint = suggest_nearest(args[0], COMMANDS, "")
            raise click.UsageError(f"no command {args[0]!r}; {hint}".rstrip("; "))
        if args and args[0] != "generate":  # whose prompt may be empty
            for flag, value in itertools.pairwise(args):
                if not value:
                    raise click.UsageError(f"{flag if flag.startswith('-') else 'argument'} '': must not be empty")
                if value.startswith("--") and value.endswith("="):
                    raise click.UsageError(f"{value[:-1]} '': must not be empty")
        return super().resolve_command(context, args)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `webtext demo` or `webtext init my-corpus`. `webtext COMMAND --help` shows an example.",
)
@click.version_option(package_name="webtext-kit")
def webtext() -> None:
    """Rebuild WebText, the corpus behind GPT-2: links, pages, text, tokenizer, model, overlap audit."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if "--debug" in argv:
        os.environ["WEBTEXT_DEBUG"] = "1"
    try:
        result: Any = webtext.main(argv, prog_name="webtext", standalone_mode=False)
    except click.ClickException as error:
        return _explain_usage(error, argv)
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001 - top level: every failure ends as one line
        from pipelines.errors import exception_chain

        # An interrupt inside a C function such as readline becomes the cause of a SystemError.
        if not any(isinstance(cause, KeyboardInterrupt | click.Abort) for cause in exception_chain(error)):
            return _explain_failure(error, argv)
        _ignore_further_interrupts()
        from webtext_cli.console import complain

        complain("interrupted; completed work is kept: re-run the same command to resume")
        return 130
    return result if isinstance(result, int) else 0


def _explain_usage(error: click.ClickException, argv: Sequence[str]) -> int:
    context = getattr(error, "ctx", None)
    # click's parser does not say which command's option lacks its argument.
    default = f"webtext {argv[0]}" if argv and argv[0] in COMMANDS else "webtext"
    command = context.command_path if context else default
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return error.exit_code
    from pipelines.errors import format_message

    click.echo(format_message(f"error: {_describe_usage(error)}"), err=True)
    click.echo(f"see `{command} --help`", err=True)
    return error.exit_code


def _describe_usage(error: click.ClickException) -> str:
    """Return what is wrong with an option or argument: `--limit 0: must be at least 1`."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if isinstance(error, click.NoSuchOption) and context is not None:
        from pipelines.format import suggest_nearest

        options = context.command.get_params(context)
        has_values = any(option.name == "set" for option in options)
        otherwise = "values of presets and rules are set with --set NAME=VALUE" if has_values else ""
        flags = [flag for option in options for flag in (*option.opts, *option.secondary_opts)]
        hint = suggest_nearest(error.option_name, flags, otherwise)
        return f"{error.option_name}: no such option; {hint}".rstrip("; ")
    if isinstance(error, click.BadParameter) and parameter is not None:
        is_option = isinstance(parameter, click.Option)
        name = max(parameter.opts, key=len) if is_option else parameter.make_metavar(context)
        return f"missing {name}" if isinstance(error, click.MissingParameter) else f"{name} {error.message}"
    if isinstance(error, click.BadOptionUsage):
        return f"{error.option_name}: {'takes no value' if 'not take' in error.message else 'needs a value'}"
    return error.format_message().replace("Got unexpected extra argument", "unexpected argument")


def _explain_failure(error: BaseException, argv: Sequence[str]) -> int:
    from pipelines.errors import WebtextError, format_message, shorten_message
    from webtext_cli.console import complain

    if os.environ.get("WEBTEXT_DEBUG"):
        import traceback

        click.echo(format_message("".join(traceback.format_exception(error)), one_line=False), err=True, nl=False)
    if isinstance(error, WebtextError):
        # Messages of stages name the option for the output; build and demo only have --corpus.
        option = {"build": "--corpus", "demo": "--corpus"}.get(argv[0], "--output")
        complain(f"error: {_name_corpus(str(error), argv).replace('another --output', f'another {option}')}")
        return error.exit_code
    if isinstance(error, MemoryError):
        complain("error: out of memory; try fewer --workers")
        return 1
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO):
        # Of files this is a WebtextError already.
        complain(f"error: cannot write the output: {error.strerror}")
        return 1
    message = shorten_message(f"error: {type(error).__name__}: {error}")
    complain(f"{message}; re-run with --debug for a traceback, and report it")
    return 1


def _name_corpus(message: str, argv: Sequence[str]) -> str:
    """Return a message whose commands have the --corpus of the command line, so that they can be pasted."""
    import re

    from pipelines.format import name_corpus

    named = re.search("(?:^|\0)--corpus[=\0]([^\0]+)", "\0".join(argv))
    return name_corpus(message, named[1]) if named else message


def run() -> None:
    """Run from the console script; SIGTERM is handled like Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a terminal without UTF-8 lacks is shown as an escape
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main())


def _ignore_further_interrupts() -> None:
    """Keep a second Ctrl-C from printing a traceback during exit; only if `run` started this process."""
    if signal.getsignal(signal.SIGTERM) is _interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
