//! What pairs of measurements say: the median of their ratios and where the true median lies.

/// Probability that the interval misses the true median: 1 in 20.
const MISSES: f64 = 0.05;

/// The median of paired ratios with its 95 % interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ratio {
    /// The middle ratio, or the mean of the two middle ones.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Number of pairs.
    pub pairs: usize,
}

impl Ratio {
    /// Of `base / other`, pair by pair: below 1 if `other` needs more. `None` for less than one pair.
    ///
    /// The interval is that of the sign test: two order statistics of the ratios, which hold the true median in at least 95 % of all
    /// cases whatever the distribution (Conover, *Practical Nonparametric Statistics*, section 3.2). Fewer than six pairs cannot say
    /// as much: then it is all that was seen.
    pub fn of(base: &[f64], other: &[f64]) -> Option<Ratio> {
        let mut ratios: Vec<f64> =
            base.iter().zip(other).filter(|(_, other)| **other > 0.0).map(|(base, other)| base / other).collect();
        ratios.sort_by(f64::total_cmp);
        let pairs = ratios.len();
        let middle = pairs / 2;
        let median = match pairs {
            0 => return None,
            odd if odd % 2 == 1 => ratios[middle],
            _ => f64::midpoint(ratios[middle - 1], ratios[middle]),
        };
        let rank = rank(pairs);
        Some(Ratio { median, low: ratios[rank], high: ratios[pairs - 1 - rank], pairs })
    }
}

/// How many of `pairs` sorted ratios lie outside the interval at each end: the most for which the two tails of the binomial
/// distribution with p = 1/2 stay within [`MISSES`].
fn rank(pairs: usize) -> usize {
    // In logarithms: 2^-pairs may be too small for a number.
    let mut log_term = -(pairs as f64) * std::f64::consts::LN_2;
    let mut tail = 0.0;
    for below in 0..pairs {
        tail += log_term.exp();
        if 2.0 * tail > MISSES {
            return below.saturating_sub(1);
        }
        log_term += ((pairs - below) as f64 / (below + 1) as f64).ln();
    }
    0
}

/// Whether a ratio reaches a goal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The whole interval does.
    Met,
    /// The median does, but not the whole interval.
    MetByMedian,
    /// The median does not, but a part of the interval.
    MissedByMedian,
    /// No part of the interval does.
    Missed,
}

impl Verdict {
    /// Of a ratio that is to be at least `goal`.
    pub fn of(ratio: &Ratio, goal: f64) -> Verdict {
        if ratio.low >= goal {
            Verdict::Met
        } else if ratio.median >= goal {
            Verdict::MetByMedian
        } else if ratio.high >= goal {
            Verdict::MissedByMedian
        } else {
            Verdict::Missed
        }
    }

    /// As in the table.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::MetByMedian => "met by the median",
            Verdict::MissedByMedian => "missed by the median",
            Verdict::Missed => "**missed**",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Generator;

    #[test]
    fn ranks_are_those_of_the_tables() {
        // Conover, table A3 (p = 0.5), as the numbers outside at each end.
        for (pairs, outside) in
            [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (10, 1), (15, 3), (20, 5), (25, 7), (30, 9), (100, 39)]
        {
            assert_eq!(rank(pairs), outside, "{pairs} pairs");
        }
        // 2500 - 1.96 * sqrt(5000) / 2 by the normal distribution.
        assert!((2428..2433).contains(&rank(5000)), "{}", rank(5000));
    }

    #[test]
    fn a_slow_phase_of_the_machine_hits_both_of_a_pair() {
        let base: Vec<f64> = (1..=30).map(|round| f64::from(round % 7 + 1)).collect();
        let other: Vec<f64> = base.iter().map(|time| time * 1.25).collect();
        let ratio = Ratio::of(&base, &other).expect("thirty pairs");
        assert_eq!(ratio, Ratio { median: 0.8, low: 0.8, high: 0.8, pairs: 30 });
        assert_eq!(Ratio::of(&[], &[]), None);
        assert_eq!(Ratio::of(&[1.0], &[0.0]), None);
    }

    /// 2,000 times 30 pairs with noise of ±20 %: the interval has the true ratio in 95 % of the cases, and tells 0.9 from 1.
    #[test]
    fn the_interval_covers_the_truth() {
        let mut generator = Generator::new(&[4]);
        let mut noise = || 1.0 + (generator.below(4001) as f64 / 1000.0 - 2.0) / 10.0;
        let (mut covered, mut told) = (0, 0);
        for _ in 0..2000 {
            let base: Vec<f64> = (0..30).map(|_| 0.9 * noise()).collect();
            let other: Vec<f64> = (0..30).map(|_| noise()).collect();
            let ratio = Ratio::of(&base, &other).expect("thirty pairs");
            covered += u32::from(ratio.low <= 0.9 && 0.9 <= ratio.high);
            told += u32::from(ratio.high < 1.0);
        }
        assert!((1880..1975).contains(&covered), "{covered} of 2000");
        assert!(told > 1000, "{told} of 2000");
    }

    #[test]
    fn verdicts_go_by_the_interval() {
        let ratio = Ratio { median: 0.95, low: 0.93, high: 0.97, pairs: 30 };
        let verdicts = [0.92, 0.94, 0.96, 0.98].map(|goal| Verdict::of(&ratio, goal));
        assert_eq!(verdicts, [Verdict::Met, Verdict::MetByMedian, Verdict::MissedByMedian, Verdict::Missed]);
    }
}
