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
/// keep others waiting, 0.8 s at most. After it they have as long for themselves: of two attempts without a pause the second one begins before
/// those have woken up who waited for the first.
///
/// # Errors
/// That of the attempt.
pub fn by_turns<T, E>(
    deadline: Instant,
    mut attempt: impl FnMut(Duration) -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let mut patience = ATTEMPT;
    loop {
        if let Some(done) = attempt(patience)? {
            return Ok(Some(done));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(patience);
        patience = (2 * patience).min(ATTEMPT_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// As an fsync on a slow disk.
    const SLOW: Duration = Duration::from_secs(4);

    #[test]
    fn others_have_their_turn_while_an_exchange_waits_for_a_slow_request() {
        let served = &Served::new(Arc::new(1));
        let (began, begun) = mpsc::channel();
        let longest = thread::scope(|scope| {
            scope.spawn(move || {
                let _request = served.get();
                began.send(()).unwrap();
                thread::sleep(SLOW);
            });
            begun.recv().unwrap();
            let look_up = || {
                let (mut longest, mut count) = (Duration::ZERO, 0);
                loop {
                    let asked = Instant::now();
                    let is_exchanged = **served.get() == 2;
                    longest = longest.max(asked.elapsed());
                    if is_exchanged {
                        assert!(count > 100, "{count}");
                        return longest;
                    }
                    count += 1;
                    // As a program does between two requests.
                    thread::sleep(Duration::from_millis(1));
                }
            };
            let others: Vec<_> = (0..2).map(|_| scope.spawn(look_up)).collect();
            let start = Instant::now();
            let exchange = |patience| Ok::<_, ()>(served.exchange(patience, || Ok::<_, ()>(Arc::new(2))));
            assert_eq!(by_turns(start + 10 * SLOW, exchange), Ok(Some(Ok(()))));
            assert!(start.elapsed() < 2 * SLOW, "{:?}", start.elapsed());
            others.into_iter().map(|other| other.join().unwrap()).max().unwrap()
        });
        println!("the longest look-up took {longest:?}");
        assert!(longest < 2 * ATTEMPT_MAX, "{longest:?}");
    }

    #[test]
    fn an_exchange_that_finds_no_moment_gives_up() {
        let served = Served::new(Arc::new(1));
        let _request = served.get();
        let deadline = Instant::now() + 3 * ATTEMPT;
        let mut attempts = Vec::new();
        let given_up = by_turns(deadline, |patience| {
            attempts.push(patience);
            Ok::<_, ()>(served.exchange(patience, || Ok::<_, ()>(Arc::new(2))))
        });
        assert_eq!((given_up, **served.get()), (Ok(None), 1));
        assert_eq!(attempts[..2], [ATTEMPT, 2 * ATTEMPT]);
    }
}
