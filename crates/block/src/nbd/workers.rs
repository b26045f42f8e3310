//! Threads that do requests of one connection at the same time.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};

/// Work that waits, and who does it.
#[derive(Debug)]
pub(super) struct Workers<T> {
    most: usize,
    state: Mutex<State<T>>,
    arrived: Condvar,
    taken: Condvar,
}

#[derive(Debug)]
struct State<T> {
    waiting: VecDeque<T>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl<T> Workers<T> {
    /// At most `most` threads.
    pub(super) fn new(most: usize) -> Self {
        let state = State { waiting: VecDeque::new(), threads: 0, idle: 0, closed: false };
        Workers { most: most.max(1), state: Mutex::new(state), arrived: Condvar::new(), taken: Condvar::new() }
    }

    /// Leaves work; waits while there is much of it. Says whether a thread more should call [`Workers::work`].
    #[must_use]
    pub(super) fn push(&self, work: T) -> bool {
        let mut state = self.state.lock();
        while state.waiting.len() >= 4 * self.most && !state.closed {
            self.taken.wait(&mut state);
        }
        state.waiting.push_back(work);
        let more = state.idle < state.waiting.len() && state.threads < self.most;
        if more {
            state.threads += 1;
        }
        drop(state);
        self.arrived.notify_one();
        more
    }

    /// Does work until there will be none any more.
    pub(super) fn work(&self, mut one: impl FnMut(T)) {
        let mut state = self.state.lock();
        loop {
            if let Some(work) = state.waiting.pop_front() {
                drop(state);
                self.taken.notify_one();
                one(work);
                state = self.state.lock();
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                self.arrived.wait(&mut state);
                state.idle -= 1;
            }
        }
    }

    /// No more work comes; what waits is done.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.arrived.notify_all();
        self.taken.notify_all();
    }
}
