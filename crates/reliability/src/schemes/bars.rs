//! Bar charts of schemes, as SVG: the thesis's figures 6.14, 6.15 and 6.18, computed anew.

use super::{Bill, Devices, Prices, Scheme, failure_within};
use crate::chart::{Chart, Row, draw_chart, stacked};
use crate::figure::DrawError;

/// What the bars are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Bars {
    /// Figure 6.14: hours until the mean installation fails.
    Lives,
    /// Figure 6.15: failures within five and ten years.
    Failures,
    /// Figure 6.18: what a scheme costs, by kind of cost.
    Costs,
}

impl Bars {
    /// All, in the order of the thesis.
    pub const ALL: [Bars; 3] = [Bars::Lives, Bars::Failures, Bars::Costs];

    /// The name it goes by.
    pub const fn name(self) -> &'static str {
        match self {
            Bars::Lives => "mttf",
            Bars::Failures => "failures",
            Bars::Costs => "costs",
        }
    }
}

/// Hours of a year for figure 6.15.
pub(super) const YEAR_H: f64 = 8760.0;

/// The figure as an SVG document.
///
/// # Errors
/// [`DrawError`] if the values are beyond what can be drawn.
pub fn draw_bars(bars: Bars, devices: &Devices, prices: &Prices) -> Result<String, DrawError> {
    let tick = &|value: f64| format!("{value:.0e}");
    let rows = |values: &dyn Fn(Scheme) -> Vec<f64>| -> Vec<Row<'static>> {
        Scheme::ALL.into_iter().map(|scheme| (scheme.name(), values(scheme))).collect()
    };
    match bars {
        Bars::Lives => {
            let rows = rows(&|scheme| vec![scheme.mttf_h(devices), scheme.mttf_of_everything_h(devices)]);
            let legend = ["until what came last is lost", "until everything is"];
            let (title, label) = ("mean time to failure", &|hours: f64| format!("{hours:.1e}"));
            draw_chart(&Chart { title, unit: "hours", rows: &rows, legend: &legend, tick, label })
        }
        Bars::Failures => {
            let within = |scheme: Scheme, years: f64| failure_within(years * YEAR_H, scheme.mttf_h(devices));
            let rows = rows(&|scheme| vec![within(scheme, 5.0), within(scheme, 10.0)]);
            let legend = ["within 5 years", "within 10 years"];
            let title = "installations that lose what came last";
            draw_chart(&Chart { title, unit: "part", rows: &rows, legend: &legend, tick, label: tick })
        }
        Bars::Costs => {
            let rows = rows(&|scheme| {
                let bill = Bill::of(scheme, devices, prices);
                vec![bill.initial, bill.replacement, bill.energy]
            });
            stacked("costs of 1 TB", "money", &rows, &["initial", "replacement", "energy"])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_names_all_schemes() {
        for bars in Bars::ALL {
            let svg = draw_bars(bars, &Devices::default(), &Prices::default()).unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>") && svg.len() < 30_000);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{bars:?}");
            for scheme in Scheme::ALL {
                assert!(svg.contains(scheme.name()), "{bars:?}: {}", scheme.name());
            }
        }
        let costs = draw_bars(Bars::Costs, &Devices::default(), &Prices::default()).unwrap();
        assert!(costs.contains("154.57"), "what a Flashlog with a stick costs in the thesis");
    }
}
