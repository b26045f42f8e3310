//! Threads that make calls which wait, so that who hands them in need not: the asynchronous form of any call, for any executor or none.
//!
//! A closure has the call, what it needs and what it gives, so that every call of a file has this form: several buffers, checksums, appends, fsync.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};

/// Threads that make calls for others; to be shared by reference or in an [`Arc`].
///
/// Calls begin in the order in which they are handed in, and end in any: a call that needs another one done is handed in once that is ready.
/// A call does not wait for one that is handed in to the same threads: it could be behind it.
///
/// Dropping it waits for all calls that were handed in, also for those that had not begun; an executor drops it where it may wait.
pub struct Workers {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

/// What a call will give: a future, of any executor. Without one there is [`Pending::wait`].
///
/// Dropping it cancels nothing: a call that was handed in is made, and what it gives is dropped. If the call panics, whoever awaits it does, with the
/// same payload. As usual with futures, polling it panics once it has given its value.
pub struct Pending<T> {
    answer: Arc<Answer<T>>,
}

/// The call was not taken, as there were as many in flight as there may be; here it is again. One of them ends without anything being done.
pub struct Full<C>(pub C);

type Call = Box<dyn FnOnce(&Queue) + Send>;

struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    in_flight_max: usize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Call>,
    /// Calls that wait, and those that are being made.
    in_flight: usize,
    ends: bool,
}

struct Answer<T> {
    progress: Mutex<Progress<T>>,
    done: Condvar,
}

enum Progress<T> {
    /// With who polled it last.
    Running(Option<Waker>),
    Done(thread::Result<T>),
    Taken,
}

impl Workers {
    /// So many threads, and room for so many calls that are handed in and not done. At least one of each; with fewer calls than threads, some
    /// threads have nothing to do. A thread waits for one call at a time, so `threads` is how many transfers a device or a mount gets at once.
    ///
    /// # Errors
    /// The system's, if it makes no such thread; those made before end.
    pub fn new(threads: usize, in_flight_max: usize) -> io::Result<Workers> {
        let in_flight_max = in_flight_max.max(1);
        let queue = Arc::new(Queue { state: Mutex::default(), changed: Condvar::new(), in_flight_max });
        let mut workers = Workers { queue, threads: Vec::new() };
        for _ in 0..threads.max(1) {
            let queue = workers.queue.clone();
            let thread = thread::Builder::new().name("holdfast-worker".into()).spawn(move || queue.serve())?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Has a thread make the call. What the call owns is dropped before the answer is ready: a file whose last handle it had is closed by then.
    ///
    /// # Errors
    /// [`Full`]. This never waits.
    pub fn run<T, C>(&self, call: C) -> Result<Pending<T>, Full<C>>
    where
        T: Send + 'static,
        C: FnOnce() -> T + Send + 'static,
    {
        let mut state = lock(&self.queue.state);
        if state.in_flight == self.queue.in_flight_max {
            return Err(Full(call));
        }
        let answer = Arc::new(Answer { progress: Mutex::new(Progress::Running(None)), done: Condvar::new() });
        let of_call = answer.clone();
        state.in_flight += 1;
        state.waiting.push_back(Box::new(move |queue| {
            let outcome = catch_unwind(AssertUnwindSafe(call));
            // Before it is told, so that who is told finds room.
            lock(&queue.state).in_flight -= 1;
            of_call.give(outcome);
        }));
        drop(state);
        self.queue.changed.notify_one();
        Ok(Pending { answer })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.queue.state).ends = true;
        self.queue.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A call that had the last handle drops it on one of them, which does not wait for itself.
            if thread.thread().id() != thread::current().id() {
                // It has caught what panicked.
                let _ = thread.join();
            }
        }
    }
}

impl Queue {
    fn serve(&self) {
        while let Some(call) = self.next() {
            // An answer that nobody wants can panic as it is dropped, and an executor as it is woken: calls behind are made all the same.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| call(self))) {
                // So can this.
                mem::forget(payload);
            }
        }
    }

    /// `None` at the end.
    fn next(&self) -> Option<Call> {
        let is_idle = |state: &mut State| state.waiting.is_empty() && !state.ends;
        let state = self.changed.wait_while(lock(&self.state), is_idle);
        state.unwrap_or_else(PoisonError::into_inner).waiting.pop_front()
    }
}

impl<T> Answer<T> {
    fn give(&self, outcome: thread::Result<T>) {
        let before = mem::replace(&mut *lock(&self.progress), Progress::Done(outcome));
        self.done.notify_one();
        if let Progress::Running(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> Pending<T> {
    /// Waits until the call is done, and gives what it gave. Not for a thread of an executor, which others need meanwhile.
    ///
    /// # Panics
    /// If the call did.
    pub fn wait(self) -> T {
        let is_running = |progress: &mut Progress<T>| matches!(progress, Progress::Running(_));
        let progress = self.answer.done.wait_while(lock(&self.answer.progress), is_running);
        let outcome = mem::replace(&mut *progress.unwrap_or_else(PoisonError::into_inner), Progress::Taken);
        value(outcome)
    }

    /// Whether the call is done, so that nobody would wait for it.
    pub fn is_ready(&self) -> bool {
        !matches!(*lock(&self.answer.progress), Progress::Running(_))
    }
}

impl<T> Future for Pending<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Wakers are an executor's code: none of it under the lock.
        let waker = context.waker().clone();
        let mut progress = lock(&self.answer.progress);
        let is_running = matches!(*progress, Progress::Running(_));
        let next = if is_running { Progress::Running(Some(waker)) } else { Progress::Taken };
        let before = mem::replace(&mut *progress, next);
        drop(progress);
        if is_running { Poll::Pending } else { Poll::Ready(value(before)) }
    }
}

/// Of a call that does not run any more.
fn value<T>(progress: Progress<T>) -> T {
    match progress {
        Progress::Done(Ok(value)) => value,
        Progress::Done(Err(payload)) => resume_unwind(payload),
        Progress::Running(_) | Progress::Taken => panic!("the value of a call is taken once"),
    }
}

/// Nobody panics with the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("is_ready", &self.is_ready()).finish_non_exhaustive()
    }
}

impl<C> fmt::Debug for Full<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Full").finish_non_exhaustive()
    }
}

impl<C> fmt::Display for Full<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("as many calls are in flight as there may be")
    }
}

impl<C> std::error::Error for Full<C> {}

#[cfg(test)]
mod tests;
