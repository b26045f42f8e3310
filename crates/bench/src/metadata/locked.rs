//! Measurements in a process whose memory is locked: how it is protected is chosen once in the life of a process, and the other steps are to have none of
//! it.
//!
//! That process is this program again, with the same arguments and one more, so that it has the same plan. It says `ready`, or `unavailable` and why. Then it
//! is given the number of a load and that of a round in a line, and answers with `done`, requests, nanoseconds of CPU time and of wall-clock time, or with
//! `failed` and why.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use holdfast_guard::{self as guard, Protect};

use super::{Load, Plan, Step};
use crate::error::{At, Error, Result};
use crate::integrity::Cost;

/// The other process.
pub struct Locked {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// What the other process is called in errors.
const NAME: &str = "the process with locked memory";

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

    /// Measures a load there.
    ///
    /// # Errors
    /// Those of the load; the process has ended.
    pub fn measure(&mut self, load: Load, round: u64) -> Result<Cost> {
        let number = Load::ALL.iter().position(|known| *known == load).unwrap_or_default();
        let request = format!("{number} {round}\n");
        self.requests.as_mut().expect("open until it is dropped").write_all(request.as_bytes()).at("write to", NAME)?;
        let answer = self.answer()?;
        let cost = answer.strip_prefix("done ").and_then(|figures| {
            let figures: Vec<u64> = figures.split(' ').map(str::parse).collect::<std::result::Result<_, _>>().ok()?;
            let [requests, cpu, wall] = figures[..] else { return None };
            let (cpu, wall) = (Duration::from_nanos(cpu), Duration::from_nanos(wall));
            Some(Cost { requests, cpu, daemon_cpu: Duration::ZERO, wall })
        });
        cost.ok_or_else(|| Error::Usage(format!("{NAME}: {answer}")))
    }
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
        let parsed = request.split_once(' ').and_then(|(load, round)| Some((known(load)?, round.parse().ok()?)));
        let Some((load, round)) = parsed else { return Err(io::Error::other(format!("not a request: {request}"))) };
        let measured = match &image {
            Some((of, image)) if *of == load => load.measure(plan, image, Step::Locked, round),
            _ => load.image(plan).and_then(|made| {
                // The first is not counted: this process's own memory is new to it.
                load.measure(plan, &made, Step::Locked, 0)?;
                let measured = load.measure(plan, &made, Step::Locked, round);
                image = Some((load, made));
                measured
            }),
        };
        answer(&match measured {
            Ok(cost) => format!("done {} {} {}", cost.requests, cost.cpu.as_nanos(), cost.wall.as_nanos()),
            Err(error) => format!("failed {error}"),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_in_their_order() {
        let (steps, loads) = (vec![Step::Audited, Step::Locked], Load::ALL.to_vec());
        let plan = Plan { steps, loads, file_mib: 32, transactions: 2, files: 10, rounds: 1, seed: 1 };
        let (mut answers, requests) = (Vec::new(), "3 0\n3 1\n0 0\nnonsense\n");
        // Nothing is installed in the process of the tests.
        serve(&plan, Protect::Off, requests.as_bytes(), &mut answers).unwrap_err();
        let answers = String::from_utf8(answers).expect("text");
        let begins: Vec<&str> = answers.lines().map(|line| &line[..line.len().min(8)]).collect();
        assert_eq!((begins.len(), begins[0], &begins[1][..7]), (4, "ready", "done 10"), "{answers}");
        assert!(begins[3].starts_with("done 2 "), "{answers}");
    }
}
