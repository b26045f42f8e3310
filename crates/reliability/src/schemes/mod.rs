//! Whole devices that fail: how long redundancy schemes live, and what they cost.
//!
//! After E. Hoh's thesis on Flashlog (Karlsruhe 2010), sections 6.3.2 and 6.4, whose prices and failure rates are the defaults. Failures are
//! independent and come at a constant rate; a failed device is replaced and filled again within its time to repair, which is short beside the time to
//! failure. Neither is so in the field ("Disk failures in the real world", FAST 2007): good for comparing schemes, not for promises.
//!
//! | file | job |
//! |---|---|
//! | `bill` | what a scheme costs |
//! | `bars` | the thesis's figures 6.14, 6.15 and 6.18 as SVG |
//! | `document` | the tables of `docs/flashlog-model.md` |

mod bars;
mod bill;
mod document;

pub use bars::{Bars, draw_bars};
pub use bill::{Bill, Prices};
pub use document::renewed_schemes;

/// Devices as they are bought: hours until the mean one fails, and until one that failed has been replaced and filled.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Devices {
    /// Mean time to failure of a disk, in hours.
    pub disk_mttf_h: f64,
    /// That of a USB stick, whose plug fails rather than its flash.
    pub stick_mttf_h: f64,
    /// That of an SSD.
    pub ssd_mttf_h: f64,
    /// Mean time to repair, of each of them, in hours: the thesis does not say what it takes; this is until after a weekend.
    pub repair_h: f64,
    /// Disks whose capacity is to be had.
    pub disks: f64,
}

impl Default for Devices {
    fn default() -> Devices {
        Devices { disk_mttf_h: 300_000.0, stick_mttf_h: 50_000.0, ssd_mttf_h: 2_000_000.0, repair_h: 72.0, disks: 1.0 }
    }
}

/// How data is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scheme {
    /// On disks, once.
    Disk,
    /// Each disk twice.
    Raid1,
    /// One disk more than it takes.
    Raid5,
    /// A second disk gets a copy now and then.
    Backup,
    /// The same, and a stick that has what was written since.
    FlashlogStick,
    /// The same with an SSD for a log.
    FlashlogSsd,
}

impl Scheme {
    /// All, as the thesis has them.
    pub const ALL: [Scheme; 6] =
        [Scheme::Disk, Scheme::Raid1, Scheme::Raid5, Scheme::Backup, Scheme::FlashlogStick, Scheme::FlashlogSsd];

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Scheme::Disk => "disk",
            Scheme::Raid1 => "RAID 1",
            Scheme::Raid5 => "RAID 5",
            Scheme::Backup => "backup",
            Scheme::FlashlogStick => "Flashlog (stick)",
            Scheme::FlashlogSsd => "Flashlog (SSD)",
        }
    }

    /// Hours until the mean installation loses what was written last: as the thesis has it, §6.3.2, which does not count that a backup may fail, too.
    pub fn mttf_h(self, devices: &Devices) -> f64 {
        let Devices { disk_mttf_h: disk, repair_h, disks, .. } = *devices;
        match self {
            Scheme::Disk | Scheme::Backup => disk / disks,
            Scheme::Raid1 => disk * disk / (2.0 * disks * repair_h),
            Scheme::Raid5 => disk * disk / (disks * (disks + 1.0) * repair_h),
            // Either fails first, and the other one until it is replaced.
            Scheme::FlashlogStick => disk * devices.stick_mttf_h / (2.0 * disks * repair_h),
            Scheme::FlashlogSsd => disk * devices.ssd_mttf_h / (2.0 * disks * repair_h),
        }
    }

    /// Hours until the mean installation loses everything. (Not in the thesis.) With a backup that takes both disks: it has all but what came last; the log
    /// alone has only that.
    pub fn mttf_of_everything_h(self, devices: &Devices) -> f64 {
        match self {
            Scheme::Disk | Scheme::Raid1 | Scheme::Raid5 => self.mttf_h(devices),
            Scheme::Backup | Scheme::FlashlogStick | Scheme::FlashlogSsd => Scheme::Raid1.mttf_h(devices),
        }
    }
}

/// How probable a failure is within so many hours.
pub fn failure_within(hours: f64, mttf_h: f64) -> f64 {
    -(-hours / mttf_h).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_pcg::Pcg64;

    /// Hours until `lost` says so of the devices that are being replaced, in one history.
    fn history(random: &mut Pcg64, mttfs: &[f64], repair_h: f64, lost: impl Fn(&[bool]) -> bool) -> f64 {
        let fails_in = |random: &mut Pcg64, mttf: f64| -mttf * (1.0 - random.random::<f64>()).ln();
        let mut fails_at: Vec<f64> = mttfs.iter().map(|mttf| fails_in(random, *mttf)).collect();
        let mut back_at = vec![0.0; mttfs.len()];
        loop {
            let next = (0..mttfs.len()).min_by(|a, b| fails_at[*a].total_cmp(&fails_at[*b])).unwrap();
            let now = fails_at[next];
            back_at[next] = now + repair_h;
            fails_at[next] = back_at[next] + fails_in(random, mttfs[next]);
            let failed: Vec<bool> = back_at.iter().map(|back| *back > now).collect();
            if lost(&failed) {
                return now;
            }
        }
    }

    /// The formulas, against devices that fail and are replaced.
    #[test]
    fn lives_are_as_long_as_those_of_simulated_devices() {
        let mut random = Pcg64::seed_from_u64(15_000);
        let devices =
            Devices { disk_mttf_h: 2000.0, stick_mttf_h: 700.0, ssd_mttf_h: 9000.0, repair_h: 4.0, disks: 2.0 };
        let (disk, stick, ssd) = (devices.disk_mttf_h, devices.stick_mttf_h, devices.ssd_mttf_h);
        type Lost = fn(&[bool]) -> bool;
        let two: Lost = |failed| failed.iter().filter(|failed| **failed).count() > 1;
        let one_disk = Devices { disks: 1.0, ..devices };
        let cases: [(Scheme, &Devices, Vec<f64>, Lost); 6] = [
            (Scheme::Disk, &devices, vec![disk; 2], |failed| failed.contains(&true)),
            (Scheme::Raid1, &devices, vec![disk; 4], |failed| failed.as_chunks::<2>().0.contains(&[true, true])),
            (Scheme::Raid5, &devices, vec![disk; 3], two),
            (Scheme::Backup, &one_disk, vec![disk; 2], |failed| failed[0]),
            (Scheme::FlashlogStick, &one_disk, vec![disk, stick], two),
            (Scheme::FlashlogSsd, &one_disk, vec![disk, ssd], two),
        ];
        for (scheme, devices, mttfs, lost) in cases {
            let runs = 6000;
            let mean =
                (0..runs).map(|_| history(&mut random, &mttfs, devices.repair_h, lost)).sum::<f64>() / runs as f64;
            let told = scheme.mttf_h(devices);
            // Six standard errors of an exponential mean, and what the formulas leave out.
            assert!((mean / told - 1.0).abs() < 0.09, "{}: {mean} simulated, {told} by the formula", scheme.name());
        }
        let both = |failed: &[bool]| failed[0] && failed[2];
        let mttfs = [disk, stick, disk];
        let mean = (0..6000).map(|_| history(&mut random, &mttfs, devices.repair_h, both)).sum::<f64>() / 6000.0;
        let told = Scheme::FlashlogStick.mttf_of_everything_h(&one_disk);
        assert!((mean / told - 1.0).abs() < 0.09, "{mean} simulated, {told} by the formula");
    }

    #[test]
    fn a_flashlog_with_an_ssd_outlives_raid_1_and_that_of_a_stick_does_not() {
        let devices = Devices::default();
        let life = |scheme: Scheme| scheme.mttf_h(&devices);
        // The thesis's formulas with its times to failure.
        assert_eq!(life(Scheme::Raid1), 300_000.0 * 300_000.0 / 144.0);
        assert_eq!(life(Scheme::FlashlogStick), 300_000.0 * 50_000.0 / 144.0);
        assert!(life(Scheme::FlashlogSsd) > life(Scheme::Raid1) && life(Scheme::Raid1) > life(Scheme::FlashlogStick));
    }

    #[test]
    fn failures_within_a_time() {
        // Table 6.16: power-on hours, and the rates that follow.
        for (mttf_h, told) in [(300_000.0, 0.0488), (2_000_000.0, 0.0075), (50_000.0, 0.2592)] {
            assert!((failure_within(15_000.0, mttf_h) - told).abs() < 5e-5, "{mttf_h}");
        }
        assert_eq!(failure_within(0.0, 1.0), 0.0);
        // Where 1 − e^−x would have lost all digits.
        assert!((failure_within(1.0, 1e18) / 1e-18 - 1.0).abs() < 1e-12);
    }
}
