//! What one run of a workload measured, and what several runs say together.

use std::time::Duration;

/// How a rate is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// 2^20 bytes per second.
    MibPerSecond,
    /// Operations (requests, files) per second.
    PerSecond,
}

impl Unit {
    /// As printed in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::MibPerSecond => "MiB/s",
            Self::PerSecond => "op/s",
        }
    }
}

/// One run of one workload on one file system.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Requests made: reads, writes, files created.
    pub requests: u64,
    /// Bytes moved by them; 0 where only operations count.
    pub bytes: u64,
    /// Wall clock time, the final fsync included.
    pub wall: Duration,
    /// CPU time of this process, in user space and in the kernel.
    pub application_cpu: Duration,
    /// CPU time of the file system's daemon, if it has one.
    pub daemon_cpu: Option<Duration>,
}

impl Sample {
    /// The rate in the given unit.
    pub fn rate(&self, unit: Unit) -> f64 {
        let amount = match unit {
            Unit::MibPerSecond => self.bytes as f64 / f64::from(1 << 20),
            Unit::PerSecond => self.requests as f64,
        };
        amount / self.wall.as_secs_f64().max(1e-9)
    }

    /// Microseconds per request of a part of the time.
    pub fn micros_per_request(&self, part: Duration) -> f64 {
        part.as_secs_f64() * 1e6 / self.requests.max(1) as f64
    }
}

/// Median and extremes of several values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The middle value, or the mean of the two middle ones.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

impl Summary {
    /// `None` for no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) };
        Some(Self { median, min, max })
    }

    /// Median of the ratios a/b within each round: rounds are interleaved, so a slow phase of the machine hits both.
    pub fn of_ratios(a: &[f64], b: &[f64]) -> Option<Self> {
        Self::of(a.iter().zip(b).filter(|(_, b)| **b > 0.0).map(|(a, b)| a / b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(Summary::of([3.0, 1.0, 2.0]), Some(Summary { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Summary::of([4.0, 1.0, 2.0, 3.0]).map(|s| s.median), Some(2.5));
        assert_eq!(Summary::of([]), None);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The machine was three times slower in the second round; the ratio does not see it.
        let ratios = Summary::of_ratios(&[30.0, 10.0, 33.0], &[60.0, 20.0, 66.0]);
        assert_eq!(ratios, Some(Summary { median: 0.5, min: 0.5, max: 0.5 }));
    }

    #[test]
    fn rates() {
        let sample = Sample {
            requests: 512,
            bytes: 2 << 20,
            wall: Duration::from_millis(500),
            application_cpu: Duration::ZERO,
            daemon_cpu: None,
        };
        assert!((sample.rate(Unit::MibPerSecond) - 4.0).abs() < 1e-9);
        assert!((sample.rate(Unit::PerSecond) - 1024.0).abs() < 1e-9);
        assert!((sample.micros_per_request(sample.wall) - 976.5625).abs() < 1e-6);
    }
}
