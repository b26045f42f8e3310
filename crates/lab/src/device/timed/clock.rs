//! Simulated time for several threads, the same on every machine.
//!
//! One thread runs at a time. When it waits, for a time or for a wake, the next one that is ready runs; if none is, time goes on to the
//! first that waits for one. What threads compute takes no time.

use super::Pace;
use holdfast_block::flashlog::Timer;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::time::Duration;

/// Time that passes only when all threads wait. The one that made it is the first of them; [`Virtual::guest`] lets another one in.
#[derive(Debug)]
pub struct Virtual {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    now_ns: u64,
    /// Wakes so far.
    ticket: u64,
    /// The number of the wait that has ended last: whoever is in it runs. None while all threads are away.
    running: Option<u64>,
    next: u64,
    ready: VecDeque<u64>,
    waiting: Vec<Wait>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    number: u64,
    until_ns: u64,
    is_for_wake: bool,
}

impl Default for Virtual {
    fn default() -> Virtual {
        let state =
            State { now_ns: 0, ticket: 0, running: Some(0), next: 1, ready: VecDeque::new(), waiting: Vec::new() };
        Virtual { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl Virtual {
    /// Lets time pass in which this thread does nothing.
    pub fn pass(&self, time: Duration) {
        self.wait_until(self.now_ns() + time.as_nanos() as u64);
    }

    /// A place for another thread, which begins with [`Guest::begin`] when this one waits.
    pub fn guest(&self) -> Guest {
        let mut state = self.state.lock();
        let number = state.number();
        state.ready.push_back(number);
        Guest(number)
    }

    /// Does something without time, in which the other threads go on: waiting for one of them to end.
    pub fn away<T>(&self, act: impl FnOnce() -> T) -> T {
        self.leave();
        let done = act();
        let mut state = self.state.lock();
        if state.running.is_none() {
            state.running = Some(0);
        } else {
            let number = state.number();
            state.ready.push_back(number);
            self.until_running(number, state);
        }
        done
    }

    fn leave(&self) {
        self.state.lock().run_next();
        self.changed.notify_all();
    }

    fn until_running(&self, number: u64, mut state: MutexGuard<'_, State>) {
        self.changed.notify_all();
        self.changed.wait_while(&mut state, |state| state.running != Some(number));
    }

    /// Lets the others run until it is the turn of this wait.
    fn give_way(&self, mut state: MutexGuard<'_, State>, until_ns: u64, is_for_wake: bool) {
        let number = state.number();
        state.waiting.push(Wait { number, until_ns, is_for_wake });
        state.run_next();
        assert!(state.running.is_some(), "all threads wait for each other");
        self.until_running(number, state);
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Gives the turn to the next one.
    fn run_next(&mut self) {
        self.running = self.ready.pop_front();
        if self.running.is_some() {
            return;
        }
        let first = self.waiting.iter().min_by_key(|wait| (wait.until_ns, wait.number));
        let Some(first) = first.copied().filter(|wait| wait.until_ns < u64::MAX) else { return };
        self.waiting.retain(|wait| wait.number != first.number);
        self.now_ns = self.now_ns.max(first.until_ns);
        self.running = Some(first.number);
    }
}

impl Pace for Virtual {
    fn now_ns(&self) -> u64 {
        self.state.lock().now_ns
    }

    fn wait_until(&self, at_ns: u64) {
        let state = self.state.lock();
        if at_ns > state.now_ns {
            self.give_way(state, at_ns, false);
        }
    }
}

impl Timer for Virtual {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns())
    }

    fn ticket(&self) -> u64 {
        self.state.lock().ticket
    }

    fn wait(&self, ticket: u64, until: Option<Duration>) {
        let state = self.state.lock();
        let until_ns = until.map_or(u64::MAX, |until| until.as_nanos() as u64);
        if state.ticket == ticket && until_ns > state.now_ns {
            self.give_way(state, until_ns, true);
        }
    }

    fn wake(&self) {
        let mut state = self.state.lock();
        state.ticket += 1;
        let woken: Vec<u64> = state.waiting.iter().filter(|wait| wait.is_for_wake).map(|wait| wait.number).collect();
        state.waiting.retain(|wait| !wait.is_for_wake);
        state.ready.extend(woken);
    }
}

/// A thread's place in simulated time.
#[derive(Debug)]
pub struct Guest(u64);

impl Guest {
    /// Runs the thread's work when it is its turn.
    pub fn begin<T>(self, clock: &Virtual, act: impl FnOnce() -> T) -> T {
        clock.until_running(self.0, clock.state.lock());
        let done = act();
        clock.leave();
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Runs `other` in a second thread beside `act`.
    fn beside(clock: &Virtual, other: impl FnOnce() + Send, act: impl FnOnce()) {
        let guest = clock.guest();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || guest.begin(clock, other));
            act();
            clock.away(|| thread.join()).unwrap();
        });
    }

    #[test]
    fn threads_wait_at_the_same_time() {
        let (clock, seen) = (Virtual::default(), Mutex::new(Vec::new()));
        let steps = |name: char, step_ns: u64| {
            for _ in 0..3 {
                clock.wait_until(clock.now_ns() + step_ns);
                seen.lock().push((name, clock.now_ns()));
            }
        };
        beside(&clock, || steps('b', 30), || steps('a', 20));
        assert_eq!(*seen.lock(), [('a', 20), ('b', 30), ('a', 40), ('b', 60), ('a', 60), ('b', 90)]);
        assert_eq!(clock.now_ns(), 90);
        clock.pass(Duration::from_nanos(10));
        assert_eq!(clock.now_ns(), 100);
    }

    #[test]
    fn a_wake_ends_a_wait_and_one_that_came_before_it_is_not_missed() {
        let clock = Virtual::default();
        let woken_ns = Arc::new(Mutex::new(Vec::new()));
        let waits = || {
            for until in [None, Some(Duration::from_nanos(150)), None] {
                clock.wait(clock.ticket(), until);
                woken_ns.lock().push(clock.now_ns());
            }
        };
        beside(&clock, waits, || {
            for _ in 0..2 {
                clock.pass(Duration::from_nanos(100));
                clock.wake();
            }
        });
        assert_eq!(*woken_ns.lock(), [100, 150, 200]);
        let ticket = clock.ticket();
        clock.wake();
        clock.wait(ticket, None);
    }

    #[test]
    #[should_panic(expected = "all threads wait for each other")]
    fn waiting_for_nobody_is_told() {
        let clock = Virtual::default();
        clock.wait(clock.ticket(), None);
    }
}
