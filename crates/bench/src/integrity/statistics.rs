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

/// How many times as much one addition to a base costs as another, with the 95 % interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Multiple {
    /// The ratio of the medians of both additions; infinite if the lesser one's is nothing or less.
    pub middle: f64,
    /// Lower end of the interval, 0 or more.
    pub low: f64,
    /// Upper end; infinite if the lesser addition may be nothing.
    pub high: f64,
}

impl Multiple {
    /// Of `more` over `less`, both beyond `base`, round by round. `None` without rounds, or if no multiple fits.
    ///
    /// A multiple *k* is in the interval if the sign test does not refuse that `more` beyond `base` and *k* times `less` beyond `base` have
    /// the same median (Fieller's method, with that test). A ratio of each round would say nothing where `less` is near 0.
    pub fn of(base: &[f64], less: &[f64], more: &[f64]) -> Option<Multiple> {
        let beyond = |costs: &[f64]| -> Vec<f64> { costs.iter().zip(base).map(|(cost, base)| cost - base).collect() };
        let (less, more) = (beyond(less), beyond(more));
        let rounds = less.len().min(more.len());
        if rounds == 0 {
            return None;
        }
        let most = rounds - 1 - rank(rounds);
        let differences = |k: f64| less.iter().zip(&more).map(move |(less, more)| more - k * less);
        let fits = |k: &f64| {
            let (below, above) = differences(*k).fold((0, 0), |(below, above), difference| {
                // Where the two meet, a round is on neither side.
                let is_level = difference.abs() <= 1e-9 * (1.0 + k.abs());
                (below + usize::from(!is_level && difference < 0.0), above + usize::from(!is_level && difference > 0.0))
            });
            below <= most && above <= most
        };
        // Sides change at these only; the last is beyond all of them.
        let mut ends: Vec<f64> = less.iter().zip(&more).map(|(less, more)| more / less).collect();
        ends.retain(|end| end.is_finite() && *end > 0.0);
        ends.sort_by(f64::total_cmp);
        let beyond_all = ends.last().map_or(1.0, |last| 2.0 * last + 1.0);
        let low = std::iter::once(0.0).chain(ends.iter().copied()).chain([beyond_all]).find(fits)?;
        let high = if fits(&beyond_all) { f64::INFINITY } else { ends.iter().rev().copied().find(fits).unwrap_or(low) };
        let (less, more) = (middle_of(less), middle_of(more));
        let middle = if less > 0.0 { more / less } else { f64::INFINITY };
        Some(Multiple { middle, low, high })
    }
}

/// The middle one of an odd number of differences, or the upper one of the two in the middle.
fn middle_of(mut differences: Vec<f64>) -> f64 {
    differences.sort_by(f64::total_cmp);
    differences[differences.len() / 2]
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

    /// 1,000 times 31 rounds, in which the machine's noise is as large as the lesser addition: the interval has the true multiple.
    #[test]
    fn the_interval_of_a_multiple_covers_the_truth() {
        let mut generator = Generator::new(&[5]);
        let mut noise = || generator.below(2001) as f64 / 1000.0 - 1.0;
        let (mut covered, mut told) = (0, 0);
        for _ in 0..1000 {
            let base: Vec<f64> = (0..31).map(|_| 90.0 + noise()).collect();
            let [less, more]: [Vec<f64>; 2] =
                [1.0, 8.0].map(|beyond| base.iter().map(|base| base + beyond + noise()).collect());
            let multiple = Multiple::of(&base, &less, &more).expect("31 rounds");
            covered += u32::from(multiple.low <= 8.0 && 8.0 <= multiple.high);
            told += u32::from(multiple.low > 4.0);
        }
        assert!(covered > 930, "{covered} of 1000");
        assert!(told > 900, "{told} of 1000");
    }

    #[test]
    fn a_multiple_of_nothing_has_no_upper_end() {
        let base = vec![90.0; 31];
        let less: Vec<f64> = (0..31).map(|round| 90.0 + f64::from(round % 3) - 1.0).collect();
        let multiple = Multiple::of(&base, &less, &[95.0; 31]).expect("31 rounds");
        assert_eq!((multiple.middle, multiple.high), (f64::INFINITY, f64::INFINITY));
        assert!(multiple.low >= 5.0, "{multiple:?}");
        let exact = Multiple::of(&base, &[91.0; 31], &[100.0; 31]).expect("31 rounds");
        assert_eq!(exact, Multiple { middle: 10.0, low: 10.0, high: 10.0 });
        assert_eq!(Multiple::of(&[], &[], &[]), None);
    }

    #[test]
    fn verdicts_go_by_the_interval() {
        let ratio = Ratio { median: 0.95, low: 0.93, high: 0.97, pairs: 30 };
        let verdicts = [0.92, 0.94, 0.96, 0.98].map(|goal| Verdict::of(&ratio, goal));
        assert_eq!(verdicts, [Verdict::Met, Verdict::MetByMedian, Verdict::MissedByMedian, Verdict::Missed]);
    }
}
