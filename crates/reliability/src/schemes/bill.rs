//! What a scheme costs for 1 TB over its life: thesis §6.4. In euros of 2010, which the thesis has, or any other money.

use super::{Devices, Scheme, failure_within};

/// What is paid, and for how long devices run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prices {
    /// A disk of 1 TB.
    pub disk: f64,
    /// A disk of 500 GB, of which RAID 5 takes three.
    pub small_disk: f64,
    /// A USB stick for a log.
    pub stick: f64,
    /// An SSD for a log.
    pub ssd: f64,
    /// 1 kWh.
    pub kwh: f64,
    /// Hours that devices are on in their life.
    pub on_h: f64,
    /// Hours that the disk with backups is on.
    pub backup_on_h: f64,
}

impl Default for Prices {
    /// Table 6.16 of the thesis.
    fn default() -> Prices {
        Prices { disk: 50.0, small_disk: 35.0, stick: 25.0, ssd: 150.0, kwh: 0.20, on_h: 15_000.0, backup_on_h: 1500.0 }
    }
}

const DISK_W: f64 = 6.0;
const SSD_W: f64 = 1.5;
const STICK_W: f64 = 0.2;

/// What a scheme costs.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Bill {
    /// All devices.
    pub initial: f64,
    /// Those that are expected to fail.
    pub replacement: f64,
    /// Electricity.
    pub energy: f64,
}

impl Bill {
    /// That of a scheme.
    pub fn of(scheme: Scheme, devices: &Devices, prices: &Prices) -> Bill {
        let mut bill = Bill::default();
        let mut add = |count: f64, price: f64, watts: f64, mttf_h: f64, on_h: f64| {
            bill.initial += count * price;
            bill.replacement += count * price * failure_within(on_h, mttf_h);
            bill.energy += count * watts * on_h / 1000.0 * prices.kwh;
        };
        let mut disks = |count, price, on_h| add(count, price, DISK_W, devices.disk_mttf_h, on_h);
        match scheme {
            Scheme::Disk => disks(1.0, prices.disk, prices.on_h),
            Scheme::Raid1 => disks(2.0, prices.disk, prices.on_h),
            Scheme::Raid5 => disks(3.0, prices.small_disk, prices.on_h),
            Scheme::Backup | Scheme::FlashlogStick | Scheme::FlashlogSsd => {
                disks(1.0, prices.disk, prices.on_h);
                disks(1.0, prices.disk, prices.backup_on_h);
            }
        }
        match scheme {
            Scheme::FlashlogStick => add(1.0, prices.stick, STICK_W, devices.stick_mttf_h, prices.on_h),
            Scheme::FlashlogSsd => add(1.0, prices.ssd, SSD_W, devices.ssd_mttf_h, prices.on_h),
            Scheme::Disk | Scheme::Raid1 | Scheme::Raid5 | Scheme::Backup => {}
        }
        bill
    }

    /// All of it.
    pub fn total(self) -> f64 {
        self.initial + self.replacement + self.energy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_those_of_the_thesis() {
        // Table 6.17: initial, replacement, energy, total.
        let told = [
            (Scheme::Disk, [50.00, 2.44, 18.00, 70.44]),
            (Scheme::Raid1, [100.00, 4.88, 36.00, 140.88]),
            (Scheme::Raid5, [105.00, 5.12, 54.00, 164.12]),
            (Scheme::Backup, [100.00, 2.69, 19.80, 122.49]),
            (Scheme::FlashlogStick, [125.00, 9.17, 20.40, 154.57]),
            (Scheme::FlashlogSsd, [250.00, 3.82, 24.30, 278.12]),
        ];
        assert_eq!(told.map(|(scheme, _)| scheme), Scheme::ALL);
        for (scheme, told) in told {
            let bill = Bill::of(scheme, &Devices::default(), &Prices::default());
            let got = [bill.initial, bill.replacement, bill.energy, bill.total()];
            // It rounds failure rates before it multiplies: 0.75 % of 150 are not 0.747 %.
            let is_same = got.iter().zip(told).all(|(got, told)| (got - told).abs() < 0.015);
            assert!(is_same, "{}: {got:?}, the thesis has {told:?}", scheme.name());
        }
    }
}
