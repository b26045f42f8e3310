use super::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Wake;
use std::time::Duration;

/// Far more than a call takes, so that a test that fails does so, rather than hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// Tells when it is woken, and by what name.
struct Told(&'static str, Sender<&'static str>);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.1.send(self.0).unwrap();
    }
}

fn waker(name: &'static str, told: &Sender<&'static str>) -> Waker {
    Arc::new(Told(name, told.clone())).into()
}

fn poll<T>(pending: &mut Pending<T>, waker: &Waker) -> Poll<T> {
    Pin::new(pending).poll(&mut Context::from_waker(waker))
}

/// A call that ends when it is told to.
fn gated<T: Send + 'static>(value: T) -> (Sender<()>, impl FnOnce() -> T + Send + 'static) {
    let (open, gate): (Sender<()>, Receiver<()>) = channel();
    let call = move || {
        // Also if nobody will open it.
        let _ = gate.recv_timeout(PATIENCE);
        value
    };
    (open, call)
}

fn panics<T>(what: impl FnOnce() -> T) -> &'static str {
    let payload = catch_unwind(AssertUnwindSafe(what)).map(drop).expect_err("a panic");
    payload.downcast_ref::<&'static str>().copied().unwrap_or("another")
}

#[test]
fn an_answer_that_is_ready_is_given_at_the_first_poll() {
    let (told, tells) = channel();
    let workers = Workers::new(1, 10).unwrap();
    let mut pending = workers.run(|| 5).unwrap();
    workers.run(|| ()).unwrap().wait();
    assert!(pending.is_ready(), "its only thread had it first");
    assert_eq!(poll(&mut pending, &waker("first", &told)), Poll::Ready(5));
    assert!(tells.try_recv().is_err(), "nobody is woken");
    let again = panics(|| poll(&mut pending, &waker("again", &told)));
    assert_eq!(again, "the value of a call is taken once");
    assert_eq!(panics(|| pending.wait()), again);
}

#[test]
fn who_polled_last_is_woken_once() {
    let (told, tells) = channel();
    let workers = Workers::new(1, 10).unwrap();
    let (open, call) = gated("done");
    let mut pending = workers.run(call).unwrap();
    assert!(poll(&mut pending, &waker("first", &told)).is_pending());
    assert!(poll(&mut pending, &waker("second", &told)).is_pending() && !pending.is_ready());
    open.send(()).unwrap();
    assert_eq!(tells.recv_timeout(PATIENCE), Ok("second"));
    assert_eq!(poll(&mut pending, &waker("third", &told)), Poll::Ready("done"));
    drop(workers);
    assert!(tells.try_recv().is_err());
}

#[test]
fn who_waits_without_an_executor_is_woken() {
    let workers = Workers::new(2, 10).unwrap();
    let (open, call) = gated(7);
    let pending = workers.run(call).unwrap();
    let opened = workers.run(move || open.send(()).is_ok()).unwrap();
    assert_eq!((pending.wait(), opened.wait()), (7, true));
}

#[test]
fn a_call_that_nobody_waits_for_is_made() {
    let workers = Workers::new(1, 10).unwrap();
    let (told, tells) = channel();
    let (open, call) = gated(());
    drop(workers.run(call).unwrap());
    let value = Arc::new(());
    let of_call = value.clone();
    let abandoned = workers.run(move || {
        told.send("made").unwrap();
        of_call
    });
    drop(abandoned.unwrap());
    open.send(()).unwrap();
    assert_eq!(tells.recv_timeout(PATIENCE), Ok("made"));
    workers.run(|| ()).unwrap().wait();
    assert_eq!(Arc::strong_count(&value), 1, "what it gave is dropped");
}

#[test]
fn what_a_call_owns_is_dropped_before_it_is_ready() {
    let workers = Workers::new(1, 10).unwrap();
    let owned = Arc::new(());
    for _ in 0..1000 {
        let of_call = owned.clone();
        workers.run(move || assert!(Arc::strong_count(&of_call) == 2)).unwrap().wait();
        assert_eq!(Arc::strong_count(&owned), 1);
    }
}

/// Panics as it is dropped.
struct Sore;

impl Drop for Sore {
    fn drop(&mut self) {
        panic!("sore");
    }
}

#[test]
fn a_panic_is_that_of_who_waits_and_of_nobody_else() {
    let workers = Workers::new(1, 10).unwrap();
    // So that what nobody waits for is dropped by the thread that made it.
    let (open, call) = gated(());
    drop(workers.run(call).unwrap());
    let bad = || workers.run(|| panic!("bad call")).unwrap();
    let (mut polled, waited, abandoned) = (bad(), bad(), bad());
    drop(abandoned);
    drop(workers.run(|| Sore).unwrap());
    open.send(()).unwrap();
    assert_eq!(workers.run(|| 8).unwrap().wait(), 8, "calls behind them");
    let (told, _tells) = channel();
    assert_eq!(panics(|| poll::<()>(&mut polled, &waker("polled", &told))), "bad call");
    assert_eq!(panics(|| waited.wait()), "bad call");
    assert_eq!(lock(&workers.queue.state).in_flight, 0, "their room is had again");
}

#[test]
fn as_many_calls_are_made_at_once_as_there_are_threads() {
    let workers = Workers::new(8, 8).unwrap();
    let all = Arc::new(Barrier::new(8));
    let calls = (0..8).map(|number| {
        let all = all.clone();
        let call = move || {
            all.wait();
            number
        };
        workers.run(call).unwrap()
    });
    let calls: Vec<_> = calls.collect();
    assert_eq!(calls.into_iter().map(Pending::wait).sum::<usize>(), 28);
}

#[test]
fn many_are_in_flight_and_each_gives_its_own() {
    const CALLS: usize = 5000;
    let (told, tells) = channel();
    let workers = Workers::new(3, CALLS).unwrap();
    let mut calls: Vec<_> = (0..CALLS).map(|number| workers.run(move || number * 3).unwrap()).collect();
    let waker = waker("one of them", &told);
    for (number, pending) in calls.iter_mut().enumerate() {
        let value = loop {
            match poll(pending, &waker) {
                Poll::Ready(value) => break value,
                Poll::Pending => tells.recv_timeout(PATIENCE).unwrap(),
            };
        };
        assert_eq!(value, number * 3);
    }
}

#[test]
fn a_call_too_many_is_given_back_until_one_is_done() {
    let workers = Workers::new(1, 3).unwrap();
    let (open, call) = gated(1);
    let first = workers.run(call).unwrap();
    let others: Vec<_> = (2..4).map(|number| workers.run(move || number).unwrap()).collect();
    let full = workers.run(|| 4).unwrap_err();
    assert_eq!(full.to_string(), "as many calls are in flight as there may be");
    open.send(()).unwrap();
    assert_eq!(first.wait(), 1);
    // At once: who is told that one is done finds room.
    let fourth = workers.run(full.0).unwrap();
    assert_eq!(others.into_iter().chain([fourth]).map(Pending::wait).sum::<i32>(), 9);
    // One of each, so that a call is refused unless the one before it has made room by the time it is told.
    let least = Workers::new(0, 0).unwrap();
    for number in 0..10_000 {
        assert_eq!(least.run(move || number).unwrap().wait(), number);
    }
}

#[test]
fn who_drops_the_threads_waits_for_all_calls() {
    let made = Arc::new(AtomicUsize::new(0));
    let workers = Workers::new(2, 1000).unwrap();
    let (open, call) = gated(());
    let first = workers.run(call).unwrap();
    let count = |made: &Arc<AtomicUsize>| {
        let made = made.clone();
        move || made.fetch_add(1, Ordering::Relaxed)
    };
    let counts: Vec<_> = (0..100).map(|_| workers.run(count(&made)).unwrap()).collect();
    open.send(()).unwrap();
    drop(workers);
    assert_eq!(made.load(Ordering::Relaxed), 100);
    assert!(first.is_ready() && counts.iter().all(Pending::is_ready));
}

#[test]
fn a_call_that_has_the_last_handle_waits_for_itself_not() {
    let workers = Arc::new(Workers::new(3, 10).unwrap());
    let (open, gate) = channel();
    let of_call = workers.clone();
    let pending = workers.run(move || {
        gate.recv_timeout(PATIENCE).unwrap();
        assert_eq!(Arc::strong_count(&of_call), 1);
        "dropped"
    });
    drop(workers);
    open.send(()).unwrap();
    assert_eq!(pending.unwrap().wait(), "dropped");
}

#[test]
fn they_go_where_executors_need_them() {
    fn goes_anywhere<T: Send + Sync + Unpin + 'static>() {}
    goes_anywhere::<Workers>();
    goes_anywhere::<Pending<std::cell::Cell<u8>>>();
    let workers = Workers::new(1, 1).unwrap();
    let future = async { workers.run(|| 3).unwrap().await + 1 };
    let (told, tells) = channel();
    let waker = waker("future", &told);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return assert_eq!(value, 4),
            Poll::Pending => assert_eq!(tells.recv_timeout(PATIENCE), Ok("future")),
        }
    }
}
