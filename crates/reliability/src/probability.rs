//! Probabilities as logarithms, and the tails of the two distributions that count flips.
//!
//! Invariant: the logarithm is never positive and never NaN; minus infinity is impossible.

use std::cmp::Ordering;

/// A probability from 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Probability {
    ln: f64,
}

impl Probability {
    /// Impossible.
    pub const ZERO: Probability = Probability { ln: f64::NEG_INFINITY };
    /// Certain.
    pub const ONE: Probability = Probability { ln: 0.0 };

    /// A probability given as a number; what lies outside of 0 to 1 is moved to its end.
    pub fn new(value: f64) -> Probability {
        Probability::from_ln(value.max(0.0).ln())
    }

    fn from_ln(ln: f64) -> Probability {
        debug_assert!(!ln.is_nan());
        // Rounding may have brought the sum of a whole distribution above 1.
        Probability { ln: ln.min(0.0) }
    }

    /// As a number; 0 where it is below the smallest `f64`.
    pub fn value(self) -> f64 {
        self.ln.exp()
    }

    /// −log10: 0 is certain, infinity impossible.
    pub fn score(self) -> f64 {
        // Not -0.
        0.0 - self.ln / std::f64::consts::LN_10
    }

    /// Both of two independent events.
    pub fn and(self, other: Probability) -> Probability {
        Probability::from_ln(self.ln + other.ln)
    }

    /// One of two events, at most: their sum.
    pub fn plus(self, other: Probability) -> Probability {
        let (large, small) = if self.ln >= other.ln { (self.ln, other.ln) } else { (other.ln, self.ln) };
        if small == f64::NEG_INFINITY {
            return Probability { ln: large };
        }
        Probability::from_ln(large + (small - large).exp().ln_1p())
    }

    /// The smaller one.
    pub fn min(self, other: Probability) -> Probability {
        Probability { ln: self.ln.min(other.ln) }
    }
}

impl PartialOrd for Probability {
    fn partial_cmp(&self, other: &Probability) -> Option<Ordering> {
        self.ln.partial_cmp(&other.ln)
    }
}

/// At least `least` events, where `mean` are expected, by the Poisson distribution.
pub(crate) fn poisson_at_least(least: u32, mean: f64) -> Probability {
    debug_assert!(mean >= 0.0);
    let n = f64::from(least);
    if least == 0 || mean == f64::INFINITY {
        return Probability::ONE;
    }
    let ln_of = |count: u32| f64::from(count) * mean.ln() - mean - ln_factorial(count);
    if mean > n + 1.0 {
        return at_least_by_complement((0..least).map(ln_of));
    }
    Probability::from_ln(ln_of(least) + ln_of_series(|step| mean / (n + step)))
}

/// At least `least` events in `trials`, each with the probability `p`, by the binomial distribution.
pub(crate) fn binomial_at_least(least: u32, trials: u32, p: f64) -> Probability {
    debug_assert!((0.0..1.0).contains(&p) && least <= trials);
    if least == 0 {
        return Probability::ONE;
    }
    let (n, all) = (f64::from(least), f64::from(trials));
    let ln_of = |count: u32| {
        let chosen: f64 = (0..count).map(|i| (f64::from(trials - i) / f64::from(i + 1)).ln()).sum();
        chosen + f64::from(count) * p.ln() + f64::from(trials - count) * (-p).ln_1p()
    };
    if all * p > n + 1.0 {
        return at_least_by_complement((0..least).map(ln_of));
    }
    let odds = p / (1.0 - p);
    Probability::from_ln(ln_of(least) + ln_of_series(|step| (all - n - step + 1.0) / (n + step) * odds))
}

/// Where more than `least` events are expected, that there are fewer is not so probable that the difference would lose digits.
fn at_least_by_complement(ln_of_fewer: impl Iterator<Item = f64>) -> Probability {
    let fewer: f64 = ln_of_fewer.map(f64::exp).sum();
    Probability::from_ln((-fewer.min(1.0)).ln_1p())
}

/// ln(1 + r(1) + r(1) r(2) + …) for ratios that fall and begin below about 1.
fn ln_of_series(ratio: impl Fn(f64) -> f64) -> f64 {
    let (mut sum, mut term, mut step) = (1.0f64, 1.0f64, 1.0f64);
    loop {
        term *= ratio(step);
        if term <= sum * f64::EPSILON / 4.0 {
            return sum.ln();
        }
        sum += term;
        step += 1.0;
    }
}

fn ln_factorial(n: u32) -> f64 {
    (2..=n).map(|i| f64::from(i).ln()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(left: f64, right: f64) -> bool {
        (left - right).abs() <= 1e-12 * right.abs()
    }

    #[test]
    fn tails_are_those_of_the_textbook() {
        // 1 − e^-x and 1 − (1 − p)^b, where these can be computed without losing digits.
        for mean in [1e-18, 1e-9, 0.3, 1.9, 2.1, 40.0] {
            assert!(near(poisson_at_least(1, mean).value(), -(-mean).exp_m1()), "{mean}");
            let p = mean / 32768.0;
            let one = -(32768.0 * (-p).ln_1p()).exp_m1();
            assert!(near(binomial_at_least(1, 32768, p).value(), one), "{p}");
        }
        // Exact by hand: P(X ≥ 2), X ~ Bin(3, 1/2), is 1/2; P(X ≥ 3) is 1/8.
        assert!(near(binomial_at_least(2, 3, 0.5).value(), 0.5));
        assert!(near(binomial_at_least(3, 3, 0.5).value(), 0.125));
        // 1 − e^-2 (1 + 2).
        assert!(near(poisson_at_least(2, 2.0).value(), 1.0 - (-2f64).exp() * 3.0));
        assert_eq!(poisson_at_least(0, 0.0), Probability::ONE);
        assert_eq!(poisson_at_least(6, 0.0), Probability::ZERO);
        assert_eq!(poisson_at_least(6, f64::INFINITY), Probability::ONE);
    }

    #[test]
    fn the_two_ways_to_a_tail_meet() {
        for least in 1..=6 {
            let middle = f64::from(least) + 1.0;
            let (below, above) = (poisson_at_least(least, middle), poisson_at_least(least, middle * (1.0 + 1e-14)));
            assert!((below.value() - above.value()).abs() < 1e-12, "{least}");
            let p = middle / 32768.0;
            let (below, above) =
                (binomial_at_least(least, 32768, p), binomial_at_least(least, 32768, p * (1.0 + 1e-14)));
            assert!((below.value() - above.value()).abs() < 1e-12, "{least}");
        }
    }

    #[test]
    fn what_an_f64_cannot_hold_keeps_its_digits() {
        // (10^-70)^6 / 720
        let score = poisson_at_least(6, 1e-70).score();
        assert!(near(score, 420.0 + 720f64.log10()), "{score}");
        assert_eq!(poisson_at_least(6, 1e-70).value(), 0.0);
    }

    #[test]
    fn sums_and_products() {
        let (half, eighth) = (Probability::new(0.5), Probability::new(0.125));
        assert!(near(half.plus(eighth).value(), 0.625) && near(half.and(eighth).value(), 0.0625));
        assert_eq!(half.plus(Probability::ONE), Probability::ONE);
        assert_eq!(Probability::ZERO.plus(Probability::ZERO), Probability::ZERO);
        assert_eq!(half.plus(Probability::ZERO), half);
        assert_eq!(half.min(eighth), eighth);
        assert!(eighth < half);
        assert_eq!(Probability::ONE.score().to_string(), "0");
    }
}
