//! Bar charts of schemes, as SVG: the thesis's figures 6.14, 6.15 and 6.18, computed anew.

use super::{Bill, Devices, Prices, Scheme, failure_within};
use crate::figure::{DrawError, FONT, INK, failed, text};
use plotters::prelude::*;

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

const SIZE: (u32, u32) = (720, 400);
const SHADES: [RGBColor; 3] = [RGBColor(70, 70, 70), RGBColor(140, 140, 140), RGBColor(205, 205, 205)];
/// Hours of a year for figure 6.15.
pub(super) const YEAR_H: f64 = 8760.0;

/// Heights of the bars of one scheme, one beside or upon the other.
type Row = (&'static str, Vec<f64>);

/// The figure as an SVG document.
///
/// # Errors
/// [`DrawError`] if the values are beyond what can be drawn.
pub fn draw_bars(bars: Bars, devices: &Devices, prices: &Prices) -> Result<String, DrawError> {
    let rows = |values: &dyn Fn(Scheme) -> Vec<f64>| -> Vec<Row> {
        Scheme::ALL.into_iter().map(|scheme| (scheme.name(), values(scheme))).collect()
    };
    match bars {
        Bars::Lives => {
            let rows = rows(&|scheme| vec![scheme.mttf_h(devices), scheme.mttf_of_everything_h(devices)]);
            let legend = ["until what came last is lost", "until everything is"];
            side_by_side("mean time to failure", "hours", &rows, &legend, &|hours| format!("{hours:.1e}"))
        }
        Bars::Failures => {
            let within = |scheme: Scheme, years: f64| failure_within(years * YEAR_H, scheme.mttf_h(devices));
            let rows = rows(&|scheme| vec![within(scheme, 5.0), within(scheme, 10.0)]);
            let legend = ["within 5 years", "within 10 years"];
            side_by_side("installations that lose what came last", "part", &rows, &legend, &|part| {
                format!("{part:.0e}")
            })
        }
        Bars::Costs => stacked(&rows(&|scheme| {
            let bill = Bill::of(scheme, devices, prices);
            vec![bill.initial, bill.replacement, bill.energy]
        })),
    }
}

/// On a logarithmic scale.
fn side_by_side(
    title: &str,
    unit: &str,
    rows: &[Row],
    legend: &[&str],
    label: &dyn Fn(f64) -> String,
) -> Result<String, DrawError> {
    let all = || rows.iter().flat_map(|(_, values)| values.iter().copied());
    let bottom = 10f64.powf(all().fold(f64::INFINITY, f64::min).log10().floor() - 0.3);
    let top = all().fold(0.0, f64::max) * 6.0;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let mut builder = ChartBuilder::on(&root);
        builder.caption(title, (FONT, 16).into_font().color(&INK)).margin(8);
        builder.x_label_area_size(32).y_label_area_size(64);
        let width = 0.0..rows.len() as f64;
        let mut chart = builder.build_cartesian_2d(width, (bottom..top).log_scale()).map_err(failed)?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_mesh().y_desc(unit).x_labels(0).axis_style(INK).label_style((FONT, 13));
        mesh.y_label_formatter(&|value| format!("{value:.0e}")).draw().map_err(failed)?;
        for (row, (name, values)) in rows.iter().enumerate() {
            let wide = 0.8 / values.len() as f64;
            for (bar, value) in values.iter().enumerate() {
                let left = row as f64 + 0.1 + bar as f64 * wide;
                let corners = [(left, bottom), (left + 0.9 * wide, *value)];
                chart.draw_series([Rectangle::new(corners, SHADES[bar].filled())]).map_err(failed)?;
                let above =
                    EmptyElement::at((left + 0.45 * wide, *value)) + Text::new(label(*value), (0, -8), text(11, INK));
                chart.draw_series([above]).map_err(failed)?;
            }
            under(&root, row, rows.len(), name)?;
        }
        key(&root, legend)?;
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

/// The values of a row upon each other.
fn stacked(rows: &[Row]) -> Result<String, DrawError> {
    let top = rows.iter().map(|(_, values)| values.iter().sum::<f64>()).fold(1.0, f64::max) * 1.25;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let mut builder = ChartBuilder::on(&root);
        builder.caption("costs of 1 TB", (FONT, 16).into_font().color(&INK)).margin(8);
        builder.x_label_area_size(32).y_label_area_size(64);
        let mut chart = builder.build_cartesian_2d(0.0..rows.len() as f64, 0.0..top).map_err(failed)?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_mesh().y_desc("money").x_labels(0).axis_style(INK).label_style((FONT, 13));
        mesh.draw().map_err(failed)?;
        for (row, (name, values)) in rows.iter().enumerate() {
            let (left, mut from) = (row as f64 + 0.2, 0.0);
            for (value, shade) in values.iter().zip(SHADES) {
                let corners = [(left, from), (left + 0.6, from + value)];
                chart.draw_series([Rectangle::new(corners, shade.filled())]).map_err(failed)?;
                from += value;
            }
            let above = EmptyElement::at((left + 0.3, from)) + Text::new(format!("{from:.2}"), (0, -8), text(12, INK));
            chart.draw_series([above]).map_err(failed)?;
            under(&root, row, rows.len(), name)?;
        }
        key(&root, &["initial", "replacement", "energy"])?;
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// The name of a row under its bars.
fn under(root: &Area, row: usize, rows: usize, name: &str) -> Result<(), DrawError> {
    let plot = f64::from(SIZE.0 - 64 - 16) / rows as f64;
    let at = (72 + (plot * (row as f64 + 0.5)) as i32, SIZE.1 as i32 - 22);
    root.draw(&Text::new(name.to_string(), at, text(13, INK))).map_err(failed)
}

/// What the shades are, at the top.
fn key(root: &Area, legend: &[&str]) -> Result<(), DrawError> {
    for (at, name) in legend.iter().enumerate() {
        let (x, y) = (SIZE.0 as i32 - 190, 34 + 18 * at as i32);
        root.draw(&Rectangle::new([(x, y - 6), (x + 12, y + 6)], SHADES[at].filled())).map_err(failed)?;
        let words = (FONT, 13).into_font().color(&INK);
        root.draw(&Text::new((*name).to_string(), (x + 18, y - 7), words)).map_err(failed)?;
    }
    Ok(())
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
