//! What a number of trials says about a probability.

/// A probability with its 95 % interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// Share of the trials.
    pub share: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Estimate {
    /// Of what happened in `count` of `trials` (at least 1): the interval of Clopper and Pearson.
    pub fn of(count: u64, trials: u64) -> Estimate {
        assert!(count <= trials && trials > 0, "{count} of {trials}");
        let low = if count == 0 { 0.0 } else { root(|p| tail(count, trials, p) - 0.025) };
        let high = if count == trials { 1.0 } else { root(|p| 0.025 - (1.0 - tail(count + 1, trials, p))) };
        Estimate { share: count as f64 / trials as f64, low, high }
    }

    /// For one flipped bit, from what was found with `flips` at once: 1 − (1 − P)^(1/k) for what flips cause.
    pub fn of_one(self, flips: u32) -> Estimate {
        self.map(|p| 1.0 - (1.0 - p).powf(1.0 / f64::from(flips)))
    }

    /// The same for what happens if none of them causes anything: P^(1/k).
    pub fn of_one_sound(self, flips: u32) -> Estimate {
        self.map(|p| p.powf(1.0 / f64::from(flips)))
    }

    fn map(self, with: impl Fn(f64) -> f64) -> Estimate {
        Estimate { share: with(self.share), low: with(self.low), high: with(self.high) }
    }
}

/// In percent.
impl std::fmt::Display for Estimate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [share, low, high] = [self.share, self.low, self.high].map(|p| p * 100.0);
        write!(f, "{share:.1} % [{low:.1}, {high:.1}]")
    }
}

/// Probability of at least `count` of `trials` if each has the probability `p`.
fn tail(count: u64, trials: u64, p: f64) -> f64 {
    let (n, mut term) = (trials as f64, (trials as f64 * (1.0 - p).ln()).exp());
    if p >= 1.0 {
        return 1.0;
    }
    let mut below = 0.0;
    for k in 0..count {
        below += term;
        term *= (n - k as f64) / (k as f64 + 1.0) * p / (1.0 - p);
    }
    (1.0 - below).clamp(0.0, 1.0)
}

/// Where a function that rises from below 0 to above crosses it, between 0 and 1.
fn root(rising: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if rising(middle) < 0.0 { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the intervals of the dissertation's table 3.6, which are of 100 trials.
    #[test]
    fn intervals_are_those_of_the_dissertation() {
        for (count, low, high) in [(0, 0, 3), (5, 1, 12), (9, 4, 17), (26, 17, 36), (69, 58, 78), (86, 77, 93)] {
            let Estimate { low: l, high: h, .. } = Estimate::of(count, 100);
            let off = |ours: f64, theirs: i32| (ours * 100.0 - f64::from(theirs)).abs();
            assert!(off(l, low) < 1.0 && off(h, high) < 1.0, "{count}: {}", Estimate::of(count, 100));
        }
        assert_eq!((Estimate::of(0, 7).low, Estimate::of(7, 7).high), (0.0, 1.0));
    }

    #[test]
    fn one_bit_of_sixteen() {
        // Table 3.6: varmail reads corrupt data in 9 % of the trials, which is 0.6 % for one bit.
        assert!((Estimate::of(9, 100).of_one(16).share * 100.0 - 0.6).abs() < 0.05);
        assert!((Estimate::of(86, 100).of_one_sound(16).share * 100.0 - 99.1).abs() < 0.05);
    }
}
