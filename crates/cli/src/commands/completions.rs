//! `holdfast completions`: what a shell needs to complete commands, options and paths.

use crate::args::{Cli, Completions, Shell};
use crate::options;
use crate::output::{Format, Report, print};
use clap::CommandFactory;
use clap::builder::PossibleValuesParser;
use serde::Serialize;

#[derive(Serialize)]
struct Script {
    shell: Shell,
    script: String,
}

impl Report for Script {
    fn words(&self) -> String {
        self.script.clone()
    }
}

pub(crate) fn run(arguments: &Completions, format: Format) {
    print(format, &Script { shell: arguments.shell, script: script(arguments.shell) });
}

fn script(shell: Shell) -> String {
    let mut bytes = Vec::new();
    let mut program = visible(Cli::command());
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    clap_complete::generate(shell, &mut program, "holdfast", &mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Without what only Holdfast itself says to Holdfast: hidden options would be offered like all others. So no option that is
/// shown may refer to a hidden one (`requires`, `conflicts_with`).
fn visible(command: clap::Command) -> clap::Command {
    let mut shown = clap::Command::new(command.get_name().to_string());
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        shown = shown.version(version.to_string());
    }
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let argument = argument.clone();
        shown = shown.arg(match argument.get_short() {
            // Lists of them are taken as well, which no shell's script has a way to say.
            Some('o') => argument.value_parser(PossibleValuesParser::new(options::words_for_shells())),
            _ => argument,
        });
    }
    for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
        shown = shown.subcommand(visible(child.clone()));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_offer_every_command_and_no_hidden_option() {
        let program = Cli::command();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell);
            for command in program.get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell:?}: {}", command.get_name());
                for argument in command.get_arguments() {
                    let Some(long) = argument.get_long() else { continue };
                    assert_eq!(script.contains(long), !argument.is_hide_set(), "{shell:?}: --{long}");
                }
            }
        }
    }
}
