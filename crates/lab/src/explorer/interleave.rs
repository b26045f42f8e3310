//! Running more of the workload while an epoch or a log batch is being written.
//!
//! The layers take their threads from outside, so with one thread nothing is ever admitted during a flush. [`Interleave`]
//! is a device that, at chosen writes and flushes, lets another thread run further actions and waits for them: the same
//! seed gives the same run, as if a scheduler had switched just there. An action that itself needs what the first thread
//! holds would wait for ever; after [`PATIENCE`] the first thread goes on, and both meet again at the end of its action.

use holdfast_block::{Device, Error, Filter};
use parking_lot::{Condvar, Mutex};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

/// How long a write waits for the actions that it lets run.
const PATIENCE: Duration = Duration::from_millis(50);

/// Where the two threads meet.
#[derive(Default)]
pub(super) struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Requests (writes and flushes) to let pass before each meeting.
    gaps: Vec<u32>,
    /// The other thread has a turn.
    turn: bool,
    closed: bool,
}

impl Meeting {
    /// From now on, lets the other thread run after so many requests, then after so many more, and so on.
    pub(super) fn arm(&self, mut gaps: Vec<u32>) {
        gaps.reverse();
        self.state.lock().gaps = gaps;
    }

    /// No more turns; waits for the one under way.
    pub(super) fn disarm(&self) {
        let mut state = self.state.lock();
        state.gaps.clear();
        while state.turn {
            self.changed.wait(&mut state);
        }
    }

    /// Ends the other thread.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// For the other thread: runs `act` at each turn until the meeting is closed.
    pub(super) fn serve(&self, mut act: impl FnMut()) {
        loop {
            {
                let mut state = self.state.lock();
                while !state.turn {
                    if state.closed {
                        return;
                    }
                    self.changed.wait(&mut state);
                }
            }
            act();
            self.state.lock().turn = false;
            self.changed.notify_all();
        }
    }

    fn pass(&self) {
        let mut state = self.state.lock();
        if state.turn {
            // A request of the other thread, or it is late.
            return;
        }
        match state.gaps.last_mut() {
            None => return,
            Some(0) => drop(state.gaps.pop()),
            Some(gap) => {
                *gap -= 1;
                return;
            }
        }
        state.turn = true;
        self.changed.notify_all();
        while state.turn {
            if self.changed.wait_for(&mut state, PATIENCE).timed_out() {
                return;
            }
        }
    }
}

/// A device with meetings before its writes and flushes.
pub(super) struct Interleave {
    inner: Arc<dyn Device>,
    meeting: Arc<Meeting>,
}

impl Interleave {
    pub(super) fn new(inner: Arc<dyn Device>, meeting: Arc<Meeting>) -> Interleave {
        Interleave { inner, meeting }
    }
}

impl Filter for Interleave {
    fn below(&self) -> &dyn Device {
        &*self.inner
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        self.meeting.pass();
        self.inner.write(first, bufs)
    }

    fn on_flush(&self) -> Result<(), Error> {
        self.meeting.pass();
        self.inner.flush()
    }
}
