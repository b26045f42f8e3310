//! The name space that a mount serves, which can be exchanged for another one between two requests: a remount opens the store anew,
//! for writing or for reading only.

use holdfast_naming::Namespace;
use parking_lot::{RwLock, RwLockReadGuard};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// For how long the first attempt at an exchange waits for a moment without requests, and so keeps others waiting.
const ATTEMPT: Duration = Duration::from_millis(100);
/// The same of the last ones: longer than requests of a slow disk that overlap.
const ATTEMPT_MAX: Duration = Duration::from_millis(800);

/// A name space in use by requests.
#[derive(Debug)]
pub struct Served<T = Namespace>(RwLock<Arc<T>>);

impl<T> Served<T> {
    /// Serves `namespace` at first.
    pub fn new(namespace: Arc<T>) -> Served<T> {
        Served(RwLock::new(namespace))
    }

    /// What is served, kept as long as the guard is there. A request has one of them, so whoever waits for the exchange goes first.
    pub(crate) fn get(&self) -> RwLockReadGuard<'_, Arc<T>> {
        self.0.read()
    }

    /// Waits until no request is under way, for `patience` at most, and serves what `make` gives; others wait meanwhile. Nothing if
    /// there was no such moment. Not to be called with a guard; `make` must not wait for a request.
    ///
    /// # Errors
    /// That of `make`: then the same is served as before.
    pub fn exchange<E>(&self, patience: Duration, make: impl FnOnce() -> Result<Arc<T>, E>) -> Option<Result<(), E>> {
        let mut served = self.0.try_write_for(patience)?;
        Some(make().map(|namespace| *served = namespace))
    }
}

/// Makes attempts at an exchange until one gives something or fails, or until `deadline`; nothing then. Each is told for how long it may
/// keep others waiting, 0.8 s at most; after it they have as long for themselves.
///
/// # Errors
/// That of the attempt.
pub fn by_turns<T, E>(
    deadline: Instant,
    attempt: impl FnMut(Duration) -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    // Nothing tells that others have had their turn, as more of them come all the time. Without a rest the next attempt begins before those
    // have woken up who waited for the last one, and they wait for both.
    take_turns(attempt, thread::sleep, || Instant::now() >= deadline)
}

fn take_turns<T, E>(
    mut attempt: impl FnMut(Duration) -> Result<Option<T>, E>,
    mut rest: impl FnMut(Duration),
    is_over: impl Fn() -> bool,
) -> Result<Option<T>, E> {
    let mut patience = ATTEMPT;
    loop {
        if let Some(done) = attempt(patience)? {
            return Ok(Some(done));
        }
        if is_over() {
            return Ok(None);
        }
        rest(patience);
        patience = (2 * patience).min(ATTEMPT_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::sync::mpsc;

    #[test]
    fn others_have_as_long_for_themselves_as_they_were_kept_waiting() {
        let (attempts, rests) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let attempt = |patience: Duration| {
            attempts.borrow_mut().push(patience.as_millis());
            Ok::<_, ()>(None::<()>)
        };
        let rest = |time: Duration| rests.borrow_mut().push(time.as_millis());
        assert_eq!(take_turns(attempt, rest, || attempts.borrow().len() == 6), Ok(None));
        assert_eq!(*attempts.borrow(), [100, 200, 400, 800, 800, 800]);
        assert_eq!(*rests.borrow(), attempts.borrow()[..5]);
    }

    #[test]
    fn an_exchange_waits_for_a_slow_request_while_others_come_and_go() {
        let served = &Served::new(Arc::new(1));
        let (began, begun) = mpsc::channel();
        thread::scope(|scope| {
            let (end, ended) = mpsc::channel();
            scope.spawn(move || {
                let _request = served.get();
                began.send(()).unwrap();
                ended.recv().unwrap();
            });
            begun.recv().unwrap();
            let (stop, stopped) = mpsc::channel::<()>();
            scope.spawn(move || {
                while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                    assert!((1..=2).contains(&**served.get()));
                }
            });
            let count = Cell::new(0);
            let attempt = |patience| {
                count.set(count.get() + 1);
                if count.get() == 3 {
                    end.send(()).unwrap();
                }
                Ok::<_, ()>(served.exchange(patience, || Ok::<_, ()>(Arc::new(2))))
            };
            // A busy machine may need some more of them.
            let exchanged = take_turns(attempt, |_| thread::yield_now(), || count.get() == 100);
            drop(stop);
            assert_eq!((exchanged, **served.get()), (Ok(Some(Ok(()))), 2));
            assert!(count.get() >= 3, "{}: it did not wait", count.get());
        });
    }

    #[test]
    fn an_exchange_that_finds_no_moment_gives_up() {
        let served = Served::new(Arc::new(1));
        let _request = served.get();
        let exchange = |patience| Ok::<_, ()>(served.exchange(patience, || Ok::<_, ()>(Arc::new(2))));
        assert_eq!((by_turns(Instant::now(), exchange), **served.get()), (Ok(None), 1));
    }
}
