use super::*;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

const MIB: u64 = 256;
const S: f64 = 1e9;

struct Rig {
    clock: Arc<Virtual>,
    device: Timed,
}

fn rig(blocks: u64, model: impl Model + 'static) -> Rig {
    let clock = Arc::new(Virtual::default());
    let device = Timed::new(Arc::new(MemoryDevice::new(blocks)), Box::new(model), clock.clone());
    Rig { clock, device }
}

impl Rig {
    fn write(&self, first: u64, blocks: u64) {
        let bytes = vec![1; (blocks * BLOCK) as usize];
        self.device.write(first, &[IoSlice::new(&bytes)]).unwrap();
    }

    fn seconds(&self, work: impl FnOnce(&Rig)) -> f64 {
        let before = self.clock.now_ns();
        work(self);
        (self.clock.now_ns() - before) as f64 / S
    }
}

/// Scattered blocks of the first `blocks`.
fn scattered(blocks: u64, count: usize) -> Vec<u64> {
    let mut random = Pcg64::seed_from_u64(5);
    (0..count).map(|_| random.random_range(0..blocks)).collect()
}

#[test]
fn a_disk_reads_and_writes_in_a_row_at_its_rate_and_scattered_at_that_of_its_arm() {
    let rig = rig(400 * MIB, Disk::new(DiskOptions::new(400 * MIB)));
    assert_eq!(rig.seconds(|rig| rig.write(0, 1)).floor(), 5.0, "the motor starts");
    let row = rig.seconds(|rig| (0..100).for_each(|at| rig.write(1 + at * MIB, MIB)));
    assert!((row - 100.0 * 1.048_576 / 100.0).abs() < 1e-6, "{row}");
    let far = rig.seconds(|rig| scattered(400 * MIB, 500).into_iter().for_each(|at| rig.write(at, 1))) / 500.0;
    assert!((0.008..0.016).contains(&far), "{far} s for a scattered write");
    // What is written in a row, each durable before the next, waits for the disk to come around.
    rig.write(0, 1);
    let durable = rig.seconds(|rig| {
        for at in 1..=100 {
            rig.device.flush().unwrap();
            rig.write(at, 1);
        }
    });
    assert!((durable / 100.0 - 0.0084).abs() < 0.0002, "{durable}");
}

#[test]
fn a_motor_stops_when_nothing_happens_and_its_time_is_counted() {
    let rig = rig(MIB, Disk::new(DiskOptions::new(MIB)));
    let motor = || rig.device.activity().motor;
    assert_eq!(motor(), Motor::default());
    rig.write(0, 1);
    rig.clock.pass(Duration::from_secs(9));
    rig.write(1, 1);
    assert_eq!(motor().starts, 1);
    rig.clock.pass(Duration::from_secs(1000));
    let on_s = motor().on_ns as f64 / S;
    assert!((on_s - (5.0 + 9.0 + 10.0)).abs() < 0.01, "{on_s}");
    rig.write(2, 1);
    assert_eq!(motor().starts, 2);
    let on_s = motor().on_ns as f64 / S;
    assert!((on_s - (24.0 + 5.0)).abs() < 0.01, "{on_s}");
}

#[test]
fn a_stick_writes_rows_at_its_rate_and_five_scattered_blocks_a_second() {
    let rig = rig(256 * MIB, Stick::new(StickOptions::default()));
    let row = rig.seconds(|rig| (0..256).for_each(|at| rig.write(at * MIB, MIB)));
    let rate = 256.0 * 1.048_576 / row;
    assert!((18.5..20.0).contains(&rate), "{rate} MB/s");
    let wear = rig.device.activity().wear;
    assert_eq!(wear, Wear { programmed: 256 * MIB, erased: 64, erased_most: 1 });
    let far = rig.seconds(|rig| scattered(256 * MIB, 200).into_iter().for_each(|at| rig.write(at, 1)));
    assert!((2.0..8.0).contains(&(200.0 / far)), "{} scattered writes a second", 200.0 / far);
    let copied = rig.device.activity().wear.programmed - wear.programmed;
    assert!(copied > 200 * 500, "{copied} pages for 200");
}

#[test]
fn a_stick_copies_nothing_that_was_discarded() {
    let full = rig(64 * MIB, Stick::new(StickOptions::default()));
    full.write(0, 64 * MIB);
    full.device.discard(0, 64 * MIB).unwrap();
    let before = full.device.activity().wear;
    for at in scattered(64 * MIB, 20) {
        full.write(at, 1);
    }
    let after = full.device.activity().wear;
    assert!(after.programmed - before.programmed < 100, "{before:?} {after:?}");
    assert!(after.erased > before.erased);
}

#[test]
fn pages_within_an_open_erase_block_go_on_where_it_ends() {
    let rig = rig(64 * MIB, Stick::new(StickOptions::default()));
    // Two rows side by side, as a log's two areas are.
    for at in 0..64 {
        rig.write(at * 16, 16);
        rig.write(32 * MIB + at, 1);
    }
    assert_eq!(rig.device.activity().wear, Wear { programmed: 64 * 17, erased: 2, erased_most: 1 });
    // The same block again is out of turn, and all of its erase block is copied.
    rig.write(0, 1);
    let wear = rig.device.activity().wear;
    assert_eq!((wear.erased, wear.erased_most), (3, 2));
}

#[test]
fn an_ssd_does_not_care_where() {
    let rig = rig(256 * MIB, Ssd::new(SsdOptions::default()));
    let row = rig.seconds(|rig| (0..1000).for_each(|at| rig.write(at, 1)));
    let far = rig.seconds(|rig| scattered(256 * MIB, 1000).into_iter().for_each(|at| rig.write(at, 1)));
    assert_eq!(row, far);
    assert_eq!(rig.device.activity().wear.programmed, 2000);
    assert_eq!(rig.device.activity().requests, 2000);
}

#[test]
fn real_time_is_what_two_threads_wait_for() {
    let pace: Arc<dyn Pace> = Arc::new(Real::new(20.0));
    let stick = || {
        Timed::new(Arc::new(MemoryDevice::new(64 * MIB)), Box::new(Stick::new(StickOptions::default())), pace.clone())
    };
    let devices = [stick(), stick()];
    let bytes = vec![1; (MIB * BLOCK) as usize];
    let before = pace.now_ns();
    std::thread::scope(|scope| {
        for device in &devices {
            scope.spawn(|| (0..8).for_each(|at| device.write(at * MIB, &[IoSlice::new(&bytes)]).unwrap()));
        }
    });
    let took_ns = pace.now_ns() - before;
    for device in &devices {
        // No more is taken back than the last wait that was too short for the scheduler.
        assert!(took_ns + 20 * 200_000 >= device.activity().busy_ns, "{took_ns} ns");
    }
}
