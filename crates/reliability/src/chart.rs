//! Bar charts, as SVG: of values beside each other, and upon each other.

use crate::figure::{DrawError, FONT, INK, failed, text};
use plotters::coord::Shift;
use plotters::prelude::*;

const SIZE: (u32, u32) = (720, 400);
/// Greys for three, and colours where there are more.
const SHADES: [RGBColor; 7] = [
    RGBColor(70, 70, 70),
    RGBColor(140, 140, 140),
    RGBColor(205, 205, 205),
    RGBColor(166, 54, 3),
    RGBColor(253, 174, 107),
    RGBColor(8, 81, 156),
    RGBColor(158, 202, 225),
];
/// Lines of the key in one column.
const KEY_ROWS: usize = 3;

/// What stands under the bars, in one line or two, and their heights.
pub type Row<'a> = (&'a str, Vec<f64>);

/// Bars of rows beside each other, on a logarithmic scale.
#[derive(Clone, Copy)]
pub struct Chart<'a> {
    /// What is shown.
    pub title: &'a str,
    /// Of the values.
    pub unit: &'a str,
    /// From left to right.
    pub rows: &'a [Row<'a>],
    /// What the bars of a row are.
    pub legend: &'a [&'a str],
    /// The words for a value of the scale.
    pub tick: &'a dyn Fn(f64) -> String,
    /// The words above a bar, if there are any.
    pub label: &'a dyn Fn(f64) -> String,
}

/// The chart as an SVG document.
///
/// # Errors
/// [`DrawError`] if the values are beyond what can be drawn.
pub fn draw_chart(chart: &Chart) -> Result<String, DrawError> {
    let Chart { title, unit, rows, legend, tick, label } = *chart;
    let all = || rows.iter().flat_map(|(_, values)| values.iter().copied());
    let bottom = 10f64.powf(all().fold(f64::INFINITY, f64::min).log10().floor() - 0.3);
    // The key has room above the bars.
    let top = all().fold(0.0, f64::max) * if legend.len() > KEY_ROWS { 12.0 } else { 6.0 };
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut builder = titled(&root, title)?;
        let width = 0.0..rows.len() as f64;
        let mut chart = builder.build_cartesian_2d(width, (bottom..top).log_scale()).map_err(failed)?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_mesh().y_desc(unit).x_labels(0).axis_style(INK).label_style((FONT, 13));
        mesh.y_label_formatter(&|value| tick(*value)).draw().map_err(failed)?;
        for (row, (name, values)) in rows.iter().enumerate() {
            let wide = 0.8 / values.len() as f64;
            for (bar, value) in values.iter().enumerate() {
                let left = row as f64 + 0.1 + bar as f64 * wide;
                let corners = [(left, bottom), (left + 0.9 * wide, *value)];
                chart.draw_series([Rectangle::new(corners, SHADES[bar % SHADES.len()].filled())]).map_err(failed)?;
                let (at, words) = ((left + 0.45 * wide, *value), label(*value));
                if !words.is_empty() {
                    let above = EmptyElement::at(at) + Text::new(words, (0, -8), text(11, INK));
                    chart.draw_series([above]).map_err(failed)?;
                }
            }
            under(&root, row, rows.len(), name)?;
        }
        key(&root, legend)?;
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

/// A white ground with a title, and room for what stands beside the bars.
fn titled<'a, 'b>(root: &'a Area<'b>, title: &str) -> Result<ChartBuilder<'a, 'b, SVGBackend<'b>>, DrawError> {
    root.fill(&WHITE).map_err(failed)?;
    let mut builder = ChartBuilder::on(root);
    builder.caption(title, (FONT, 16).into_font().color(&INK)).margin(8);
    builder.x_label_area_size(32).y_label_area_size(64);
    Ok(builder)
}

/// The values of a row upon each other.
pub(crate) fn stacked(title: &str, unit: &str, rows: &[Row], legend: &[&str]) -> Result<String, DrawError> {
    let top = rows.iter().map(|(_, values)| values.iter().sum::<f64>()).fold(1.0, f64::max) * 1.25;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut builder = titled(&root, title)?;
        let mut chart = builder.build_cartesian_2d(0.0..rows.len() as f64, 0.0..top).map_err(failed)?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_mesh().y_desc(unit).x_labels(0).axis_style(INK).label_style((FONT, 13));
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
        key(&root, legend)?;
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The name of a row under its bars.
fn under(root: &Area, row: usize, rows: usize, name: &str) -> Result<(), DrawError> {
    let plot = f64::from(SIZE.0 - 64 - 16) / rows as f64;
    for (line, below) in name.lines().zip(0..) {
        let at = (72 + (plot * (row as f64 + 0.5)) as i32, SIZE.1 as i32 - 22 + 14 * below);
        root.draw(&Text::new(line.to_string(), at, text(13, INK))).map_err(failed)?;
    }
    Ok(())
}

/// What the shades are, at the top.
fn key(root: &Area, legend: &[&str]) -> Result<(), DrawError> {
    let columns = legend.len().div_ceil(KEY_ROWS);
    for (at, name) in legend.iter().enumerate() {
        let from_right = (columns - at / KEY_ROWS) as i32;
        let (x, y) = (SIZE.0 as i32 - 190 * from_right, 34 + 18 * (at % KEY_ROWS) as i32);
        let shade = SHADES[at % SHADES.len()].filled();
        root.draw(&Rectangle::new([(x, y - 6), (x + 12, y + 6)], shade)).map_err(failed)?;
        let words = (FONT, 13).into_font().color(&INK);
        root.draw(&Text::new((*name).to_string(), (x + 18, y - 7), words)).map_err(failed)?;
    }
    Ok(())
}
