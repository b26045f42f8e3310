use super::*;

fn small() -> Sizes {
    let [main, log, load, area] = [32, 16, 8, 24].map(|mib| mib * MIB_BLOCKS);
    Sizes { main, log, load, area, scattered: 200, ..Sizes::default() }
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

/// Also where the same is written again, and main must not be in the way.
#[test]
fn asynchronous_writes_in_a_row_are_as_fast_as_the_log() {
    let sizes = Sizes { main: 128 * MIB_BLOCKS, log: 112 * MIB_BLOCKS, load: 64 * MIB_BLOCKS, ..small() };
    let rate = |setup, load| Bench::new(setup, sizes).unwrap().run(load).unwrap().mb_per_s();
    for (log, alone) in [(Log::Stick, Setup::Stick), (Log::Ssd, Setup::Ssd)] {
        for load in [Load::Sequential, Load::Rewrite, Load::Overflow] {
            let part = rate(Setup::Flashlog(log, Mode::Asynchronous), load) / rate(alone, load);
            assert!((0.9..1.0).contains(&part), "{log:?}, {}: {part}", load.name());
        }
    }
}

/// Half of them are of what only the log has, and cost no more than they do there.
#[test]
fn mixed_reads_are_half_from_each_device() {
    let sizes = Sizes { main: 224 * MIB_BLOCKS, log: 160 * MIB_BLOCKS, load: 144 * MIB_BLOCKS, ..small() };
    let run = |setup, load| Bench::new(setup, sizes).unwrap().run(load).unwrap();
    let disk = run(Setup::Disk, Load::Reads(1)).mb_per_s();
    for (log, alone) in [(Log::Stick, Setup::Stick), (Log::Ssd, Setup::Ssd)] {
        let possible = 2.0 / (1.0 / disk + 1.0 / run(alone, Load::Reads(1)).mb_per_s());
        let measured = run(Setup::Flashlog(log, Mode::Asynchronous), Load::MixedReads);
        let of_log = measured.log.map_or(0, |log| log.read_bytes) as f64 / measured.bytes as f64;
        assert!((0.5..0.6).contains(&of_log) && measured.main.written_bytes == 0, "{log:?}: {measured:?}");
        let part = measured.mb_per_s() / possible;
        assert!(part >= 0.9, "{log:?}: {part}");
    }
}

#[test]
fn a_backup_is_at_least_five_times_as_fast_as_a_replay() {
    let sizes = Sizes { main: 128 * MIB_BLOCKS, log: 112 * MIB_BLOCKS, area: 96 * MIB_BLOCKS, ..small() };
    for log in [Log::Stick, Log::Ssd] {
        let times = backups(log, sizes).unwrap().times();
        assert!(times >= 5.0, "{log:?}: {times}");
    }
}

#[test]
fn a_disk_stands_still_while_a_stream_goes_to_the_log() {
    let sizes = Sizes { main: 512 * MIB_BLOCKS, log: 512 * MIB_BLOCKS, ..small() };
    let measured = Bench::new(Setup::Flashlog(Log::Ssd, Mode::Asynchronous), sizes).unwrap().run(Load::Stream).unwrap();
    let on = measured.main.motor.on_ns as f64 / 1e9 / measured.seconds;
    assert!(on < 0.1, "its motor is on for {on} of the time");
}

/// What the layout is for: neither header nor page is written again where it was.
#[test]
fn a_naive_log_wears_a_stick_many_times_as_much() {
    let programmed = |setup| {
        let measured = Bench::new(setup, small()).unwrap().run(Load::Scattered(1)).unwrap();
        measured.log.unwrap_or(measured.main).wear.programmed as f64
    };
    let times = programmed(Setup::Naive) / programmed(Setup::Flashlog(Log::Stick, Mode::Synchronous));
    assert!(times >= 20.0, "{times}");
}

/// By a rule main is awake in each pause, and without one never.
#[test]
fn a_rule_wakes_the_disk_in_pauses_and_main_has_everything_then() {
    let motor_on = |setup| {
        let measured =
            Bench::new(setup, Sizes { log: 224 * MIB_BLOCKS, ..small() }).unwrap().run(Load::Pauses).unwrap();
        (measured.main.written_bytes > 40 << 20, measured.main.motor.starts)
    };
    assert_eq!(motor_on(Setup::Flashlog(Log::Stick, Mode::Asynchronous)), (false, 0));
    for rule in [Rule::Idle, Rule::Age] {
        assert!(motor_on(Setup::Ruled(rule)).0, "{rule:?}");
    }
}

#[test]
fn a_table_has_every_load_and_setup() {
    let measured = |load| (load, Setup::Disk, Bench::new(Setup::Disk, small()).unwrap().run(load).unwrap());
    let text = tables(&[Load::Sequential, Load::MixedReads].map(measured).into_iter().collect());
    for name in Load::RATES.map(Load::name).iter().map(String::as_str).chain(Setup::ALL.map(Setup::name)) {
        assert!(text.contains(name), "{name}: {text}");
    }
}
