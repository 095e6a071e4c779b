"""Completions for shells, made of the table of commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from . import grammar, render
from .screen import Report

PROGRAM = "icechunk-airflow"

_BASH = """\
# Completions of {program}. Once: eval "$({program} completion {shell})", for good: in ~/.{shell}rc.
{prepare}_icechunk_airflow() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" words="" files=yes
  case "$COMP_CWORD:$command:${{COMP_WORDS[2]}}" in
    1:*) words="{commands}" files=no ;;
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [ "$files" = yes ] && [ "${{current#-}}" = "$current" ]; then
    COMPREPLY+=($(compgen -f -- "$current"))
  fi
}}
complete -o filenames -F _icechunk_airflow {program}
"""


def complete(args: argparse.Namespace) -> Report:
    """Print the completions for the shell that was chosen."""
    text = fish() if args.shell == "fish" else bash(args.shell)
    return Report(
        {"shell": args.shell, "script": text}, [render.line(one) for one in text.split("\n")]
    )


def bash(shell: str) -> str:
    """Completions for Bash, and for Zsh, which understands them."""
    cases = []
    for words, help_, flags in _entries():
        del help_
        if len(words) == 1:
            cases.append(f'    *:{words[0]}:*) words="{" ".join(flags)}" ;;')
        else:
            cases.append(f'    *:{words[0]}:{words[1]}) words="{" ".join(flags)}" ;;')
    for group in _groups():
        below = " ".join(command.name for command in group.commands)
        cases.append(f'    2:{group.name}:*) words="{below}" files=no ;;')
    first = sorted({words[0] for words, _, _ in _entries()})
    return _BASH.format(
        program=PROGRAM,
        shell=shell,
        prepare="autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "",
        commands=" ".join(first),
        cases="\n".join(cases),
    )


def fish() -> str:
    """Completions for fish."""
    lines = [f"# Completions of {PROGRAM}: in ~/.config/fish/completions/{PROGRAM}.fish."]
    for words, text, flags in _entries():
        told = text.replace("'", "")
        if len(words) == 1:
            where, seen = "__fish_use_subcommand", f"__fish_seen_subcommand_from {words[0]}"
        else:
            where = seen = f"__fish_seen_subcommand_from {words[0]}"
        lines.append(f"complete -c {PROGRAM} -n '{where}' -a {words[-1]} -d '{told}'")
        lines += [
            f"complete -c {PROGRAM} -n '{seen}' -l {flag.removeprefix('--')}"
            for flag in flags
            if flag.startswith("--")
        ]
    lines += [
        f"complete -c {PROGRAM} -n __fish_use_subcommand -a {group.name} -d '{group.help}'"
        for group in _groups()
    ]
    return "\n".join(lines)


def _groups() -> Iterator[grammar.CommandGroup]:
    return (entry for entry in grammar.COMMANDS if isinstance(entry, grammar.CommandGroup))


def _entries() -> Iterator[tuple[grammar.Path, str, list[str]]]:
    """Words, help and flags of every command."""
    for entry in (*grammar.COMMANDS, *grammar.ALONE):
        inner = entry.commands if isinstance(entry, grammar.CommandGroup) else (entry,)
        for command in inner:
            names = [command.name] if command.alias is None else [command.name, command.alias]
            flags = [
                flag
                for argument in command.arguments
                for flag in argument.flags
                if flag.startswith("-")
            ]
            for name in names:
                words = (name,) if command is entry else (entry.name, name)
                yield words, command.help, flags
