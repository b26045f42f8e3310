//! How threads wait for each other: for a lock that is held while devices work, and for work.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time, and waiting for other threads of a set. A simulation that keeps its own time has its own.
///
/// Whoever waits takes a ticket, looks whether it must wait, and waits with the ticket: a wake in between is not missed.
pub trait Timer: Send + Sync {
    /// Time since some moment.
    fn now(&self) -> Duration;
    /// A number that each wake changes.
    fn ticket(&self) -> u64;
    /// Returns when there was a wake since this ticket, or at that time.
    fn wait(&self, ticket: u64, until: Option<Duration>);
    /// Ends all waits.
    fn wake(&self);
}

/// The time of the machine.
#[derive(Debug)]
pub struct RealTimer {
    start: Instant,
    ticket: Mutex<u64>,
    woken: Condvar,
}

impl Default for RealTimer {
    fn default() -> RealTimer {
        RealTimer { start: Instant::now(), ticket: Mutex::new(0), woken: Condvar::new() }
    }
}

impl Timer for RealTimer {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn ticket(&self) -> u64 {
        *self.ticket.lock()
    }

    fn wait(&self, ticket: u64, until: Option<Duration>) {
        let mut now = self.ticket.lock();
        while *now == ticket {
            match until {
                None => self.woken.wait(&mut now),
                Some(until) if self.woken.wait_until(&mut now, self.start + until).timed_out() => return,
                Some(_) => {}
            }
        }
    }

    fn wake(&self) {
        *self.ticket.lock() += 1;
        self.woken.notify_all();
    }
}

/// A lock that is held while devices work. Whoever wants it waits with the timer, first come, first served: a thread that takes it again
/// and again keeps nobody out.
pub(super) struct Turn<T> {
    inner: Mutex<T>,
    timer: Arc<dyn Timer>,
    /// The next number to be given.
    next: AtomicU64,
    /// The number whose turn it is.
    serving: AtomicU64,
    /// Somebody without a number wants to be told.
    is_wanted: AtomicBool,
}

impl<T> Turn<T> {
    pub(super) fn new(inner: T, timer: Arc<dyn Timer>) -> Turn<T> {
        let (next, serving) = (AtomicU64::new(0), AtomicU64::new(0));
        Turn { inner: Mutex::new(inner), timer, next, serving, is_wanted: AtomicBool::new(false) }
    }

    /// Waits for its turn.
    pub(super) fn lock(&self) -> TurnGuard<'_, T> {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        loop {
            let ticket = self.timer.ticket();
            if self.serving.load(Ordering::SeqCst) == number {
                return TurnGuard { turn: self, inner: Some(self.inner.lock()) };
            }
            self.timer.wait(ticket, None);
        }
    }

    /// If nobody has it and nobody waits. Otherwise, there is a wake when it is given back.
    pub(super) fn try_lock(&self) -> Option<TurnGuard<'_, T>> {
        for is_last in [false, true] {
            let serving = self.serving.load(Ordering::SeqCst);
            if self.next.compare_exchange(serving, serving + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return Some(TurnGuard { turn: self, inner: Some(self.inner.lock()) });
            }
            if !is_last {
                self.is_wanted.store(true, Ordering::SeqCst);
            }
        }
        None
    }
}

/// Has the lock until it is dropped.
pub(super) struct TurnGuard<'a, T> {
    turn: &'a Turn<T>,
    inner: Option<MutexGuard<'a, T>>,
}

impl<T> Deref for TurnGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().expect("it is there until the guard is dropped")
    }
}

impl<T> DerefMut for TurnGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("it is there until the guard is dropped")
    }
}

impl<T> Drop for TurnGuard<'_, T> {
    fn drop(&mut self) {
        self.inner = None;
        let serving = self.turn.serving.fetch_add(1, Ordering::SeqCst) + 1;
        let is_wanted = self.turn.is_wanted.swap(false, Ordering::SeqCst);
        if is_wanted || self.turn.next.load(Ordering::SeqCst) > serving {
            self.turn.timer.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_taken_in_order_and_nobody_is_forgotten() {
        let turn = Turn::new(Vec::new(), Arc::new(RealTimer::default()));
        let first = turn.lock();
        assert!(turn.try_lock().is_none());
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let turn = &turn;
                // Each has its number before the next one is started.
                scope.spawn(move || turn.lock().push(thread));
                while turn.next.load(Ordering::SeqCst) < thread + 2 {
                    std::hint::spin_loop();
                }
            }
            drop(first);
        });
        assert_eq!(*turn.lock(), [0, 1, 2, 3]);
        assert!(turn.try_lock().is_some());
    }

    #[test]
    fn what_is_counted_under_a_lock_by_many_threads_is_right() {
        let turn = Turn::new(0u64, Arc::new(RealTimer::default()));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let turn = &turn;
                scope.spawn(move || {
                    for _ in 0..2000 {
                        let ticket = turn.timer.ticket();
                        match if thread % 2 == 0 { turn.try_lock() } else { None } {
                            Some(mut count) => *count += 1,
                            None if thread % 2 == 0 => {
                                turn.timer.wait(ticket, None);
                                *turn.lock() += 1;
                            }
                            None => *turn.lock() += 1,
                        }
                    }
                });
            }
        });
        assert_eq!(*turn.lock(), 8000);
    }

    #[test]
    fn a_wait_ends_at_its_time_and_by_a_wake_that_came_before_it() {
        let timer = RealTimer::default();
        let ticket = timer.ticket();
        let until = timer.now() + Duration::from_millis(2);
        timer.wait(ticket, Some(until));
        assert!(timer.now() >= until);
        timer.wake();
        timer.wait(ticket, None);
    }
}
