use super::*;

fn small() -> Sizes {
    Sizes { main: 32 * MIB_BLOCKS, log: 16 * MIB_BLOCKS, load: 8 * MIB_BLOCKS, area: 24 * MIB_BLOCKS, scattered: 200 }
}

fn rate(setup: Setup, load: Load) -> f64 {
    Bench::new(setup, small()).unwrap().run(load).unwrap().mb_per_s()
}

/// The thesis's first promise, and the goal here.
#[test]
fn scattered_writes_to_a_stick_as_a_log_are_at_least_twenty_times_as_fast_as_to_a_stick() {
    let alone = rate(Setup::Stick, Load::Scattered(1));
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let times = rate(Setup::Flashlog(Log::Stick, mode), Load::Scattered(1)) / alone;
        assert!(times >= 20.0, "{mode:?}: {times}");
    }
}

/// What the thread for main is for. The start, when main has nothing yet, is short beside the load.
#[test]
fn synchronous_writes_in_a_row_are_as_fast_as_the_slower_device() {
    let sizes = Sizes { main: 256 * MIB_BLOCKS, log: 224 * MIB_BLOCKS, load: 192 * MIB_BLOCKS, ..small() };
    let rate = |setup| Bench::new(setup, sizes).unwrap().run(Load::Sequential).unwrap().mb_per_s();
    for (log, slower) in [(Log::Stick, Setup::Stick), (Log::Ssd, Setup::Disk)] {
        let part = rate(Setup::Flashlog(log, Mode::Synchronous)) / rate(slower);
        assert!((0.95..1.0).contains(&part), "{log:?}: {part}");
    }
}

#[test]
fn a_disk_stands_still_while_a_stream_goes_to_the_log() {
    let sizes = Sizes { main: 512 * MIB_BLOCKS, log: 512 * MIB_BLOCKS, ..small() };
    let measured = Bench::new(Setup::Flashlog(Log::Ssd, Mode::Asynchronous), sizes).unwrap().run(Load::Stream).unwrap();
    let on = measured.main.motor.on_ns as f64 / 1e9 / measured.seconds;
    assert!(on < 0.1, "its motor is on for {on} of the time");
}

#[test]
fn a_table_has_every_load_and_setup() {
    let measured = |load| (load, Setup::Disk, Bench::new(Setup::Disk, small()).unwrap().run(load).unwrap());
    let text = tables(&[Load::Sequential, Load::MixedReads].map(measured).into_iter().collect());
    for name in Load::RATES.map(Load::name).iter().map(String::as_str).chain(Setup::ALL.map(Setup::name)) {
        assert!(text.contains(name), "{name}: {text}");
    }
}
