//! Where bits flip: memory and disks.
//!
//! Flips are independent of each other, as likely in one bit as in any other, and come one at a time. None of this is quite true;
//! `docs/reliability.md` says what follows.

use crate::BLOCK_BITS;
use crate::probability::{Probability, binomial_at_least, poisson_at_least};

/// Hours in which a rate of 1 FIT means one failure.
const FIT_HOURS: f64 = 1e9;
const SECONDS_PER_HOUR: f64 = 3600.0;
/// Bits in the Mbit of "FIT per Mbit", the one with which the published rates λ come out of the published FIT.
const MBIT: f64 = 1_048_576.0;

/// A figure that no memory or disk can have.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
// As `Debug` has it: numbers with many zeros come with an exponent.
#[error("{value:?} is out of range: from {least:?} to {most:?}")]
pub struct OutOfRange {
    /// What was given.
    pub value: f64,
    /// The smallest that is taken.
    pub least: f64,
    /// The largest that is taken.
    pub most: f64,
}

fn within(value: f64, least: f64, most: f64) -> Result<f64, OutOfRange> {
    if (least..=most).contains(&value) { Ok(value) } else { Err(OutOfRange { value, least, most }) }
}

/// Memory, by the rate λ of flips that reach the software.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Memory {
    flips_per_bit_s: f64,
}

/// z2fs §II-B.
const PUBLISHED_FIT: [(Memory, f64); 3] =
    [(Memory::ECC, 0.56), (Memory::NON_ECC, 25_000.0), (Memory::WORST, 167_066.0)];

impl Memory {
    /// λ_min, 0.56 FIT/Mbit: the best published, which stands for memory with ECC (z2fs §II-B).
    pub const ECC: Memory = Memory { flips_per_bit_s: 1.48e-19 };
    /// λ_mid, 25,000 FIT/Mbit: the lower end of what Schroeder et al. found in the field, which stands for memory
    /// without ECC (z2fs §II-B).
    pub const NON_ECC: Memory = Memory { flips_per_bit_s: 6.62e-15 };
    /// λ_max, 167,066 FIT/Mbit: the worst published (z2fs §II-B).
    pub const WORST: Memory = Memory { flips_per_bit_s: 4.42e-14 };
    /// What z2fs §III-C calls λ_max in one place. Its index is 13.7, where xor begins to be enough, not the 13.4 given there.
    pub const WORST_IN_SECTION_III: Memory = Memory { flips_per_bit_s: 1.99e-14 };

    /// Memory with so many failures in 10^9 hours per Mbit (of 2^20 bits), each of which is a flipped bit. From 10^-12 to 10^12.
    pub fn of_fit(fit_per_mbit: f64) -> Result<Memory, OutOfRange> {
        let fit_per_mbit = within(fit_per_mbit, 1e-12, 1e12)?;
        Ok(Memory { flips_per_bit_s: fit_per_mbit / (FIT_HOURS * SECONDS_PER_HOUR * MBIT) })
    }

    /// Memory with this reliability index, −log10 λ. From 6 to 30.
    pub fn of_index(index: f64) -> Result<Memory, OutOfRange> {
        Ok(Memory { flips_per_bit_s: 10f64.powf(-within(index, 6.0, 30.0)?) })
    }

    /// The rate λ, in flips per bit and second.
    pub fn flips_per_bit_s(self) -> f64 {
        self.flips_per_bit_s
    }

    /// The rate in failures in 10^9 hours per Mbit; of the paper's samples, whose λ is rounded, as it is published.
    pub fn fit_per_mbit(self) -> f64 {
        let published = PUBLISHED_FIT.iter().find(|(memory, _)| *memory == self);
        published.map_or(self.flips_per_bit_s * FIT_HOURS * SECONDS_PER_HOUR * MBIT, |(_, fit)| *fit)
    }

    /// The papers' reliability index, −log10 λ.
    pub fn index(self) -> f64 {
        -self.flips_per_bit_s.log10()
    }

    /// That at least `flips` bits of a block flip in `residency_s` seconds (0 to infinity).
    pub fn flips_at_least(self, flips: u32, residency_s: f64) -> Probability {
        poisson_at_least(flips, f64::from(BLOCK_BITS) * self.flips_per_bit_s * residency_s)
    }
}

/// A disk, by its undetected bit error rate: how many of the bits read are wrong without the disk saying so.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Disk {
    uber: f64,
}

impl Disk {
    /// 10^-10, the worst that z2fs §II-B considers.
    pub const WORST: Disk = Disk { uber: 1e-10 };
    /// 10^-12, what z2fs §II-B takes a current disk to have, after Rozier et al.
    pub const REGULAR: Disk = Disk { uber: 1e-12 };
    /// 10^-20, the best that z2fs §II-B considers.
    pub const BEST: Disk = Disk { uber: 1e-20 };

    /// A disk with this undetected bit error rate, from 10^-30 to 0.1.
    pub fn of_uber(uber: f64) -> Result<Disk, OutOfRange> {
        Ok(Disk { uber: within(uber, 1e-30, 0.1)? })
    }

    /// A disk with this reliability index, −log10 of its rate. From 1 to 30.
    pub fn of_index(index: f64) -> Result<Disk, OutOfRange> {
        Ok(Disk { uber: 10f64.powf(-within(index, 1.0, 30.0)?) })
    }

    /// The undetected bit error rate.
    pub fn uber(self) -> f64 {
        self.uber
    }

    /// The papers' reliability index, −log10 of the rate.
    pub fn index(self) -> f64 {
        -self.uber.log10()
    }

    /// That at least `flips` bits of a block come back wrong.
    pub fn flips_at_least(self, flips: u32) -> Probability {
        binomial_at_least(flips, BLOCK_BITS, self.uber)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_rates_are_those_of_the_published_fit() {
        // z2fs §II-B, to the three digits that it gives.
        for (memory, fit) in PUBLISHED_FIT {
            let ratio = Memory::of_fit(fit).unwrap().flips_per_bit_s / memory.flips_per_bit_s;
            assert!((ratio - 1.0).abs() < 0.005, "{fit}: {ratio}");
            assert!((memory.fit_per_mbit() / fit - 1.0).abs() < 0.005);
        }
    }

    #[test]
    fn indices_are_the_published_ones() {
        for (memory, index) in [(Memory::ECC, 18.8), (Memory::NON_ECC, 14.2), (Memory::WORST, 13.4)] {
            assert!((memory.index() - index).abs() <= 0.05, "{}", memory.index());
        }
        // What the section says of it does not fit, as it would have to be 13.4.
        assert!((Memory::WORST_IN_SECTION_III.index() - 13.7).abs() < 0.05);
        assert!((Disk::of_index(12.0).unwrap().uber() / Disk::REGULAR.uber() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn what_no_device_has_is_refused() {
        for value in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e13] {
            assert!(Memory::of_fit(value).is_err(), "{value}");
        }
        for value in [f64::NAN, -1e-12, 0.0, 1.0, 0.11] {
            assert!(Disk::of_uber(value).is_err(), "{value}");
        }
        let told = Memory::of_fit(1e300).unwrap_err().to_string();
        assert_eq!(told, "1e300 is out of range: from 1e-12 to 1000000000000.0");
        assert!(Memory::of_index(31.0).is_err() && Disk::of_index(0.5).is_err());
        assert!(Disk::of_uber(0.1).unwrap().flips_at_least(6) <= Probability::ONE);
    }
}
