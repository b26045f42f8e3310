//! Measurements in a process whose memory is locked: how it is protected is chosen once in the life of a process, and the other steps are to have none of
//! it.
//!
//! That process is this program again, with the same arguments and one more, so that it has the same plan. It says `ready`, or `unavailable` and why. Then it
//! is given the number of a load and that of a round in a line, and answers with `done`, requests, nanoseconds of CPU time and of wall-clock time; or
//! `memory` in place of the round, and answers with `done`, bytes from the allocator, blocks of metadata, those of them that changed, and twins; or with
//! `failed` and why.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use holdfast_block::MemoryDevice;
use holdfast_guard::{self as guard, Protect};

use super::{Elsewhere, Load, Plan, Step, Taken};
use crate::error::{At, Error, Result};
use crate::heap::Peak;
use crate::integrity::Cost;

/// The other process.
pub struct Locked {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// What the other process is called in errors.
const NAME: &str = "the process with locked memory";
/// What it is asked for in place of a round.
const MEMORY: &str = "memory";

impl Locked {
    /// Starts this program with these arguments. Without protection keys it says why there are none.
    ///
    /// # Errors
    /// It does not start, or ends before it has said anything.
    pub fn start(arguments: impl IntoIterator<Item = OsString>) -> Result<std::result::Result<Locked, String>> {
        let program = std::env::current_exe().at("find", "this program")?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .at("start", NAME)?;
        let (requests, answers) = (child.stdin.take(), child.stdout.take().expect("it is a pipe"));
        let mut locked = Locked { child, requests, answers: BufReader::new(answers) };
        let answer = locked.answer()?;
        Ok(match answer.strip_prefix("unavailable ") {
            Some(why) => Err(why.to_owned()),
            None => Ok(locked),
        })
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.answers.read_line(&mut line).at("read from", NAME)? == 0 {
            return Err(io::Error::other("it has ended")).at("read from", NAME);
        }
        Ok(line.trim_end().to_owned())
    }

    /// Asks for something of a load, which is so many figures.
    fn ask<const FIGURES: usize>(&mut self, load: Load, what: &str) -> Result<[u64; FIGURES]> {
        let number = Load::ALL.iter().position(|known| *known == load).unwrap_or_default();
        let request = format!("{number} {what}\n");
        self.requests.as_mut().expect("open until it is dropped").write_all(request.as_bytes()).at("write to", NAME)?;
        let answer = self.answer()?;
        let figures = answer.strip_prefix("done ").and_then(|figures| {
            let figures: Vec<u64> = figures.split(' ').map(str::parse).collect::<std::result::Result<_, _>>().ok()?;
            figures.try_into().ok()
        });
        figures.ok_or_else(|| Error::Usage(format!("{NAME}: {answer}")))
    }
}

/// The process, if there is one.
impl Elsewhere for Option<Locked> {
    fn measure(&mut self, load: Load, round: u64) -> Result<Cost> {
        let [requests, cpu, wall] = there(self)?.ask(load, &round.to_string())?;
        let (cpu, wall) = (Duration::from_nanos(cpu), Duration::from_nanos(wall));
        Ok(Cost { requests, cpu, daemon_cpu: Duration::ZERO, wall })
    }

    fn take(&mut self, load: Load) -> Result<Taken> {
        let [heap_bytes, blocks, changed, twins] = there(self)?.ask(load, MEMORY)?;
        Ok(Taken { peak: Peak { heap_bytes: heap_bytes.cast_signed(), blocks }, changed, twins })
    }
}

fn there(locked: &mut Option<Locked>) -> Result<&mut Locked> {
    locked.as_mut().ok_or_else(|| Error::Usage(format!("{NAME} was not started")))
}

impl Drop for Locked {
    fn drop(&mut self) {
        // The end of its requests is its end.
        self.requests = None;
        let _ = self.child.wait();
    }
}

/// What the other process does, until there are no more requests.
///
/// # Errors
/// Nobody listens.
pub fn serve(plan: &Plan, how: Protect, requests: impl BufRead, mut answers: impl Write) -> io::Result<()> {
    let mut answer = |text: &str| answers.write_all(format!("{text}\n").as_bytes()).and_then(|()| answers.flush());
    if let Err(why) = guard::install(how) {
        return answer(&format!("unavailable {why}"));
    }
    answer("ready")?;
    let mut image = None;
    for request in requests.lines() {
        let request = request?;
        let known = |number: &str| Load::ALL.get(number.parse::<usize>().ok()?).copied();
        let parsed = request.split_once(' ').and_then(|(load, what)| Some((known(load)?, Wanted::parse(what)?)));
        let Some((load, wanted)) = parsed else { return Err(io::Error::other(format!("not a request: {request}"))) };
        answer(&match figures(plan, &mut image, load, wanted) {
            Ok(figures) => format!("done {figures}"),
            Err(error) => format!("failed {error}"),
        })?;
    }
    Ok(())
}

/// What is asked of a load.
enum Wanted {
    /// What it costs in this round.
    Round(u64),
    Memory,
}

impl Wanted {
    fn parse(text: &str) -> Option<Wanted> {
        if text == MEMORY { Some(Wanted::Memory) } else { text.parse().ok().map(Wanted::Round) }
    }
}

/// `image`: of the load before, if it is the same.
fn figures(plan: &Plan, image: &mut Option<(Load, MemoryDevice)>, load: Load, wanted: Wanted) -> Result<String> {
    if image.as_ref().is_none_or(|(of, _)| *of != load) {
        // There may be no room for two.
        *image = None;
        let made = load.image(plan)?;
        // The first is not counted: this process's own memory is new to it.
        load.measure(plan, &made, Step::Locked, 0)?;
        *image = Some((load, made));
    }
    let (_, image) = image.as_ref().expect("made if it was not there");
    match wanted {
        Wanted::Round(round) => {
            let cost = load.measure(plan, image, Step::Locked, round)?;
            Ok(format!("{} {} {}", cost.requests, cost.cpu.as_nanos(), cost.wall.as_nanos()))
        }
        Wanted::Memory => {
            let Taken { peak, changed, twins } = load.take(plan, image, Step::Locked)?;
            Ok(format!("{} {} {changed} {twins}", peak.heap_bytes.cast_unsigned(), peak.blocks))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_in_their_order() {
        let (steps, loads) = (vec![Step::Audited, Step::Locked], Load::ALL.to_vec());
        let plan = Plan { steps, loads, file_mib: 32, huge_mib: 32, transactions: 2, files: 10, rounds: 1, seed: 1 };
        let (mut answers, requests) = (Vec::new(), "4 0\n4 memory\n0 0\nnonsense\n");
        // Nothing is installed in the process of the tests.
        serve(&plan, Protect::Off, requests.as_bytes(), &mut answers).unwrap_err();
        let answers = String::from_utf8(answers).expect("text");
        let begins: Vec<&str> = answers.lines().map(|line| &line[..line.len().min(8)]).collect();
        assert_eq!((begins.len(), begins[0], &begins[1][..7]), (4, "ready", "done 10"), "{answers}");
        // No allocator counts in the process of the tests.
        assert!(begins[2].starts_with("done 0 ") && begins[3].starts_with("done 2 "), "{answers}");
    }
}
