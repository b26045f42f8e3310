//! Manual pages, from the definitions of the command line: one for the program, one for each command.
//!
//! Names, arguments and examples are those of `--help`; what only a manual page has (exit status, environment, files) is
//! here.

use crate::args::Cli;
use clap::{Arg, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

/// A manual page of section 1.
pub(crate) struct Page {
    /// As man(1) finds it: `holdfast-mount`.
    pub(crate) name: String,
    /// As it is typed: `holdfast mount`.
    pub(crate) command: String,
    pub(crate) roff: String,
}

const SECTION: &str = "1";

/// All pages, the program's first.
pub(crate) fn pages() -> Vec<Page> {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    let mut pages = Vec::new();
    collect(&program, None, &mut pages);
    pages
}

fn collect(command: &Command, parent: Option<&str>, pages: &mut Vec<Page>) {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    pages.push(Page {
        name: name.to_string(),
        command: command.get_bin_name().unwrap_or(name).to_string(),
        roff: page(command, name, parent),
    });
    for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
        collect(child, Some(name), pages);
    }
}

fn page(command: &Command, name: &str, parent: Option<&str>) -> String {
    let man = Man::new(command.clone()).section(SECTION);
    let mut bytes = Vec::new();
    let mut written = man
        .render_name_section(&mut bytes)
        .and_then(|()| synopsis(command).to_writer(&mut bytes))
        .and_then(|()| man.render_description_section(&mut bytes))
        .and_then(|()| man.render_options_section(&mut bytes));
    let children: Vec<&Command> = command.get_subcommands().filter(|child| !child.is_hide_set()).collect();
    if !children.is_empty() {
        written = written.and_then(|()| man.render_subcommands_section(&mut bytes));
    }
    // Nothing fails when it writes into memory.
    debug_assert!(written.is_ok());
    let mut roff = Roff::new();
    if let Some(help) = command.get_after_help() {
        after_help(&mut roff, &help.to_string());
    }
    section(&mut roff, "EXIT STATUS", exit_status(name));
    if parent.is_none() {
        section(&mut roff, "ENVIRONMENT", ENVIRONMENT);
        section(&mut roff, "FILES", FILES);
    }
    roff.control("SH", ["SEE ALSO"]);
    let mut others: Vec<String> = parent.iter().map(ToString::to_string).collect();
    others
        .extend(children.iter().map(|child| child.get_display_name().unwrap_or_else(|| child.get_name()).to_string()));
    if others.is_empty() {
        others.push("holdfast".to_string());
    }
    let others: Vec<String> = others.iter().map(|other| format!("{other}({SECTION})")).collect();
    roff.text([roman(others.join(", "))]);
    // Each part begins with a definition of the apostrophe; once will do. No date: the version says more, and the same
    // sources give the same page.
    let preamble = Roff::new().render();
    let body = (String::from_utf8_lossy(&bytes) + roff.render().as_str()).replace(&preamble, "");
    let (title, version) = (name.to_uppercase(), env!("CARGO_PKG_VERSION"));
    format!("{preamble}.TH \"{title}\" {SECTION} \"\" \"holdfast {version}\" \"Holdfast\"\n{body}")
}

/// How the command is typed: every argument as clap itself writes it, with the names of its values, which
/// [`Man::render_synopsis_section`] leaves out.
fn synopsis(command: &Command) -> Roff {
    let mut line = vec![bold(command.get_bin_name().unwrap_or_else(|| command.get_name()))];
    let mut arguments: Vec<&Arg> = command.get_arguments().filter(|argument| !argument.is_hide_set()).collect();
    // Options first, the ones that can be left out before the others; then what is known by its place.
    arguments
        .sort_by_key(|argument| (argument.is_positional(), !argument.is_positional() && argument.is_required_set()));
    for argument in arguments {
        let written = argument.to_string();
        let (flag, value) = match written.split_once(' ') {
            _ if argument.is_positional() => ("", &*written),
            Some((flag, value)) => (flag, value),
            None => (&*written, ""),
        };
        // Those known by their place have brackets of their own.
        let [before, after] = if argument.is_required_set() || flag.is_empty() { [" ", ""] } else { [" [", "]"] };
        let between = if flag.is_empty() || value.is_empty() { "" } else { " " };
        line.extend([roman(before), bold(flag), roman(between), italic(value), roman(after)]);
    }
    if command.has_subcommands() {
        line.push(roman(if command.is_subcommand_required_set() { " <command>" } else { " [command]" }));
    }
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    roff.text(line.into_iter().filter(|part| *part != bold("") && *part != italic("")).collect::<Vec<Inline>>());
    roff
}

/// The text after the help: lines that end with a colon before indented ones are headings, indented ones are shown as they are, others
/// are paragraphs.
fn after_help(roff: &mut Roff, text: &str) {
    let mut verbatim = false;
    let mut under_examples = false;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let indented = line.starts_with(' ');
        let is_heading = lines.peek().is_some_and(|next| next.starts_with(' '));
        if verbatim && !indented {
            roff.control("fi", []);
            verbatim = false;
        }
        match line.strip_suffix(':').filter(|_| is_heading || indented) {
            // Only before a heading, which makes room itself.
            _ if line.is_empty() => {}
            _ if indented => {
                if !verbatim {
                    roff.control("nf", []);
                    verbatim = true;
                }
                roff.text([roman(line)]);
            }
            Some(heading @ ("Example" | "Examples")) => {
                roff.control("SH", [heading.to_uppercase().as_str()]);
                under_examples = true;
            }
            Some("Mount options") => drop(roff.control("SH", ["MOUNT OPTIONS"])),
            Some(heading) => {
                if !under_examples {
                    roff.control("SH", ["EXAMPLES"]);
                    under_examples = true;
                }
                roff.control("SS", [heading]);
            }
            None => {
                if under_examples {
                    roff.control("SH", ["NOTES"]);
                    under_examples = false;
                }
                roff.text([roman(line)]);
            }
        }
    }
    if verbatim {
        roff.control("fi", []);
    }
}

/// Terms and what they mean.
type List = &'static [(&'static str, &'static str)];

fn section(roff: &mut Roff, heading: &str, list: List) {
    roff.control("SH", [heading]);
    for (term, meaning) in list {
        roff.control("TP", []);
        roff.text([bold(*term)]);
        roff.text([roman(*meaning)]);
    }
}

fn exit_status(name: &str) -> List {
    match name {
        "holdfast-check" => EXIT_STATUS_OF_CHECK,
        "holdfast-mount" => EXIT_STATUS_OF_MOUNT,
        "holdfast-up" => EXIT_STATUS_OF_UP,
        "holdfast-status" => EXIT_STATUS_OF_STATUS,
        "holdfast-scrub" => EXIT_STATUS_OF_SCRUB,
        "holdfast-flashlog-status" | "holdfast-flashlog-backup" | "holdfast-flashlog-rebuild" => {
            EXIT_STATUS_OF_FLASHLOG
        }
        _ => EXIT_STATUS,
    }
}

const EXIT_STATUS: List =
    &[("0", "done"), ("1", "failed; standard error says why in one line"), ("2", "the command line makes no sense")];

const EXIT_STATUS_OF_UP: List = &[
    ("0", "done"),
    ("1", "failed; standard error says why in one line"),
    ("2", "the command line makes no sense"),
    (
        "3",
        "mounted, but the store takes no changes, as something is wrong with it; standard error says what, and what to do",
    ),
];

const EXIT_STATUS_OF_MOUNT: List = &[
    ("0", "done"),
    ("1", "failed; standard error says why in one line"),
    ("2", "the command line makes no sense"),
    (
        "3",
        "mounted, but the store takes no changes, as something is wrong with it; standard error says what, and what to do",
    ),
    (
        "5",
        "with --foreground: unmounted, and the store is in order, but changed pages had gone bad in memory and are given up; the log names them",
    ),
];

const EXIT_STATUS_OF_STATUS: List = &[
    ("0", "done; nobody has to do anything"),
    ("1", "failed; standard error says why in one line"),
    ("2", "the command line makes no sense"),
    (
        "3",
        "done, but a store takes no changes as a device or the memory failed (not where it is mounted with ro), its root directory cannot be read, the daemon of a mount has died or does not answer, a set is not protected or lacks its log, pages went bad in memory and have to be written again, or blocks were met that could not be put right, since the store was mounted or by its last scrub",
    ),
];

const EXIT_STATUS_OF_SCRUB: List = &[
    ("0", "done; with --wait also nothing is lost, nor left as it is"),
    ("1", "failed, or with --wait the scrub did not come to its end; standard error or the report says why"),
    ("2", "the command line makes no sense"),
    (
        "3",
        "with --wait: something is lost, by this scrub or from before, or could not be repaired, as holdfast-status(1) tells",
    ),
];

const EXIT_STATUS_OF_FLASHLOG: List = &[
    ("0", "done; everything that was asked about is well"),
    ("1", "failed; standard error says why in one line"),
    ("2", "the command line makes no sense"),
    (
        "3",
        "done, but something is not protected (a failure now may lose what was answered), refuses changes, or is damaged",
    ),
];

/// fsck(8)'s.
const EXIT_STATUS_OF_CHECK: List = &[
    ("0", "nothing wrong"),
    ("1", "errors were found, and corrected"),
    ("4", "errors are left (5: and some were corrected)"),
    ("8", "the check could not be done"),
    ("16", "the command line makes no sense"),
    ("32", "cancelled"),
];

const ENVIRONMENT: List = &[
    (
        "HOLDFAST_LOG",
        "what is logged: off, error, warn, info (the default), debug or trace; --log-level goes before it",
    ),
    ("HOLDFAST_BAR_AFTER_MS", "after how many milliseconds of work a bar is shown on a terminal; 1000 by default"),
    ("HOLDFAST_RUNTIME_DIR", "where the sockets of `holdfast flashlog serve` are, before all else"),
    ("HOME", "the home directory; if it is not set, the one in the user database"),
    ("XDG_DATA_HOME", "where `holdfast up` keeps its store; ~/.local/share by default"),
    ("XDG_RUNTIME_DIR", "below which an ordinary user's sockets of `holdfast flashlog serve` are, in `holdfast`"),
    ("XDG_STATE_HOME", "where logs are; ~/.local/state by default"),
];

const FILES: List = &[
    ("~/.local/share/holdfast/main.store", "the store of `holdfast up`"),
    ("~/.local/state/holdfast/*.log", "one log for each store, named after its path; `holdfast status` tells which"),
    ("/run/holdfast", "root's sockets of `holdfast flashlog serve`"),
    ("/dev/fuse", "the device that mounts are made with"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_all_its_options() {
        let pages = pages();
        let mut program = Cli::command().disable_help_subcommand(true);
        program.build();
        let mut commands = vec![&program];
        let mut seen = 0;
        while let Some(command) = commands.pop() {
            seen += 1;
            let name = command.get_display_name().unwrap_or("holdfast");
            let page = &pages.iter().find(|page| page.name == name).unwrap_or_else(|| panic!("no page {name}")).roff;
            let synopsis = page.split(".SH ").find(|section| section.starts_with("SYNOPSIS")).unwrap();
            let synopsis = synopsis.replace("\\fB", "").replace("\\fI", "").replace("\\fR", "").replace('\\', "");
            for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                // With the names of its values.
                assert!(synopsis.contains(&argument.to_string()), "{name}: {argument} is not in {synopsis}");
            }
            for argument in command.get_arguments() {
                let long = argument.get_long().unwrap_or_default().replace('-', "\\-");
                assert_eq!(page.contains(&long), !argument.is_hide_set() || long.is_empty(), "{name}: {argument}");
            }
            for part in [".SH EXAMPLE", ".SH \"EXIT STATUS\"", ".SH \"SEE ALSO\"", ".SH NAME", ".SH SYNOPSIS"] {
                assert!(page.contains(part), "{name}: {part}");
            }
            commands.extend(command.get_subcommands());
        }
        assert_eq!(pages.len(), seen);
    }

    #[test]
    fn a_synopsis_shows_how_the_command_is_typed() {
        let mut program = Command::new("x").args([
            Arg::new("option").short('o').value_name("OPTS"),
            Arg::new("quiet").long("quiet").action(clap::ArgAction::SetTrue),
            Arg::new("kind").long("kind").value_name("KIND").required(true),
            Arg::new("store").value_name("STORE").required(true),
            Arg::new("dir").value_name("DIR"),
            Arg::new("hidden").long("hidden").hide(true),
        ]);
        program.build();
        let expected = ".SH SYNOPSIS\n\\fBx\\fR [\\fB\\-o\\fR \\fI<OPTS>\\fR] [\\fB\\-\\-quiet\\fR] [\\fB\\-\\-help\\fR] \
                        \\fB\\-\\-kind\\fR \\fI<KIND>\\fR \\fI<STORE>\\fR \\fI[DIR]\\fR\n";
        assert_eq!(synopsis(&program).to_roff(), expected);
    }

    #[test]
    fn what_follows_the_help_keeps_its_shape() {
        let mut roff = Roff::new();
        after_help(&mut roff, "Examples:\n  holdfast x\n  .y -z\nMore words:\nStill.");
        let text = roff.to_roff();
        assert_eq!(text, ".SH EXAMPLES\n.nf\n  holdfast x\n  .y \\-z\n.fi\n.SH NOTES\nMore words:\nStill.\n");
    }
}
